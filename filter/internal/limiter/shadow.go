package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/ruleset"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// watch decides the policies in shadow and the candidates of a request that all enforced ones have
// let through. Each is charged if it would have allowed the request, and counted either way. It
// never waits: a central bucket of which this node holds no token is undetermined.
func (l *Limiter) watch(req *Request, now quota.Instant) {
	for rest := req.shadows; len(rest) > 0; {
		var run []match.Hit
		run, rest = cutRun(rest)
		l.count(req, &run[0], l.watchPolicy(req, run, now))
	}
}

// watchPolicy decides the limits of a policy in shadow, or of a candidate. A penalty that would
// have refused the request comes before them, and a refusal counts for the next one.
func (l *Limiter) watchPolicy(req *Request, run []match.Hit, now quota.Instant) view {
	m := &run[0]
	if m.Candidate || len(req.subjects) == 0 {
		return l.watchRun(req, run, now)
	}
	if s := req.subjectOf(m.Policy); s != nil && s.Penalised {
		return refuses
	}
	seen := l.watchRun(req, run, now)
	if seen == refuses && m.Verdict == match.Limited && m.Cost <= req.LimitOf(m).Params.Burst {
		l.offend(req, m.Policy, true, now)
	}
	return seen
}

// watchRefused decides the candidates of a request that only their own policy refuses: for them it
// counts as allowed. They are undetermined if another policy's bucket was not asked.
func (l *Limiter) watchRefused(req *Request, now quota.Instant) {
	for rest := req.shadows; len(rest) > 0; {
		var run []match.Hit
		run, rest = cutRun(rest)
		if !run[0].Candidate {
			continue
		}
		switch own, others := req.views(run[0].Policy); {
		case own != refuses || others == refuses:
		case others == unknown && run[0].Verdict == match.Limited:
			l.count(req, &run[0], unknown)
		default:
			l.count(req, &run[0], l.watchRun(req, run, now))
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

// cutRun takes the limits of one policy, or of its candidate, from the front of hits.
func cutRun(hits []match.Hit) (run, rest []match.Hit) {
	n := 1
	for n < len(hits) && hits[n].Policy == hits[0].Policy && hits[n].Candidate == hits[0].Candidate {
		n++
	}
	return hits[:n], hits[n:]
}

// watchRun decides limits that must all allow, and charges them if they do.
func (l *Limiter) watchRun(req *Request, run []match.Hit, now quota.Instant) view {
	seen, places := allows, len(req.places)
	if len(run) > 1 {
		for i := range run {
			seen = max(seen, l.watchOne(req, &run[i], now, false))
		}
	}
	for i := range run {
		if seen == allows {
			seen = l.watchOne(req, &run[i], now, true)
		}
	}
	if seen != allows {
		l.vacate(req, places, now)
	}
	return seen
}

func (l *Limiter) watchOne(req *Request, m *match.Hit, now quota.Instant, charging bool) view {
	if m.Verdict != match.Limited || m.Cost > req.LimitOf(m).Params.Burst {
		return refuses
	}
	seen := l.deciderOf(req, m).watch(l, req, m, now, charging)
	if seen == refuses {
		req.use(m, 0)
	}
	return seen
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
	req.rules.Tally.Add(m.Policy, outcomes[seen])
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
