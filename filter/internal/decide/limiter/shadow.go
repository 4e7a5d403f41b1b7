package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// startTrials starts trials of the policies in shadow and of the candidates, for a request that all
// enforced policies allow. Each trial is charged if its policy would have allowed the request, and
// counted in either case.
func (l *Limiter) startTrials(req *Request, now quota.Instant) {
	for rest := req.shadows; len(rest) > 0; {
		var run []match.Hit
		run, rest = decide.CutTrial(rest)
		l.tryTrial(l.newTrial(req, run, now), req, now)
	}
}

// startTrialsOfRefused starts trials of the candidates of a request that only their own policy
// refuses: for these candidates the request counts as allowed. The trials also look at the unasked
// buckets of other policies, and check that these have enough tokens.
func (l *Limiter) startTrialsOfRefused(req *Request, now quota.Instant) {
	for rest := req.shadows; len(rest) > 0; {
		var run []match.Hit
		run, rest = decide.CutTrial(rest)
		if own, others := req.viewsOf(run[0].Policy); decide.TriesRefused(&run[0], own == refuses, others == refuses) {
			t := l.newTrial(req, run, now)
			l.addLooks(t, req)
			l.tryTrial(t, req, now)
		}
	}
}

// viewsOf returns the view of a policy's own hits, and the view of all other hits.
func (req *Request) viewsOf(policy uint32) (own, others view) {
	own, others = allows, allows
	for i := range req.Hits {
		h := &req.Hits[i]
		v := h.view
		if i == req.Refusing {
			v = refuses
		}
		if h.Policy == policy {
			own = max(own, v)
		} else {
			others = max(others, v)
		}
	}
	return own, others
}

// tryTrial decides a trial as if its policy were enforced.
func (l *Limiter) tryTrial(t *trial, req *Request, now quota.Instant) {
	for i := range t.Hits {
		if t.Hits[i].Verdict != match.Limited {
			l.failTrial(t, i, policy.ReasonAbsent, now)
			return
		}
	}
	if s := t.subjectOf(t.Hits[0].Policy); s != nil && s.Penalised {
		l.failTrial(t, 0, policy.ReasonPenalty, now)
		return
	}
	if l.decide(&t.Request, now) == Paused {
		l.await(t, req)
	}
}

// countTrial counts the outcome of a policy in shadow, or of a candidate, for a request.
func (l *Limiter) countTrial(req *Request, m *match.Hit, seen view) {
	s := &l.Stats
	stats := [...]*uint64{allows: &s.ShadowAllowed, unknown: &s.ShadowUndetermined, refuses: &s.ShadowRefused}
	outcomes := &shadowOutcomes
	if m.Candidate {
		stats = [...]*uint64{
			allows: &s.CandidateAllowed, unknown: &s.CandidateUndetermined, refuses: &s.CandidateRefused,
		}
		outcomes = &candidateOutcomes
	}
	*stats[seen]++
	req.rules.Tally.Add(m.Policy, outcomes[seen], 1)
}

// The ruleset outcomes of each view.
var (
	shadowOutcomes = [...]ruleset.Outcome{
		allows:  ruleset.CountShadowAllowed,
		unknown: ruleset.CountShadowUndetermined,
		refuses: ruleset.CountShadowRefused,
	}
	candidateOutcomes = [...]ruleset.Outcome{
		allows:  ruleset.CountCandidateAllowed,
		unknown: ruleset.CountCandidateUndetermined,
		refuses: ruleset.CountCandidateRefused,
	}
)
