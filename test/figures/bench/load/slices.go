package load

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// The time for which the kernel lets a thread of this process run while others wait for its
// processor. With the kernel's own 3 ms the sending thread waits for the reading threads: half of
// the requests of an open loop are then 3 ms late on a processor that is a third busy.
const (
	promptly = 100 * time.Microsecond
	usually  = 0
)

// setSlices sets that time for all threads, and for the threads that they start. An older kernel
// ignores it; without it latencies are higher, for all contestants alike.
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
