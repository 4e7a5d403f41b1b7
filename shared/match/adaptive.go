package match

import (
	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/policy"
)

// Adaptive returns the adaptive limit of a policy; nil if it has none. The pointer is good until
// the next Load.
func (ix *Index) Adaptive(p *Policy) *policy.Adaptive {
	if p.adaptive == 0 {
		return nil
	}
	return &ix.adaptives[p.adaptive-1]
}

// findRank finds the request's class, and the cohort of its caller, if a policy needs them. The
// cohort is the consumer's or, without a consumer, the address's. It uses the memory of the
// encoding, so it must be called before the partition is encoded.
//
//go:noinline
func (c *collector) findRank(p *Policy, a *Attributes) {
	if p.adaptive == 0 && p.reserves.len() == 0 {
		return
	}
	c.findClass(a)
	if p.adaptive == 0 {
		return
	}
	who, known := c.consumerKey(a)
	if !known {
		c.beginKey(consumerFormat)
		c.putOne(a.ClientIP)
		who = c.hashKey()
	}
	c.rank = adaptive.Rank{Class: uint8(c.class), Cohort: who[0] % adaptive.Cohorts}
}
