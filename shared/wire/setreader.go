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
// It passes on each element as it reads it. So the filter, which has tens of thousands of policies
// in tables of its own, never has a second copy of them as values. All texts alias the message.
// After an error all results are zero and no function is called back; End returns the error.
type SetReader struct {
	c cursor
	// tiers and limits are the numbers of tiers and limits that have been read.
	tiers, limits int64
	// policyLimits is the number of limits of the last policy that was read, including the limits
	// of all tiers and of the candidate.
	policyLimits int64
	// parts has the bits of the set's parts. hasRoots means that the parts of the policy end with
	// roots.
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

// PolicyHead is a policy without its lists. An Envoy has many, so small fields are next to each
// other.
type PolicyHead struct {
	Name      Ref
	OnFailure policy.OnFailure
	Cost      Cost
	IfAbsent  policy.IfAbsent
	Mode      policy.Mode
	Enforced  policy.Enforced
	// ByTier means that each tier has a run of limits.
	ByTier bool
	// Status, Body and ContentType are fields of policy.Response; ContentType is read with the
	// parts.
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
// texts cost the collector nothing.
type Ref struct{ Off, Len uint32 }

// Of returns the text in the message b.
func (r Ref) Of(b []byte) []byte { return b[r.Off : r.Off+r.Len] }

// readPattern reads a path pattern, which starts with a slash.
func (r *SetReader) readPattern() Ref {
	ref := r.readRef(policy.MaxText)
	if r.c.err == nil && (ref.Len == 0 || r.c.buf[ref.Off] != '/') {
		r.c.failWith(ErrValue)
	}
	return ref
}

func (r *SetReader) readRef(high int) Ref {
	b := r.c.readText(high)
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
	h := SetHead{TrustedHops: int(c.readWithin(0, 64)), IPv6Prefix: int(c.readWithin(1, 128))}
	r.readSources(policy.OfConsumers, consumer)
	r.readRefs(policy.MaxTiers, func(ref Ref) {
		if r.tiers++; ref.Len == 0 {
			c.failWith(ErrValue)
		}
		tier(ref)
	})
	h.DefaultTier = int(c.readWithin(0, max(r.tiers-1, 0)))
	r.readSources(policy.OfTiers, tierSource)
	standard := r.readOneOf(0, 3)
	h.Headers.Standard, h.Headers.Unmarked = dialect.Standard(standard&1), standard > 1
	h.Headers.Legacy = dialect.Legacy(r.readOneOf(0, uint8(len(dialect.Legacies)-1)))
	return h
}

// Access reads the lists of banned and exempt callers, and calls back for each range of addresses
// and each text. It must follow Head.
func (r *SetReader) Access(banned, exempt func(policy.Range), path, method, consumer func(Ref)) {
	r.readRanges(banned)
	r.readRanges(exempt)
	r.readPatterns(path)
	r.readRefs(policy.MaxListItems, method)
	r.readRefs(policy.MaxConsumers, consumer)
}

// readPatterns reads a list of path patterns; readRefs reads a list of any texts.
func (r *SetReader) readPatterns(each func(Ref)) {
	for n := r.c.readWithin(0, policy.MaxListItems); n > 0 && r.c.err == nil; n-- {
		if ref := r.readPattern(); r.c.err == nil {
			each(ref)
		}
	}
}

func (r *SetReader) readRefs(limit int64, each func(Ref)) {
	for n := r.c.readWithin(0, limit); n > 0 && r.c.err == nil; n-- {
		if ref := r.readRef(policy.MaxText); r.c.err == nil {
			each(ref)
		}
	}
}

// Policies returns the number of policies that follow. It must be called after Access.
func (r *SetReader) Policies() int { return int(r.c.readWithin(0, policy.MaxPolicies)) }

// Policy reads the next policy up to its lists, and calls back before each run of limits and for
// each limit. The runs are the policy's run, or one run for each tier, and then the candidate's
// run. Runs of a tier and of the candidate may be empty. Lists must follow.
func (r *SetReader) Policy(run func(), limit func(policy.Limit)) PolicyHead {
	c := &r.c
	p := PolicyHead{Name: r.readRef(63)}
	if p.Name.Len == 0 {
		c.failWith(ErrValue)
	}
	p.IfAbsent = policy.IfAbsent(r.readOneOf(0, uint8(policy.AbsentShared)))
	p.Mode = policy.Mode(r.readOneOf(0, uint8(policy.ModeOptimistic)))
	p.Enforced = policy.Enforced(c.u8())
	if p.Enforced > policy.EnforcedAll && p.Enforced != policy.EnforcedOff {
		c.failWith(ErrValue)
	}
	p.OnFailure = r.readSteps()
	counting := policy.Counting{
		Algorithm:  quota.Algorithm(r.readOneOf(0, uint8(quota.AlgorithmCount-1))),
		Subwindows: int(r.readOneOf(0, quota.MaxSubwindows)),
		Calendar:   r.readOneOf(0, 1) == 1, MaxWait: quota.Span(c.readWithin(0, int64(quota.Hour))),
	}
	p.ByTier = r.readOneOf(0, 1) == 1
	r.readRuns(p.ByTier, counting, run, limit)
	p.Cost.Fixed = c.readWithin(0, policy.MaxCost)
	p.Cost.Kind, p.Cost.Source = r.readSource()
	p.Cost.Max = c.readWithin(0, policy.MaxCost)
	p.Cost.Invalid = c.readWithin(0, policy.MaxCost)
	p.Cost.DenyInvalid = r.readOneOf(0, 1) == 1
	p.Status = r.readStatus()
	p.Body = r.readRef(policy.MaxBody)
	return p
}

// readStatus reads the status of a refusal, 0 for the usual status.
func (r *SetReader) readStatus() int {
	status := int(r.c.readWithin(0, 599))
	if status != 0 && status < 400 {
		r.c.failWith(ErrValue)
	}
	return status
}

func (r *SetReader) readRuns(byTier bool, counting policy.Counting, run func(), limit func(policy.Limit)) {
	c := &r.c
	own, least, before := int64(1), int64(1), r.limits
	if byTier {
		own, least = r.tiers, 0
	}
	for i := int64(0); i <= own && c.err == nil; i++ {
		if i == own {
			if r.limits == before {
				c.failWith(ErrValue) // A policy without any limit.
			}
			least = 0
		}
		run()
		for n := c.readWithin(least, policy.MaxLimits); n > 0 && c.err == nil; n-- {
			if r.limits++; r.limits > policy.MaxSetLimits {
				c.failWith(ErrValue)
			}
			limit(r.readLimit(counting))
		}
	}
	r.policyLimits = r.limits - before
}

func (r *SetReader) readLimit(counting policy.Counting) policy.Limit {
	c := &r.c
	units, window, burst := c.readUvarint(), quota.Span(c.readUvarint()), c.readUvarint()
	if c.err != nil {
		return policy.Limit{}
	}
	l, err := policy.NewLimit(counting, units, window, burst)
	if err != nil {
		c.failWith(ErrValue)
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
	r.readConditions(host, method, path, header)
	for n := c.readWithin(0, policy.MaxListItems); n > 0 && c.err == nil; n-- {
		kind := policy.PartKind(r.readOneOf(uint8(policy.PartClientIP), uint8(policy.PartEnd-1)))
		if kind == policy.PartTier && r.tiers == 0 {
			c.failWith(ErrValue)
		}
		part(kind, r.readRef(policy.MaxText))
	}
}

// readConditions reads the lists of conditions on a request's host, method, path and headers.
func (r *SetReader) readConditions(
	host, method, path func(Ref),
	header func(op policy.HeaderOp, name, value Ref),
) {
	c := &r.c
	r.readRefs(policy.MaxListItems, host)
	r.readRefs(policy.MaxListItems, method)
	r.readPatterns(path)
	for n := c.readWithin(0, policy.MaxListItems); n > 0 && c.err == nil; n-- {
		op := policy.HeaderOp(r.readOneOf(uint8(policy.HeaderPresent), uint8(policy.HeaderAbsent)))
		name := r.readRef(policy.MaxText)
		header(op, name, r.readRef(policy.MaxText))
	}
}

func (r *SetReader) readOneOf(low, high uint8) uint8 {
	v := r.c.u8()
	if v < low || v > high {
		r.c.failWith(ErrValue)
		return low
	}
	return v
}

// Failed reports whether there was an error; all later results are zero.
func (r *SetReader) Failed() bool { return r.c.err != nil }
