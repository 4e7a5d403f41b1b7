// Package decide has the rules of a decision that no bucket makes. The filter, the gRPC rate limit
// service and the simulation all decide by them, so that a request gets one answer at every door.
//
// The order of a decision is the same everywhere: a suspended limit refuses first, since no wait
// helps. Then a penalty, then a hit that refuses by itself, then the buckets: all are charged, or
// none. The refusal names the hit that has the longest wait.
package decide

import (
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// reasons are why hits refuse by themselves.
var reasons = [...]policy.Reason{
	match.RefusedAbsent:  policy.ReasonAbsent,
	match.RefusedCost:    policy.ReasonBadCost,
	match.Suspended:      policy.ReasonSuspended,
	match.RefusedSeveral: policy.ReasonSeveral,
}

// RefusesAlone reports whether a hit refuses its request whatever its bucket holds, and why.
func RefusesAlone(v match.Verdict) (reason policy.Reason, refuses bool) {
	return reasons[v], v != match.Limited
}

// BucketReason returns why a bucket of tokens refuses that asks for a wait.
func BucketReason(wait quota.Span) policy.Reason {
	if wait == quota.Never {
		return policy.ReasonTooDear
	}
	return policy.ReasonQuota
}

// Blame returns the reason that a refusal names. Places that other nodes hold, and may be idle
// there, are not the caller's own use, nor is a count that was lost.
func Blame(reason policy.Reason, doubt bool) policy.Reason {
	if doubt && (reason == policy.ReasonQuota || reason == policy.ReasonInFlight) {
		return policy.ReasonFailure
	}
	return reason
}

// LooksForPenalty reports whether a penalty of a caller can say anything about a request to which
// so many enforced limits apply. A request without any is not refused.
func LooksForPenalty(s *match.Subject, limits int) bool { return s.Shadow || limits > 0 }

// TriesRefused reports whether a limit is tried on a refused request: a candidate is, for which it
// counts as allowed, if its own policy refuses and no other does.
func TriesRefused(m *match.Hit, own, others bool) bool { return m.Candidate && own && !others }

// IsSameTrial reports whether two limits are tried together: of one policy in shadow, or of its
// candidate.
func IsSameTrial(a, b *match.Hit) bool { return a.Policy == b.Policy && a.Candidate == b.Candidate }

// CutTrial takes the limits that are tried together from the front of hits.
func CutTrial(hits []match.Hit) (run, rest []match.Hit) {
	n := 1
	for n < len(hits) && IsSameTrial(&hits[n], &hits[0]) {
		n++
	}
	return hits[:n], hits[n:]
}
