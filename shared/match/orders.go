package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
	"github.com/weir-proxy/weir/shared/wire"
)

// everyPolicy and everyTier are the places of an order that names none.
const (
	everyPolicy = ^uint32(0)
	everyTier   = -1
)

// orders are what operators have ordered beside the policy set.
type orders struct {
	// list has the most specific first: policy and tier, policy, tier, everything.
	list []order
	// off: everything is switched off. lifted: so are the lists of the banned, whatever more specific orders say. byTier: some
	// order goes by tier.
	off, lifted, byTier bool
	// bans are the keys that are banned, ascending.
	bans []keyhash.Key
	// barred and bypassed are what Match has found out last.
	barred, bypassed bool
}

type order struct {
	policy  uint32
	tier    int
	state   policy.Enforced
	percent uint8
}

// Obey puts into force what operators have ordered, and is to be called again after Load, and when one of the orders has ended by
// Unix time in milliseconds. Orders about policies and tiers that the policy set does not have say nothing. Nothing of e is kept.
func (ix *Index) Obey(e *wire.Enforcement, unix int64) {
	o := &ix.orders
	o.list, o.bans, o.off, o.lifted, o.byTier = o.list[:0], o.bans[:0], false, false, false
	for rank := range 4 {
		for i := range e.Orders {
			if one := &e.Orders[i]; rankOf(one) == rank && !ended(one.Expires, unix) {
				ix.obeyOne(one)
			}
		}
	}
	o.off = o.lifted && len(o.list) == 1
	for i := range e.Bans {
		if !ended(e.Bans[i].Expires, unix) {
			o.bans = append(o.bans, e.Bans[i].Key)
		}
	}
}

// rankOf puts what is more specific first.
func rankOf(o *wire.Order) int {
	rank := 0
	if len(o.Policy) == 0 {
		rank = 2
	}
	if len(o.Tier) == 0 {
		rank++
	}
	return rank
}

func ended(expires, unix int64) bool { return expires != 0 && expires <= unix }

func (ix *Index) obeyOne(o *wire.Order) {
	bound := order{policy: everyPolicy, tier: everyTier, state: o.State, percent: o.Percent}
	if len(o.Policy) > 0 {
		for bound.policy = 0; ; bound.policy++ {
			if bound.policy == uint32(len(ix.policies)) {
				return
			}
			if text.Equal(ix.Text(ix.policies[bound.policy].Name), o.Policy) {
				break
			}
		}
	}
	if len(o.Tier) > 0 {
		for bound.tier = 0; ; bound.tier++ {
			if bound.tier == len(ix.tiers) {
				return
			}
			if text.Equal(ix.Text(ix.tiers[bound.tier]), o.Tier) {
				break
			}
		}
		ix.orders.byTier = true
	}
	if bound.policy == everyPolicy && bound.tier == everyTier && bound.state == policy.EnforcedOff && bound.percent == 100 {
		ix.orders.lifted = true
	}
	ix.orders.list = append(ix.orders.list, bound)
}

// Off says whether an order has switched off everything, so that there is nothing to look at.
func (ix *Index) Off() bool { return ix.orders.off }

// Bars says whether any key is banned.
func (ix *Index) Bars() bool { return len(ix.orders.bans) > 0 }

// Barred says whether the request that Match has seen last has a banned key.
func (ix *Index) Barred() bool { return ix.orders.barred }

// Bypassed says whether an order has switched off a policy that applies to the request that Match has seen last.
func (ix *Index) Bypassed() bool { return ix.orders.bypassed }

// enforced is how a policy is enforced for a share of its partition keys: by the most specific order about it and the caller's
// tier, which must be known if orders go by tier; without one by the document.
func (ix *Index) enforced(number uint32, share uint32) policy.Enforced {
	for i := range ix.orders.list {
		o := &ix.orders.list[i]
		if (o.policy == everyPolicy || o.policy == number) && (o.tier == everyTier || o.tier == ix.tier) && share < uint32(o.percent) {
			return o.state
		}
	}
	return ix.policies[number].Enforced
}

// banned says whether a key is.
func (o *orders) banned(k keyhash.Key) bool {
	low, high := 0, len(o.bans)
	for low < high {
		if middle := (low + high) / 2; o.bans[middle].Less(&k) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low < len(o.bans) && o.bans[low] == k
}
