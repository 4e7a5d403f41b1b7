package leases

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Settlement corrects a reservation to Actual, the real cost of its request: the reservation of the
// Nth request of the ask whose Reserved is Name. A store applies it like Settle of the bucket's
// ledger, and then forgets the reservation, so that it is applied only once. The grant is
// SettledGrant if the store knew the reservation. It is empty if the reservation was settled
// before, no longer counts, or was lost.
type Settlement struct {
	Name        uint64
	Nth, Actual int64
}

// SettledGrant returns the grant for a settled reservation. back is the number of parts of a token
// that went back; below 0, that were taken. Waiting is 1, Level has the parts that went back, and
// Keep the parts that were taken.
func SettledGrant(back int64) lease.Grant {
	return lease.Grant{Waiting: 1, Level: min(max(back, 0), quota.MaxUnits), Keep: min(max(-back, 0), quota.MaxUnits)}
}
