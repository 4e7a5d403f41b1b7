package simulation

import (
	"sync"
	"testing"

	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/quota"
)

// newCalmWorld chooses a run of optimistic policies in which nothing goes wrong.
func newCalmWorld(seed uint64) *world {
	w := choose(seed, nothing)
	w.onlyLate, w.faults, w.hoarding, w.callers = true, faults{}, 0, nil
	for i := range w.policies {
		s := &w.policies[i]
		s.own, s.mode, s.algorithm, s.failure = false, "optimistic", "token_bucket", `{"then":"local"}`
		w.addCallers(i, *s)
	}
	w.watch = w.judgeQuota
	w.start()
	return w
}

// judgeQuota checks a refusal because of a used-up quota against the control plane: its tokens,
// less the use that nodes have not reported, must be fewer than the cost of the request. A node may
// learn of earned tokens a little later: by the time of an answer, and because its clock may be
// slow.
func (w *world) judgeQuota(d filtertest.Decision) {
	if d.Allowed || d.Reason != "quota" {
		return
	}
	w.counts.usedUp++
	for _, h := range d.Hits {
		limit, ok := w.limitOf(h.Generation, h.Limit)
		if !ok {
			continue
		}
		p := limit.Params
		holds := w.store.Holds(h.Bucket, p.Burst)
		for _, n := range w.nodes {
			holds -= n.process.Unreported(h.Bucket)
		}
		if holds < h.Cost+1+p.Burst/1000+p.Earned(2*(2*w.way+w.takes)+10*quota.Millisecond) {
			return // This bucket is used up.
		}
	}
	w.fail("node refuses %v as used up, and the control plane has the tokens", d.Hits)
}

// No node refuses a caller because its quota is used up while the control plane has the tokens: not
// a node that knows nothing yet, nor a node that has used its slack, in bursts, at any cost.
func TestOptimisticRefusesNoneThatHasTokens(t *testing.T) {
	var mu sync.Mutex
	var sent, usedUp, waited, byShare, failures int
	runSeeds(*first, *seeds/10, newCalmWorld, func(w *world) bool {
		mu.Lock()
		defer mu.Unlock()
		if w.problem != "" {
			t.Error(w.report())
			failures++
			return failures < 3
		}
		sent, usedUp, waited = sent+w.counts.sent, usedUp+w.counts.usedUp, waited+w.counts.by[filtertest.Central]
		byShare += w.counts.by[filtertest.Share]
		return true
	})
	t.Logf("of %d requests %d were refused as used up; %d passed by an answer, %d by a share", sent, usedUp, waited,
		byShare)
	if *seeds >= 500 && (usedUp < sent/20 || waited < sent/200) {
		t.Error("the runs are too tame")
	}
}
