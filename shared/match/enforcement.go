package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
)

// enforcement has the operators' orders beside the policy set, bound to the policies and tiers of
// one Index. Enforce changes it, and Load empties it.
type enforcement struct {
	// orders begins with the most specific orders: policy and tier, policy, tier, everything.
	orders []order
	// off means that everything is switched off, and nothing must be checked.
	off bool
	// lifted means that everything is switched off except by more specific orders, and that no ban
	// counts.
	lifted bool
	// counts means that some policy limits requests in flight.
	counts bool
	// byTier means that some order depends on the tier.
	byTier bool
	// bans are the banned partition keys, ascending. ends has the end of each ban, 0 for never.
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

// Values of an order that names no policy or no tier.
const (
	everyPolicy = ^uint32(0)
	everyTier   = -1
)

// resetOrders removes all orders and bans.
func (e *enforcement) resetOrders() {
	e.orders, e.bans, e.ends = e.orders[:0], e.bans[:0], e.ends[:0]
	e.off, e.lifted, e.byTier = false, false, false
}

// addOrder appends an order. Orders must be added by rank.
func (e *enforcement) addOrder(o order) {
	everything := o.policy == everyPolicy && o.tier == everyTier
	if everything && o.state == policy.EnforcedOff && o.percent == 100 {
		e.lifted = true
	}
	e.byTier = e.byTier || o.tier != everyTier
	e.orders = append(e.orders, o)
}

// stateFor returns how a policy is enforced for a partition key, given by its share: by the most
// specific order about the policy and the caller's tier; without an order as in the document. If
// orders depend on the tier, the tier must be known.
func (e *enforcement) stateFor(number, share uint32, tier int, document policy.Enforced) policy.Enforced {
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
