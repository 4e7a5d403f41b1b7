package wire

import (
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// The extras of a policy are the fields that not every filter reads: a bit for each, then their
// values in the order of the bits. A filter refuses a snapshot with an unknown bit.
const (
	extraClientIPs = 1 << iota
	extraTiers
	extraContentType
	extraSteps
	extraFigures
	extraInFlight
	extraPenalty
	extraReserve
	extraAdaptive
	extraCommit
	extraReservation
	extraAlso
	extraUnfinished
	extraRoots
	// extraLiteral has no value: the body has a policy.FieldLiteral.
	extraLiteral

	// extrasKnown are those that this build reads.
	extrasKnown = extraLiteral<<1 - 1
)

// maxRoot bounds the root of a limit: a window, and one more for each limit that has had it.
const maxRoot = int64(quota.MaxWindow) + policy.MaxLimits

// formatOf is the lowest format in which a snapshot can be written.
func formatOf(s *Snapshot) byte {
	if setExtrasOf(s.Set) != 0 {
		return setExtrasFormat
	}
	if s.Packed.size() > 0 {
		return extrasFormat
	}
	for _, one := range s.Set.Identity.Consumer {
		if one.Kind == policy.SourceClientIP {
			return extrasFormat
		}
	}
	for _, one := range s.Set.Identity.Tier {
		if one.Kind == policy.SourceFound {
			return extrasFormat
		}
	}
	if s.Set.Headers.Legacy > policy.LegacyDiscord {
		return extrasFormat
	}
	for i := range s.Set.Policies {
		if hasExtras(&s.Set.Policies[i]) {
			return extrasFormat
		}
	}
	if len(s.Set.Show) > 0 {
		return showFormat
	}
	return snapshotFormat
}

// hasExtras reports whether a policy has a field that only the latest format can express.
func hasExtras(p *policy.Policy) bool {
	for _, part := range p.Partition {
		if part.Kind == policy.PartUpstream {
			return true
		}
	}
	for _, h := range p.Match.Headers {
		if h.Op == policy.HeaderAbsent {
			return true
		}
	}
	_, _, _, fields := policy.CutField([]byte(p.Response.Body))
	return fields || extrasOf(p) != 0
}

// extrasOf are the extras that a policy has.
func extrasOf(p *policy.Policy) (extras int64) {
	if len(p.Match.ClientIPs) > 0 {
		extras |= extraClientIPs
	}
	if len(p.Match.Tiers) > 0 {
		extras |= extraTiers
	}
	if p.Response.ContentType != "" {
		extras |= extraContentType
	}
	if _, _, old := localThen(&p.OnFailure); !old {
		extras |= extraSteps
	}
	if len(p.Figures) > 0 {
		extras |= extraFigures
	}
	if some, _ := p.InFlight(); some {
		extras |= extraInFlight
	}
	if p.Penalty != nil {
		extras |= extraPenalty
	}
	if len(p.Reserve) > 0 {
		extras |= extraReserve
	}
	if p.Adaptive.Max > 0 {
		extras |= extraAdaptive
	}
	if p.Commit.By != policy.CommitNever {
		extras |= extraCommit
	}
	if p.Cost.Source.Kind > policy.SourceHeader {
		extras |= extraReservation
	}
	if p.Cost.Also[0] != "" {
		extras |= extraAlso
	}
	if p.Commit.Unfinished != policy.UnfinishedDefault || p.Commit.Least > 0 {
		extras |= extraUnfinished
	}
	if len(p.Roots) > 0 {
		extras |= extraRoots
	}
	if p.Response.Literal {
		extras |= extraLiteral
	}
	return extras
}

func putExtras(dst []byte, p *policy.Policy) []byte {
	extras := extrasOf(p)
	dst = putUvarint(dst, extras)
	if extras&extraClientIPs != 0 {
		dst = putRanges(dst, p.Match.ClientIPs)
	}
	if extras&extraTiers != 0 {
		dst = putUvarint(dst, int64(tierSet(p.Match.Tiers)))
	}
	if extras&extraContentType != 0 {
		dst = putText(dst, p.Response.ContentType)
	}
	if extras&extraSteps != 0 {
		dst = putSteps(dst, &p.OnFailure)
	}
	if extras&extraFigures != 0 {
		dst = putFigures(dst, p)
	}
	if extras&extraInFlight != 0 {
		dst = putInFlight(dst, p)
	}
	if extras&extraPenalty != 0 {
		dst = putPenalty(dst, p.Penalty)
	}
	if extras&extraReserve != 0 {
		dst = putReserve(dst, p)
	}
	if extras&extraAdaptive != 0 {
		dst = putAdaptive(dst, p.Adaptive)
	}
	if extras&extraCommit != 0 {
		dst = putCommit(dst, &p.Commit)
	}
	if extras&extraReservation != 0 {
		dst = append(dst, byte(p.Cost.Source.Kind))
	}
	if extras&extraAlso != 0 {
		for _, name := range p.Cost.Also {
			dst = putText(dst, name)
		}
	}
	if extras&extraUnfinished != 0 {
		dst = putUnfinished(dst, &p.Commit)
	}
	if extras&extraRoots != 0 {
		for _, root := range p.Roots {
			dst = putUvarint(dst, int64(root))
		}
	}
	return dst
}

// tierSet is a set of tiers, a bit for each index.
func tierSet(tiers []int) (set uint32) {
	for _, tier := range tiers {
		set |= 1 << tier
	}
	return set
}

// Extras reads the extras of a policy; it must follow Lists. They are the address ranges of the
// policy, the set of its tiers (a bit for each index among the tiers), and the content type of its
// response. No ranges and a set of 0 mean no condition. A failure ladder that the policy's head
// cannot express replaces the one there. figures is called for each limit whose figures requests
// hold, with its index among all limits of the policy, inFlight for each limit of requests in
// flight, with its index and with how long a request counts at most, reserve for each class that
// something is kept for: the runs of limits then hold those of policy.Policy.Steps. adaptive is
// called for a policy whose one limit is adaptive, commit for one whose costs are known later,
// source for one whose cost is not in one header, and rule for a penalty.
func (r *SetReader) Extras(
	clientIP func(policy.Range),
	figures func(index int, f OwnFigures),
	inFlight func(index int, hold quota.Span),
	reserve func(class uint8),
	adaptive func(policy.Adaptive),
	commit func(*policy.Commit),
	source func(policy.SourceKind, Budgets),
	ladder *policy.OnFailure,
	rule func(penalty.Rule),
) (tiers uint32, contentType Ref) {
	if r.format < extrasFormat {
		return 0, Ref{}
	}
	extras := r.c.uvarint()
	if r.hasRoots = extras&extraRoots != 0; extras&^extrasKnown != 0 {
		r.c.fail(ErrValue)
		return 0, Ref{}
	}
	if extras&extraClientIPs != 0 {
		r.ranges(clientIP)
	}
	if extras&extraTiers != 0 {
		tiers = uint32(r.c.within(1, 1<<min(r.tiers, policy.MaxTiers)-1))
	}
	if extras&extraContentType != 0 {
		contentType = r.ref(policy.MaxText)
	}
	if extras&extraSteps != 0 {
		*ladder = r.steps()
	}
	if extras&extraFigures != 0 {
		r.figures(figures)
	}
	if extras&extraInFlight != 0 {
		r.inFlight(inFlight)
	}
	if extras&extraPenalty != 0 {
		r.penalty(rule)
	}
	if extras&extraReserve != 0 {
		r.reserve(reserve)
	}
	if extras&extraAdaptive != 0 {
		r.adaptive(adaptive)
	}
	var one *policy.Commit
	if extras&extraCommit != 0 {
		if one = r.commit(); r.c.err == nil {
			commit(one)
		}
	}
	if extras&(extraReservation|extraAlso) != 0 {
		source(r.budgets(extras))
	}
	if extras&extraUnfinished != 0 {
		r.unfinished(one)
	}
	return tiers, contentType
}

// Roots is how many limits of the policy have a policy.Limit.Root that is written: all or, if they
// are those of a new policy, none. It must follow Extras; then Root reads each.
func (r *SetReader) Roots() int {
	if !r.hasRoots || r.c.err != nil {
		return 0
	}
	r.hasRoots = false
	return int(r.policyLimits)
}

// Root reads the next root.
func (r *SetReader) Root() quota.Span { return quota.Span(r.c.within(0, maxRoot)) }

// Budgets are the names of further sources of a reservation; empty ones are none.
type Budgets [policy.MaxBudgets - 1]Ref

// budgets reads the kind of the sources of a reservation, and the further ones.
func (r *SetReader) budgets(extras int64) (kind policy.SourceKind, also Budgets) {
	kind = policy.SourceHeader
	if extras&extraReservation != 0 {
		kind = policy.SourceKind(r.oneOf(uint8(policy.SourceJWT), uint8(policy.SourceMetadata)))
		if kind != policy.SourceJWT && kind != policy.SourceMetadata {
			r.c.fail(ErrValue)
		}
	}
	if extras&extraAlso != 0 {
		for at := range also {
			also[at] = r.ref(policy.MaxText)
		}
	}
	return kind, also
}
