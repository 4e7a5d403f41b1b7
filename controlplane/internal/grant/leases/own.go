package leases

import (
	"slices"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
)

// bringFigures uses the figures that a caller brings, if the limit accepts figures, and cuts them
// to the largest allowed, whatever a node sends. 0 means a caller without figures, for instance
// from a node with an earlier policy set: then the usual figures are used.
func (by *effective) bringFigures(units, burst int64) {
	by.largest = by.limit
	if by.limit.Own == 0 || units == 0 {
		by.limit = by.policy.Usual(by.limit)
		return
	}
	by.limit = by.limit.For(units, burst)
}

// sameForEachCaller reports whether a policy has the same limits in both versions for all tiers,
// and with or without own limits of a consumer. If not, a bucket with equal figures today still has
// two ledgers: once the consumer's limits end, each ledger must have counted the use before.
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

// sharesLedger reports whether a bucket has one ledger under two versions of its policy, according
// to the asks of both. For limits whose callers bring figures the largest figures must be equal.
func (by *effective) sharesLedger(other *effective, ask, twin *lease.Ask) bool {
	one, two := by.largest, other.largest
	if one.Own == 0 && two.Own == 0 {
		return twin.Params == ask.Params && twin.Windows == ask.Windows
	}
	one.Own, two.Own = min(one.Own, 1), min(two.Own, 1)
	return one == two
}
