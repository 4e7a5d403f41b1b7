package configsync

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/quota"
)

// These are the times of the election. A leader that has not renewed its lease within leadership
// counts as gone.
const (
	leadership = 3 * quota.Second
	renewal    = quota.Second
)

// leader elects one VM of the process by a lease in shared data.
type leader struct {
	shared shareddata.Data
	id     uint64
	key    shareddata.Key
	value  [16]byte
	leads  bool
	next   quota.Instant
}

// newLeader returns the election of a process, in which id is this VM.
func newLeader(shared shareddata.Data, space shareddata.Space, id uint64) *leader {
	return &leader{shared: shared, id: id, key: space.Key(shareddata.Leader)}
}

// checkLease reports whether this VM leads at now, according to the lease itself. If it does, no
// other VM can take over within leadership.
func (l *leader) checkLease(now quota.Instant) bool {
	l.next = now
	return l.lead(now)
}

// lead reports whether this VM leads at now. It renews the lease, or takes over a lease that has
// ended.
func (l *leader) lead(now quota.Instant) bool {
	if now < l.next {
		return l.leads
	}
	l.next = now + quota.Instant(renewal)
	value, cas, found := l.shared.Get(l.key[:])
	var holder uint64
	var until quota.Instant
	known := found && len(value) == len(l.value)
	if known {
		holder, until = binary.LittleEndian.Uint64(value[:8]), quota.Instant(binary.LittleEndian.Uint64(value[8:]))
	}
	// A lease from the future is older than a restart of the machine's clock, so no VM renews it.
	if known && holder != l.id && now < until && until <= now+quota.Instant(leadership) {
		l.leads = false
		return false
	}
	binary.LittleEndian.PutUint64(l.value[:8], l.id)
	binary.LittleEndian.PutUint64(l.value[8:], uint64(now+quota.Instant(leadership)))
	l.leads = shareddata.Swap(l.shared, l.key[:], l.value[:], cas, found)
	return l.leads
}
