package leases

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Settlement makes a reservation cost Actual, what its request has cost: that of the Nth request of
// the ask whose Reserved is Name. A store does so as Settle of the bucket's ledger does, and then
// forgets the reservation: it happens once, however often it is asked for. The grant is that of
// SettledGrant if the store knew the reservation, and empty if it was settled before, or counts no
// more, or is lost.
type Settlement struct {
	Name        uint64
	Nth, Actual int64
}

// SettledGrant is the grant for a reservation that was settled, which gave back so many parts of a
// token, below 0: took them. Waiting is 1, Level what it gave back, and Keep what it took.
func SettledGrant(back int64) lease.Grant {
	return lease.Grant{Waiting: 1, Level: min(max(back, 0), quota.MaxUnits), Keep: min(max(-back, 0), quota.MaxUnits)}
}
