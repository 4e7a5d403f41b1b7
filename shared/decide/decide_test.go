package decide_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// A hit refuses by itself unless its bucket decides, and each verdict has a reason of its own.
func TestRefusesAlone(t *testing.T) {
	seen := map[policy.Reason]bool{}
	for v := match.Limited; v <= match.RefusedSeveral; v++ {
		reason, refuses := decide.RefusesAlone(v)
		if refuses != (v != match.Limited) || seen[reason] {
			t.Errorf("verdict %d: %v, %v", v, reason, refuses)
		}
		seen[reason] = true
	}
}

// A caller is not blamed for the use of others, and only its own policy's refusal tries a
// candidate.
func TestBlameAndTrials(t *testing.T) {
	for _, reason := range []policy.Reason{policy.ReasonQuota, policy.ReasonInFlight} {
		if decide.Blame(reason, false) != reason || decide.Blame(reason, true) != policy.ReasonFailure {
			t.Errorf("%v is blamed on the caller, or not", reason)
		}
	}
	if got := decide.Blame(decide.BucketReason(quota.Never), true); got != policy.ReasonTooDear {
		t.Errorf("a request that is too dear is refused for %v", got)
	}
	hits := []match.Hit{{Policy: 1}, {Policy: 1}, {Policy: 1, Candidate: true}, {Policy: 2}}
	run, rest := decide.CutTrial(hits)
	if len(run) != 2 || len(rest) != 2 {
		t.Errorf("%d are tried together, %d are left", len(run), len(rest))
	}
	candidate := &hits[2]
	if !decide.TriesRefused(candidate, true, false) || decide.TriesRefused(candidate, true, true) ||
		decide.TriesRefused(&hits[0], true, false) {
		t.Error("another limit than a candidate alone is tried")
	}
	if shadow := (&match.Subject{Shadow: true}); !decide.LooksForPenalty(shadow, 0) ||
		decide.LooksForPenalty(&match.Subject{}, 0) || !decide.LooksForPenalty(&match.Subject{}, 1) {
		t.Error("a penalty refuses a request without limits, or none with")
	}
}
