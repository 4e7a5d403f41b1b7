package leases

import (
	"slices"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
)

// bring takes over the figures that a caller brings, where the limit takes such, and cuts them to
// the largest, whatever a node says. 0 is a caller without figures, as a node with an earlier
// policy set has: the usual ones count.
func (by *effective) bring(units, burst int64) {
	by.largest = by.limit
	if by.limit.Own == 0 || units == 0 {
		by.limit = by.policy.Usual(by.limit)
		return
	}
	by.limit = by.limit.For(units, burst)
}

// sameForEachCaller reports whether a policy has the same limits in both versions whatever tier a
// consumer gets and whether it has limits of its own. Where it has not, a bucket of which both ask
// the same today has two ledgers all the same: once the consumer's limits end, each must have
// counted what was used under them.
func (r *resolver) sameForEachCaller(p, q *policy.Policy) bool {
	if !p.ByConsumer() && !q.ByConsumer() {
		return true
	}
	same := func(l, m policy.Limit) bool {
		l.Own, m.Own = min(l.Own, 1), min(m.Own, 1)
		return l == m
	}
	return slices.EqualFunc(p.Limits, q.Limits, same) && slices.Equal(p.Tiers, q.Tiers) &&
		(len(p.Tiers) == 0 || slices.Equal(r.deciding.Set.Tiers, r.other.Set.Tiers))
}

// sharesLedger reports whether a bucket has one ledger under two versions of its policy, by what is
// asked under each. Limits whose callers bring figures have one if the largest are the same.
func (by *effective) sharesLedger(other *effective, ask, twin *lease.Ask) bool {
	one, two := by.largest, other.largest
	if one.Own == 0 && two.Own == 0 {
		return twin.Params == ask.Params && twin.Windows == ask.Windows
	}
	one.Own, two.Own = min(one.Own, 1), min(two.Own, 1)
	return one == two
}
