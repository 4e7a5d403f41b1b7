package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// The parts of a policy are fields that few policies have. A bit for each part defines which parts
// follow, in the order of the bits. A filter refuses a snapshot with an unknown bit.
const (
	partClientIPs = 1 << iota
	partTiers
	partContentType
	partFigures
	partInFlight
	partPenalty
	partReserve
	partAdaptive
	partCommit
	partAlso
	partUnfinished
	partRoots
	// partLiteral has no value: the body has a policy.FieldLiteral.
	partLiteral

	// partsKnown are the parts that this build reads.
	partsKnown = partLiteral<<1 - 1
)

// maxRoot bounds the root of a limit: a window, and one more for each limit that had that root.
const maxRoot = int64(quota.MaxWindow) + policy.MaxLimits

// putPolicyParts appends the bits of the parts that a policy has, and the parts.
func putPolicyParts(dst []byte, p *policy.Policy) []byte {
	at, parts := len(dst), 0
	dst = append(dst, 0, 0) // The bits, below.
	if len(p.Match.ClientIPs) > 0 {
		parts |= partClientIPs
		dst = putRanges(dst, p.Match.ClientIPs)
	}
	if len(p.Match.Tiers) > 0 {
		parts |= partTiers
		dst = putUvarint(dst, int64(tierSet(p.Match.Tiers)))
	}
	if p.Response.ContentType != "" {
		parts |= partContentType
		dst = putText(dst, p.Response.ContentType)
	}
	if len(p.Figures) > 0 {
		parts |= partFigures
		dst = putFigures(dst, p)
	}
	if some, _ := p.InFlight(); some {
		parts |= partInFlight
		dst = putInFlight(dst, p)
	}
	if p.Penalty != nil {
		parts |= partPenalty
		dst = putPenalty(dst, p.Penalty)
	}
	if len(p.Reserve) > 0 {
		parts |= partReserve
		dst = putReserve(dst, p)
	}
	if p.Adaptive.Max > 0 {
		parts |= partAdaptive
		dst = putAdaptive(dst, p.Adaptive)
	}
	if p.Commit.By != policy.CommitNever {
		parts |= partCommit
		dst = putCommit(dst, &p.Commit)
	}
	if p.Cost.Also[0] != "" {
		parts |= partAlso
		dst = putBudgets(dst, &p.Cost)
	}
	if p.Commit.Unfinished != policy.UnfinishedDefault || p.Commit.Least > 0 {
		parts |= partUnfinished
		dst = putUnfinished(dst, &p.Commit)
	}
	if len(p.Roots) > 0 {
		parts |= partRoots
		for _, root := range p.Roots {
			dst = putUvarint(dst, int64(root))
		}
	}
	if p.Response.Literal {
		parts |= partLiteral
	}
	binary.LittleEndian.PutUint16(dst[at:], uint16(parts))
	return dst
}

// tierSet returns a set of tiers, a bit for each index.
func tierSet(tiers []int) (set uint32) {
	for _, tier := range tiers {
		set |= 1 << tier
	}
	return set
}

// Parts reads the parts of a policy; it must follow Lists. It returns the set of the policy's tiers
// (a bit for each index among the tiers) and the content type of its response. No ranges and a set
// of 0 mean no condition. figures is called for each limit with figures in requests, with its index
// among all limits of the policy; inFlight for each limit of requests in flight, with its index and
// the longest time that a request counts; reserve for each class with a reserve, and then the runs
// of limits have the limits of policy.Policy.Steps; adaptive for a policy whose single limit is
// adaptive; commit for a policy whose costs are known later, also if it reserves by several
// sources; rule for a penalty.
func (r *SetReader) Parts(
	clientIP func(policy.Range),
	figures func(index int, f OwnFigures),
	inFlight func(index int, hold quota.Span),
	reserve func(class uint8),
	adaptive func(policy.Adaptive),
	commit func(*policy.Commit),
	also func(Budgets),
	rule func(penalty.Rule),
) (tiers uint32, contentType Ref) {
	// The bits say which parts follow.
	parts := int(r.c.u8()) | int(r.c.u8())<<8
	if r.hasRoots = parts&partRoots != 0; parts&^partsKnown != 0 {
		r.c.failWith(ErrValue)
		return 0, Ref{}
	}
	if parts&partClientIPs != 0 {
		r.readRanges(clientIP)
	}
	if parts&partTiers != 0 {
		tiers = uint32(r.c.readWithin(1, 1<<min(r.tiers, policy.MaxTiers)-1))
	}
	if parts&partContentType != 0 {
		contentType = r.readRef(policy.MaxText)
	}
	if parts&partFigures != 0 {
		r.readFigures(figures)
	}
	if parts&partInFlight != 0 {
		r.readInFlight(inFlight)
	}
	if parts&partPenalty != 0 {
		r.readPenalty(rule)
	}
	if parts&partReserve != 0 {
		r.readReserve(reserve)
	}
	if parts&partAdaptive != 0 {
		r.readAdaptive(adaptive)
	}
	// The parts of the cost belong together.
	var one *policy.Commit
	if parts&partCommit != 0 {
		if one = r.readCommit(); r.c.err == nil {
			commit(one)
		}
	}
	if parts&partAlso != 0 {
		also(r.readBudgets())
	}
	if parts&partUnfinished != 0 {
		r.readUnfinished(one)
	}
	return tiers, contentType
}

// Roots returns the number of written policy.Limit.Roots of the policy: all limits or, if they have
// the roots of a new policy, none. It must follow Parts; then Root reads each root.
func (r *SetReader) Roots() int {
	if !r.hasRoots || r.c.err != nil {
		return 0
	}
	r.hasRoots = false
	return int(r.policyLimits)
}

// Root reads the next root.
func (r *SetReader) Root() quota.Span { return quota.Span(r.c.readWithin(0, maxRoot)) }

func putBudgets(dst []byte, c *policy.Cost) []byte {
	for _, name := range c.Also {
		dst = putText(dst, name)
	}
	return dst
}

// Budgets are the names of further sources of a reservation; empty names are unused.
type Budgets [policy.MaxBudgets - 1]Ref

// readBudgets reads the further sources of a reservation.
func (r *SetReader) readBudgets() (also Budgets) {
	for at := range also {
		also[at] = r.readRef(policy.MaxText)
	}
	return also
}
