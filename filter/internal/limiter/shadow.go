package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/filter/internal/ruleset"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// watch decides the policies in shadow and the candidates of a request that all enforced ones have let through: each is charged
// if it would have allowed, and counted either way. It never waits; a central bucket without a token in hand is undetermined.
func (l *Limiter) watch(req *Request, now quota.Instant) {
	for rest := req.shadows; len(rest) > 0; {
		var run []match.Hit
		run, rest = cutRun(rest)
		l.count(req, &run[0], l.watchRun(req, run, now))
	}
}

// watchRefused decides the candidates of a request that only their own policy refuses: for them it is as good as allowed. Where
// nobody has asked another policy's bucket they are undetermined.
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
	seen := allows
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
	return seen
}

func (l *Limiter) watchOne(req *Request, m *match.Hit, now quota.Instant, commit bool) view {
	p, limit := req.policyOf(*m), req.LimitOf(m)
	switch {
	case m.Verdict != match.Limited, m.Cost > limit.Params.Burst:
		return refuses
	case l.decidedBy(p) == byBucket:
		seen, err := l.takeLocal(req, m, share{}, limit.Params, now, commit)
		switch {
		case err != nil:
			return unknown
		case !seen.result.Allowed:
			return refuses
		}
		return allows
	}
	if l.decidedBy(p) == byTab {
		use, err := l.useTab(req, m, now, commit)
		switch {
		case err != nil, use.Asks:
			return unknown
		case !use.Result.Allowed:
			return refuses
		}
		return allows
	}
	need := l.need(req, &Hit{Hit: *m})
	l.spend = leasing.Spend{Need: need, Now: now, Commit: commit && m.Cost > 0, Watch: true}
	if err := l.store.Update(bucketstore.Leased, m.Key, now, &l.spend); err != nil {
		return unknown
	}
	if l.spend.Keep > 0 {
		l.desk.Keep(need, l.spend.Keep, l.spend.KeepBy)
	}
	return [...]view{leasing.Ready: allows, leasing.Exhausted: refuses, leasing.Missing: unknown}[l.spend.State]
}

// count counts what a policy in shadow, or a candidate, made of a request.
func (l *Limiter) count(req *Request, m *match.Hit, seen view) {
	s := &l.Stats
	outcomes := [...]ruleset.Outcome{allows: ruleset.CountShadowAllowed, unknown: ruleset.CountShadowUndetermined, refuses: ruleset.CountShadowRefused}
	stats := [...]*uint64{allows: &s.ShadowAllowed, unknown: &s.ShadowUndetermined, refuses: &s.ShadowRefused}
	if m.Candidate {
		outcomes = [...]ruleset.Outcome{allows: ruleset.CountCandidateAllowed, unknown: ruleset.CountCandidateUndetermined, refuses: ruleset.CountCandidateRefused}
		stats = [...]*uint64{allows: &s.CandidateAllowed, unknown: &s.CandidateUndetermined, refuses: &s.CandidateRefused}
	}
	*stats[seen]++
	req.rules.Tally.Add(m.Policy, outcomes[seen])
}
