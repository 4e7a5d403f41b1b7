package leases

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Return says what has become of leased tokens of a Term. A store takes it as TakeBack of the
// bucket's ledgers does, and remembers the Name until the Term is over: it happens once, however
// often it is asked for. Keep of the grant is how many tokens went back.
type Return struct {
	Name uint64
	Term lease.Term
	lease.Back
}

// takeBack returns an item that gives tokens back with what it asks of the store. It reports false
// for a limit that is not known, or of which nothing is leased.
func (r *resolver) takeBack(it *wire.LeaseItem) (resolved, bool) {
	by, ok := r.effective(it, r.deciding)
	if !ok || by.policy.Mode != policy.ModeStrict && by.policy.Mode != policy.ModeLeased {
		return resolved{}, false
	}
	by.bring(it.Quota, it.Burst)
	return resolved{effective: by, item: it, ask: Item{
		Bucket:  it.Bucket,
		Ask:     r.service.baseAsk(it.Bucket, by, r.deciding.Version.Number),
		Returns: &Return{it.Reserved, it.Term, lease.Back{Unused: it.Returned, Used: it.Used}},
	}}, true
}
