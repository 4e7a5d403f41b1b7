package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// watch decides the policies in shadow of a request that all enforced ones have let through: each is charged if it would have
// allowed, and counted either way. It never waits; a central bucket without a token in hand is undetermined.
func (l *Limiter) watch(req *Request, now quota.Instant) {
	for i := range req.shadows {
		m := &req.shadows[i]
		p := req.policyOf(*m)
		switch {
		case m.Verdict != match.Limited, m.Cost > req.limitOf(*m).Params.Burst:
			l.countShadow(req, m, true, false)
		case l.decidedBy(p) == byBucket:
			l.local = localTake{params: req.limitOf(*m).Params, generation: req.rules.Generation, now: now, cost: m.Cost, commit: true}
			err := l.store.Update(bucketstore.Local, m.Key, now, &l.local)
			l.countShadow(req, m, err == nil, l.local.result.Allowed)
		default:
			l.watchCredit(req, m, now)
		}
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
	outcome := CountShadowRefused
	switch {
	case !decided:
		l.Stats.ShadowUndetermined++
		outcome = CountShadowUndetermined
	case allowed:
		l.Stats.ShadowAllowed++
		outcome = CountShadowAllowed
	default:
		l.Stats.ShadowRefused++
	}
	req.rules.Tally.add(m.Policy, outcome)
}
