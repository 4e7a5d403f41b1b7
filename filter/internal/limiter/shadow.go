package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// watch decides the policies in shadow and the candidates of a request that all enforced ones have let through: each is charged
// if it would have allowed, and counted either way. It never waits; a central bucket without a token in hand is undetermined.
func (l *Limiter) watch(req *Request, now quota.Instant) {
	for i := range req.shadows {
		l.watchOne(req, &req.shadows[i], now)
	}
}

// watchRefused decides the candidates of a request that only their own policy refuses: for them it is as good as allowed. Where
// nobody has asked another policy's bucket they are undetermined.
func (l *Limiter) watchRefused(req *Request, now quota.Instant) {
	for i := range req.shadows {
		m := &req.shadows[i]
		if !m.Candidate {
			continue
		}
		own, others, open := false, false, false
		for j := range req.Hits {
			h := &req.Hits[j]
			refusing := h.view == refuses || j == req.Refusing
			own = own || refusing && h.Policy == m.Policy
			others = others || refusing && h.Policy != m.Policy
			open = open || !refusing && h.view == unknown && h.Policy != m.Policy
		}
		switch {
		case !own || others:
		case open && m.Verdict == match.Limited:
			l.countShadow(req, m, false, false)
		default:
			l.watchOne(req, m, now)
		}
	}
}

func (l *Limiter) watchOne(req *Request, m *match.Hit, now quota.Instant) {
	p, limit := req.policyOf(*m), req.limitOf(*m)
	switch {
	case m.Verdict != match.Limited, m.Cost > limit.Params.Burst:
		l.countShadow(req, m, true, false)
	case l.decidedBy(p) == byBucket:
		seen, err := l.takeLocal(req, m, false, limit.Params, now, true)
		l.countShadow(req, m, err == nil, seen.result.Allowed)
	default:
		l.watchCredit(req, m, now)
	}
}

func (l *Limiter) watchCredit(req *Request, m *match.Hit, now quota.Instant) {
	need := l.need(req, &Hit{Hit: *m})
	l.spend = leasing.Spend{Need: need, Now: now, Commit: m.Cost > 0, Watch: true}
	err := l.store.Update(bucketstore.Leased, m.Key, now, &l.spend)
	if err == nil && l.spend.Keep > 0 {
		l.desk.Keep(now, need, l.spend.Keep)
	}
	l.countShadow(req, m, err == nil && l.spend.State != leasing.Missing, l.spend.State == leasing.Ready)
}

func (l *Limiter) countShadow(req *Request, m *match.Hit, decided, allowed bool) {
	outcome, stat := CountShadowRefused, &l.Stats.ShadowRefused
	switch {
	case m.Candidate && !decided:
		outcome, stat = CountCandidateUndetermined, &l.Stats.CandidateUndetermined
	case m.Candidate && allowed:
		outcome, stat = CountCandidateAllowed, &l.Stats.CandidateAllowed
	case m.Candidate:
		outcome, stat = CountCandidateRefused, &l.Stats.CandidateRefused
	case !decided:
		outcome, stat = CountShadowUndetermined, &l.Stats.ShadowUndetermined
	case allowed:
		outcome, stat = CountShadowAllowed, &l.Stats.ShadowAllowed
	}
	*stat++
	req.rules.Tally.add(m.Policy, outcome)
}
