package load

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// How long the kernel lets a thread of this process run while others wait for its processor. With
// the kernel's own 3 ms the thread that sends waits for those that read: half of the requests of an
// open loop are then 3 ms late on a processor that is a third busy.
const (
	promptly = 100 * time.Microsecond
	usually  = 0
)

// setSlices sets that for all threads, and for those that they start. A kernel that does not know
// it ignores it; without it latencies are higher, for all contestants alike.
func setSlices(d time.Duration) {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			continue
		}
		attributes, err := unix.SchedGetAttr(id, 0)
		if err != nil {
			continue // It has ended.
		}
		attributes.Runtime = uint64(d.Nanoseconds())
		_ = unix.SchedSetAttr(id, attributes, 0)
	}
}
