package wire

import (
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// The flags of a penalty's rule.
const (
	penaltyExtend = 1 << iota
	penaltyAll
	penaltyShadow
	penaltyFlags
)

func putPenalty(dst []byte, p *penalty.Rule) []byte {
	flags := int64(0)
	for bit, set := range [...]bool{p.Extend, p.All, p.Shadow} {
		if set {
			flags |= 1 << bit
		}
	}
	numbers := [...]int64{
		flags, p.Refusals, int64(p.Within), int64(p.For), int64(p.Max), p.Factor, int64(p.Forget), p.Jitter,
	}
	for _, n := range numbers {
		dst = putUvarint(dst, n)
	}
	return dst
}

// readPenalty reads a rule, and calls back with it unless it is refused.
func (r *SetReader) readPenalty(rule func(penalty.Rule)) {
	c := &r.c
	flags := c.readWithin(0, penaltyFlags-1)
	p := penalty.Rule{
		Extend: flags&penaltyExtend != 0, All: flags&penaltyAll != 0, Shadow: flags&penaltyShadow != 0,
		Refusals: c.readWithin(1, policy.MaxRefusals), Within: c.readSpan(quota.Day),
		For: c.readSpan(policy.MaxPenalty), Max: c.readSpan(policy.MaxPenalty),
		Factor: c.readWithin(1, policy.MaxFactor), Forget: c.readSpan(policy.MaxPenalty), Jitter: c.readWithin(0, 100),
	}
	if p.Max < p.For {
		c.failWith(ErrValue)
	}
	if c.err == nil {
		rule(p)
	}
}

// readSpan reads a time of at least a second.
func (c *cursor) readSpan(high quota.Span) quota.Span {
	return quota.Span(c.readWithin(int64(quota.Second), int64(high)))
}
