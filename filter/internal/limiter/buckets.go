package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// localTake is the change that looks at one of this node's own buckets, and with commit charges it.
type localTake struct {
	params     quota.Params
	generation uint64
	now        quota.Instant
	cost       int64
	commit     bool

	result    quota.Result
	remaining int64
	reset     quota.Span
}

// Apply implements bucketstore.Change.
func (t *localTake) Apply(e *bucketstore.Entry) bool {
	p, s := t.params, e.State
	generation := t.generation
	switch {
	case e.New && e.Kind == bucketstore.Share:
		// A full start would hand out up to one more burst at the moment of failure.
		s = p.Empty(t.now)
	case e.New:
		s = quota.State{Debt: owed(p, e.Debtor, t.now), Last: t.now}
	case e.Params != p && t.generation >= e.Generation:
		s = e.Params.Convert(s, t.now, p)
	case e.Params != p:
		// A worker that has an older policy set than the bucket never converts it back.
		p, generation = e.Params, e.Generation
	}
	var charged quota.State
	if charged, t.result = p.Take(s, t.now, t.cost); t.commit {
		s = charged
	} else {
		s = p.Refill(s, t.now)
	}
	t.remaining, t.reset = p.Remaining(s), p.ResetAfter(s, t.now)
	e.State, e.Params, e.Generation = s, p, generation
	// An entry that starts in debt is stored also when it refuses, so that it can refill.
	indebted := e.New && s.Debt > 0
	return t.commit && t.result.Allowed && t.cost > 0 || indebted && !t.result.Allowed
}

// owed is the debt of a bucket that is not full before debtor.
func owed(p quota.Params, debtor, now quota.Instant) int64 {
	if debtor <= now {
		return 0
	}
	whole := p.Burst * p.Den
	if int64(debtor-now) > whole/p.Num {
		return whole
	}
	return int64(debtor-now) * p.Num
}

// climb takes a hit whose tokens cannot be had from the centre to the step of its failure ladder.
func (l *Limiter) climb(req *Request, i int, now, since quota.Instant) {
	h := &req.Hits[i]
	failure := req.policyOf(h.Hit).OnFailure
	h.settled = false
	switch {
	case failure.Then == policy.ThenLocal, now-since < quota.Instant(failure.LocalFor):
		h.by = byShare
		l.Stats.FailureShare++
	case failure.Then == policy.ThenAllow:
		h.by = byAllow
		l.Stats.FailureAllowed++
	default:
		h.by = byDeny
	}
}
