package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
)

// enforcement is what operators have ordered beside the policy set, bound to the policies and tiers
// of one Index. Enforce changes it, and Load empties it.
type enforcement struct {
	// orders has the most specific first: policy and tier, policy, tier, everything.
	orders []order
	// off: everything is switched off, so that there is nothing to look at.
	off bool
	// lifted: everything is switched off but for more specific orders, and no ban counts.
	lifted bool
	// counts: some policy limits requests in flight.
	counts bool
	// byTier: some order goes by tier.
	byTier bool
	// bans are the partition keys that are banned, ascending, ends when each ends, 0 for never.
	bans []keyhash.Key
	ends []int64
}

// order is a wire.Order about one policy and one tier, or all of them.
type order struct {
	policy  uint32
	tier    int
	state   policy.Enforced
	percent uint8
}

// These stand for what an order does not name.
const (
	everyPolicy = ^uint32(0)
	everyTier   = -1
)

// reset takes back everything.
func (e *enforcement) reset() {
	e.orders, e.bans, e.ends = e.orders[:0], e.bans[:0], e.ends[:0]
	e.off, e.lifted, e.byTier = false, false, false
}

// add appends an order. They must come in their rank.
func (e *enforcement) add(o order) {
	everything := o.policy == everyPolicy && o.tier == everyTier
	if everything && o.state == policy.EnforcedOff && o.percent == 100 {
		e.lifted = true
	}
	e.byTier = e.byTier || o.tier != everyTier
	e.orders = append(e.orders, o)
}

// state is how a policy is enforced for a partition key, given by its share: by the most specific
// order about the policy and the caller's tier; without one as the document has it. If orders go by
// tier, the tier must be known.
func (e *enforcement) state(number, share uint32, tier int, document policy.Enforced) policy.Enforced {
	for i := range e.orders {
		o := &e.orders[i]
		isAbout := (o.policy == everyPolicy || o.policy == number) && (o.tier == everyTier || o.tier == tier)
		if isAbout && share < uint32(o.percent) {
			return o.state
		}
	}
	return document
}

// bansKey reports whether a partition key is banned, and when that ends by itself, 0 for never.
func (e *enforcement) bansKey(k keyhash.Key) (banned bool, ends int64) {
	low, high := 0, len(e.bans)
	for low < high {
		if middle := (low + high) / 2; e.bans[middle].Less(&k) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low == len(e.bans) || e.bans[low] != k {
		return false, 0
	}
	return true, e.ends[low]
}
