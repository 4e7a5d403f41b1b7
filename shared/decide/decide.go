// Package decide has the rules of a decision that do not need a bucket. The filter, the gRPC rate
// limit service and the simulation all use them, so that they all give a request the same answer.
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

// reasons are the reasons of hits that refuse by themselves.
var reasons = [...]policy.Reason{
	match.RefusedAbsent:  policy.ReasonAbsent,
	match.RefusedCost:    policy.ReasonBadCost,
	match.Suspended:      policy.ReasonSuspended,
	match.RefusedSeveral: policy.ReasonSeveral,
}

// RefusesAlone reports whether a hit refuses its request whatever is in its bucket, and why.
func RefusesAlone(v match.Verdict) (reason policy.Reason, refuses bool) {
	return reasons[v], v != match.Limited
}

// BucketReason returns why a bucket of tokens with this wait refuses.
func BucketReason(wait quota.Span) policy.Reason {
	if wait == quota.Never {
		return policy.ReasonTooDear
	}
	return policy.ReasonQuota
}

// Blame returns the reason in a refusal. Places that other nodes hold, perhaps idle, are not the
// caller's own use, nor is a lost count.
func Blame(reason policy.Reason, doubt bool) policy.Reason {
	if doubt && (reason == policy.ReasonQuota || reason == policy.ReasonInFlight) {
		return policy.ReasonFailure
	}
	return reason
}

// LooksForPenalty reports whether a penalty of a caller can matter for a request with this number
// of enforced limits. A request without any is not refused.
func LooksForPenalty(s *match.Subject, limits int) bool { return s.Shadow || limits > 0 }

// TriesRefused reports whether a limit is tried on a refused request. This is so for a candidate if
// its own policy refuses and no other policy does: for the candidate the request counts as allowed.
func TriesRefused(m *match.Hit, own, others bool) bool { return m.Candidate && own && !others }

// IsSameTrial reports whether two limits are tried together: the limits of one policy in shadow, or
// of its candidate.
func IsSameTrial(a, b *match.Hit) bool { return a.Policy == b.Policy && a.Candidate == b.Candidate }

// CutTrial takes the limits that are tried together from the front of hits.
func CutTrial(hits []match.Hit) (run, rest []match.Hit) {
	n := 1
	for n < len(hits) && IsSameTrial(&hits[n], &hits[0]) {
		n++
	}
	return hits[:n], hits[n:]
}
