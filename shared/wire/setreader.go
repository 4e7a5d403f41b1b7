package wire

import (
	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// SetReader reads a policy set in the order of its bytes, so its methods must be called in one
// order, as match.Index.Load does:
//
//	Head, Access, n := Policies
//	n times: Policy, Lists, Parts, m := Roots, m times: Root
//	k := Classes
//	k times: Class
//	Reading
//	Responses
//	m := Shown
//	m times: ShownPart
//	End
//
// It hands over each element as it comes, so that the filter, which holds tens of thousands of
// policies in tables of its own, never has a second copy of them as values. All texts alias the
// message. After an error all results are zero and no function is called back; End returns it.
type SetReader struct {
	c cursor
	// tiers and limits are how many have been read.
	tiers, limits int64
	// policyLimits are the limits of the last policy that was read, including those of all tiers
	// and of the candidate.
	policyLimits int64
	// parts has the bits of the set's parts. hasRoots: the parts of the policy end with roots.
	parts    uint8
	hasRoots bool
}

// SetHead is the part before the policies.
type SetHead struct {
	TrustedHops, IPv6Prefix int
	// DefaultTier is an index among the tiers, if there are any.
	DefaultTier int
	Headers     policy.Headers
}

// PolicyHead is a policy without its lists. An Envoy holds many: small fields stand together.
type PolicyHead struct {
	Name      Ref
	OnFailure policy.OnFailure
	Cost      Cost
	IfAbsent  policy.IfAbsent
	Mode      policy.Mode
	Enforced  policy.Enforced
	// ByTier: each tier has a run of limits.
	ByTier bool
	// Status, Body and ContentType are those of policy.Response; ContentType comes with the parts.
	Status            int
	Body, ContentType Ref
}

// Cost is policy.Cost with a reference for the name of its source.
type Cost struct {
	Fixed, Max, Invalid int64
	Source              Ref
	Kind                policy.SourceKind
	DenyInvalid         bool
}

// Ref is a text inside the message, as offset and length. It is not a pointer, so large tables of
// them cost the collector nothing.
type Ref struct{ Off, Len uint32 }

// Of is the text in the message b.
func (r Ref) Of(b []byte) []byte { return b[r.Off : r.Off+r.Len] }

// pattern reads a path pattern, which starts with a slash.
func (r *SetReader) pattern() Ref {
	ref := r.ref(policy.MaxText)
	if r.c.err == nil && (ref.Len == 0 || r.c.buf[ref.Off] != '/') {
		r.c.fail(ErrValue)
	}
	return ref
}

func (r *SetReader) ref(high int) Ref {
	b := r.c.text(high)
	return Ref{Off: uint32(r.c.pos - len(b)), Len: uint32(len(b))}
}

// Head reads the identity, the names of the tiers and the header dialects. It calls back for each
// source of the consumer, for each tier, and for each source of the tier.
func (r *SetReader) Head(
	consumer func(kind policy.SourceKind, name Ref),
	tier func(name Ref),
	tierSource func(kind policy.SourceKind, name Ref),
) SetHead {
	c := &r.c
	h := SetHead{TrustedHops: int(c.within(0, 64)), IPv6Prefix: int(c.within(1, 128))}
	r.sources(policy.OfConsumers, consumer)
	r.refs(policy.MaxTiers, func(ref Ref) {
		if r.tiers++; ref.Len == 0 {
			c.fail(ErrValue)
		}
		tier(ref)
	})
	h.DefaultTier = int(c.within(0, max(r.tiers-1, 0)))
	r.sources(policy.OfTiers, tierSource)
	standard := r.oneOf(0, 3)
	h.Headers.Standard, h.Headers.Unmarked = dialect.Standard(standard&1), standard > 1
	h.Headers.Legacy = dialect.Legacy(r.oneOf(0, uint8(len(dialect.Legacies)-1)))
	return h
}

// Access reads the lists of banned and exempt callers, and calls back for each range of addresses
// and each text. It must follow Head.
func (r *SetReader) Access(banned, exempt func(policy.Range), path, method, consumer func(Ref)) {
	r.ranges(banned)
	r.ranges(exempt)
	r.patterns(path)
	r.refs(policy.MaxListItems, method)
	r.refs(policy.MaxConsumers, consumer)
}

// patterns reads a list of path patterns; refs one of any texts.
func (r *SetReader) patterns(each func(Ref)) {
	for n := r.c.within(0, policy.MaxListItems); n > 0 && r.c.err == nil; n-- {
		if ref := r.pattern(); r.c.err == nil {
			each(ref)
		}
	}
}

func (r *SetReader) refs(limit int64, each func(Ref)) {
	for n := r.c.within(0, limit); n > 0 && r.c.err == nil; n-- {
		if ref := r.ref(policy.MaxText); r.c.err == nil {
			each(ref)
		}
	}
}

// Policies is the number of policies that follow. It must be called after Access.
func (r *SetReader) Policies() int { return int(r.c.within(0, policy.MaxPolicies)) }

// Policy reads the next policy up to its lists, and calls back before each run of limits and for
// each limit. The runs are the one of the policy, or one for each tier, and then the one of the
// candidate; runs of a tier and of the candidate may be empty. Lists must follow.
func (r *SetReader) Policy(run func(), limit func(policy.Limit)) PolicyHead {
	c := &r.c
	p := PolicyHead{Name: r.ref(63)}
	if p.Name.Len == 0 {
		c.fail(ErrValue)
	}
	p.IfAbsent = policy.IfAbsent(r.oneOf(0, uint8(policy.AbsentShared)))
	p.Mode = policy.Mode(r.oneOf(0, uint8(policy.ModeOptimistic)))
	p.Enforced = policy.Enforced(c.u8())
	if p.Enforced > policy.EnforcedAll && p.Enforced != policy.EnforcedOff {
		c.fail(ErrValue)
	}
	p.OnFailure = r.steps()
	counting := policy.Counting{
		Algorithm:  quota.Algorithm(r.oneOf(0, uint8(quota.AlgorithmCount-1))),
		Subwindows: int(r.oneOf(0, quota.MaxSubwindows)),
		Calendar:   r.oneOf(0, 1) == 1, MaxWait: quota.Span(c.within(0, int64(quota.Hour))),
	}
	p.ByTier = r.oneOf(0, 1) == 1
	r.runs(p.ByTier, counting, run, limit)
	p.Cost.Fixed = c.within(0, policy.MaxCost)
	p.Cost.Kind, p.Cost.Source = r.valueSource()
	p.Cost.Max = c.within(0, policy.MaxCost)
	p.Cost.Invalid = c.within(0, policy.MaxCost)
	p.Cost.DenyInvalid = r.oneOf(0, 1) == 1
	p.Status = r.status()
	p.Body = r.ref(policy.MaxBody)
	return p
}

// status reads the status of a refusal, 0 for the usual one.
func (r *SetReader) status() int {
	status := int(r.c.within(0, 599))
	if status != 0 && status < 400 {
		r.c.fail(ErrValue)
	}
	return status
}

func (r *SetReader) runs(byTier bool, counting policy.Counting, run func(), limit func(policy.Limit)) {
	c := &r.c
	own, least, before := int64(1), int64(1), r.limits
	if byTier {
		own, least = r.tiers, 0
	}
	for i := int64(0); i <= own && c.err == nil; i++ {
		if i == own {
			if r.limits == before {
				c.fail(ErrValue) // A policy without any limit.
			}
			least = 0
		}
		run()
		for n := c.within(least, policy.MaxLimits); n > 0 && c.err == nil; n-- {
			if r.limits++; r.limits > policy.MaxSetLimits {
				c.fail(ErrValue)
			}
			limit(r.limit(counting))
		}
	}
	r.policyLimits = r.limits - before
}

func (r *SetReader) limit(counting policy.Counting) policy.Limit {
	c := &r.c
	units, window, burst := c.uvarint(), quota.Span(c.uvarint()), c.uvarint()
	if c.err != nil {
		return policy.Limit{}
	}
	l, err := policy.NewLimit(counting, units, window, burst)
	if err != nil {
		c.fail(ErrValue)
	}
	return l
}

// Lists reads the lists of the policy that Policy has begun, and calls back for each element.
func (r *SetReader) Lists(
	host, method, path func(Ref),
	header func(op policy.HeaderOp, name, value Ref),
	part func(kind policy.PartKind, name Ref),
) {
	c := &r.c
	r.conditions(host, method, path, header)
	for n := c.within(0, policy.MaxListItems); n > 0 && c.err == nil; n-- {
		kind := policy.PartKind(r.oneOf(uint8(policy.PartClientIP), uint8(policy.PartEnd-1)))
		if kind == policy.PartTier && r.tiers == 0 {
			c.fail(ErrValue)
		}
		part(kind, r.ref(policy.MaxText))
	}
}

// conditions reads the lists of conditions on a request's host, method, path and headers.
func (r *SetReader) conditions(
	host, method, path func(Ref),
	header func(op policy.HeaderOp, name, value Ref),
) {
	c := &r.c
	r.refs(policy.MaxListItems, host)
	r.refs(policy.MaxListItems, method)
	r.patterns(path)
	for n := c.within(0, policy.MaxListItems); n > 0 && c.err == nil; n-- {
		op := policy.HeaderOp(r.oneOf(uint8(policy.HeaderPresent), uint8(policy.HeaderAbsent)))
		name := r.ref(policy.MaxText)
		header(op, name, r.ref(policy.MaxText))
	}
}

func (r *SetReader) oneOf(low, high uint8) uint8 {
	v := r.c.u8()
	if v < low || v > high {
		r.c.fail(ErrValue)
		return low
	}
	return v
}

// Failed reports whether there was an error; all later results are zero.
func (r *SetReader) Failed() bool { return r.c.err != nil }
