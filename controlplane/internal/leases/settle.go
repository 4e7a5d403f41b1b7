package leases

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
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

// settlement returns an item that settles a reservation with what it asks of the store. It reports
// false for a limit that is not known or has no reservations. Whether costs of the policy still are
// known later does not matter: what was reserved was taken.
func (r *resolver) settlement(it *wire.LeaseItem) (resolved, bool) {
	by, ok := r.effective(it, r.deciding)
	if ok && by.limit.Suspended() { // Its figures would cut what the ledger has counted to 0.
		by, ok = r.effective(it, r.requested)
		ok = ok && !by.limit.Suspended()
	}
	if !ok || by.policy.Mode != policy.ModeStrict && by.policy.Mode != policy.ModeLeased {
		return resolved{}, false
	}
	by.bring(it.Quota, it.Burst)
	return resolved{effective: by, item: it, ask: Item{
		Bucket:  it.Bucket,
		Ask:     r.service.baseAsk(it.Bucket, by, r.deciding.Version.Number),
		Settles: &Settlement{Name: it.Reserved, Nth: it.Nth, Actual: it.Actual},
	}}, true
}
