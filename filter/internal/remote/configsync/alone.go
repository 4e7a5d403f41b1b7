package configsync

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
)

// A VM with an inline set writes a sign of life for the set every beat. The set counts as gone when
// the last sign is older than silence.
const (
	beat    = quota.Second
	silence = 5 * quota.Second
)

// alone keeps in shared data the instant since which the process has an inline set. All VMs with
// the set agree on it, including a VM that was created again after a trap. A set that comes back
// after it was gone has a new start.
type alone struct {
	shared shareddata.Data
	key    [13]byte
	value  [16]byte
	next   quota.Instant
}

// newAlone prepares the shared key.
func newAlone(shared shareddata.Data, space shareddata.Space) (a alone) {
	prefix := space.Key(shareddata.InlineSet)
	copy(a.key[:], prefix[:])
	a.shared = shared
	return a
}

// begin notes that the VM has the set, and returns the instant since which the process has it.
func (a *alone) begin(snapshot []byte, now quota.Instant) (start quota.Instant) {
	binary.LittleEndian.PutUint64(a.key[5:], uint64(text.NewHash64.Add(snapshot)))
	start = now
	if value, _, found := a.shared.Get(a.key[:]); found && len(value) == len(a.value) {
		known, heard := binary.LittleEndian.Uint64(value), binary.LittleEndian.Uint64(value[8:])
		if now-quota.Instant(heard) <= quota.Instant(silence) {
			start = quota.Instant(known)
		}
	}
	binary.LittleEndian.PutUint64(a.value[:], uint64(start))
	a.showAlive(now)
	return start
}

// tick writes a sign of life when it is due.
func (a *alone) tick(now quota.Instant) {
	if now >= a.next {
		a.showAlive(now)
	}
}

// showAlive writes the sign of life.
func (a *alone) showAlive(now quota.Instant) {
	binary.LittleEndian.PutUint64(a.value[8:], uint64(now))
	a.shared.Put(a.key[:], a.value[:])
	a.next = now + quota.Instant(beat)
}
