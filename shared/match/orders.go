package match

import (
	"github.com/weir-proxy/weir/shared/text"
	"github.com/weir-proxy/weir/shared/wire"
)

// Enforce puts the operators' orders into force, in place of their earlier orders. Call it again
// after each Load, and when an order has ended by the Unix time in milliseconds. Orders about
// policies and tiers that the policy set does not have change nothing. Enforce keeps nothing of m.
func (ix *Index) Enforce(m *wire.Enforcement, unix int64) {
	e := &ix.enforcement
	e.resetOrders()
	for rank := range 4 {
		for i := range m.Orders {
			one := &m.Orders[i]
			if rankOf(one) != rank || hasEnded(one.Expires, unix) {
				continue
			}
			if bound, ok := ix.bindOrder(one); ok {
				e.addOrder(bound)
			}
		}
	}
	e.off, e.counts = e.lifted && len(e.orders) == 1, false
	for i := range ix.policies {
		e.counts = e.counts || ix.policies[i].InFlight
	}
	for i := range m.Bans {
		if ban := &m.Bans[i]; !e.lifted && !hasEnded(ban.Expires, unix) {
			e.bans, e.ends = append(e.bans, ban.Key), append(e.ends, ban.Expires)
		}
	}
}

func hasEnded(expires, unix int64) bool { return expires != 0 && expires <= unix }

// bindOrder finds the policy and the tier that an order names; false if the policy set lacks them.
func (ix *Index) bindOrder(o *wire.Order) (bound order, ok bool) {
	bound = order{policy: everyPolicy, tier: everyTier, state: o.State, percent: o.Percent}
	if len(o.Policy) > 0 {
		for bound.policy = 0; ; bound.policy++ {
			if bound.policy == uint32(len(ix.policies)) {
				return bound, false
			}
			if text.Equal(ix.Text(ix.policies[bound.policy].Name), o.Policy) {
				break
			}
		}
	}
	if len(o.Tier) > 0 {
		for bound.tier = 0; ; bound.tier++ {
			if bound.tier == len(ix.tiers) {
				return bound, false
			}
			if text.Equal(ix.Text(ix.tiers[bound.tier]), o.Tier) {
				break
			}
		}
	}
	return bound, true
}

// rankOf returns the rank of an order: more specific orders have lower ranks.
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

// bansKeys reports whether any partition key is banned. Then exempt requests must be matched
// against the policies too, because only the policies define the keys of a request.
func (ix *Index) bansKeys() bool { return len(ix.enforcement.bans) > 0 }
