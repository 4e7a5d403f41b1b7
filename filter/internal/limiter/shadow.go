package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/ruleset"
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// watch tries the policies in shadow and the candidates of a request that all enforced ones have
// let through. Each is charged if it would have allowed the request, and counted either way.
func (l *Limiter) watch(req *Request, now quota.Instant) {
	for rest := req.shadows; len(rest) > 0; {
		var run []match.Hit
		run, rest = decide.CutTrial(rest)
		l.try(l.newTrial(req, run, now), req, now)
	}
}

// watchRefused tries the candidates of a request that only their own policy refuses: for them it
// counts as allowed. Of other policies whose buckets were not asked they look whether these hold
// enough.
func (l *Limiter) watchRefused(req *Request, now quota.Instant) {
	for rest := req.shadows; len(rest) > 0; {
		var run []match.Hit
		run, rest = decide.CutTrial(rest)
		if own, others := req.views(run[0].Policy); decide.TriesRefused(&run[0], own == refuses, others == refuses) {
			t := l.newTrial(req, run, now)
			l.look(t, req)
			l.try(t, req, now)
		}
	}
}

// views is what is known of a policy's own hits, and of those of all others.
func (req *Request) views(policy uint32) (own, others view) {
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

// try decides a trial as if its policy were enforced.
func (l *Limiter) try(t *trial, req *Request, now quota.Instant) {
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

// count counts what a policy in shadow, or a candidate, made of a request.
func (l *Limiter) count(req *Request, m *match.Hit, seen view) {
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

// The outcomes that a view counts as.
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
