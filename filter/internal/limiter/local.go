package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// outcome is what a change has made of a bucket of this node's own.
type outcome struct {
	result quota.Result
	// remaining is the whole tokens that are left.
	remaining int64
	// fullAt is when the bucket will be full, by the caller's clock.
	fullAt quota.Instant
	// delay is how long the bucket's debt before this request takes to drain.
	delay quota.Span
	// turned: the request would have had to wait, and must not.
	turned bool
	// taken is what was taken, and since when it counts.
	taken quota.Reservation
}

// bucketChange is what all changes of such buckets have: whose tokens, and whether they are taken.
type bucketChange struct {
	outcome
	// generation orders changes of the bucket's figures.
	generation uint64
	now        quota.Instant
	cost       int64
	// charge: the tokens are taken, if there are enough.
	charge bool
}

// charged reports whether tokens were taken.
func (c *bucketChange) charged() bool { return c.charge && c.result.Allowed && c.cost > 0 }

// storeError returns err only if the change took tokens. Another one is decided all the same: only
// what it would have remembered is lost.
func (c *bucketChange) storeError(err error) error {
	if c.charged() {
		return err
	}
	return nil
}

// takeLocal decides by a bucket of this node alone.
func takeLocal(l *Limiter, req *Request, h *Hit, now quota.Instant, charging bool) finding {
	return l.takeBucket(req, h, nodeBucket{params: req.LimitOf(&h.Hit).Params}, now, charging)
}

// watchLocal is takeLocal for a policy in shadow or a candidate.
func watchLocal(l *Limiter, req *Request, m *match.Hit, now quota.Instant, charging bool) view {
	out, err := l.changeBucket(req, m, nodeBucket{params: req.LimitOf(m).Params}, now, charging)
	switch {
	case err != nil:
		return unknown
	case !out.result.Allowed:
		return refuses
	}
	if charging {
		l.reserve(req, m, out.taken)
	}
	req.use(m, out.remaining)
	return allows
}

// takeBucket decides by one of this node's own buckets, which may be its share of a central one.
func (l *Limiter) takeBucket(req *Request, h *Hit, part nodeBucket, now quota.Instant, charging bool) finding {
	out, err := l.changeBucket(req, &h.Hit, part, now, charging)
	if err != nil {
		return contended
	}
	if out.turned {
		l.Stats.TooManyWaiting++
		return h.refuse(policy.ReasonTooManyWaiting, quota.Second)
	}
	h.Known, h.Remaining = true, out.remaining
	h.Reset, h.Retry = quota.Span(max(out.fullAt-now, 0)), out.result.RetryAfter
	if !out.result.Allowed {
		return h.refuse(h.emptyOrTooDear(), h.Retry)
	}
	h.passed = charging
	if charging && !part.isShare {
		l.reserve(req, &h.Hit, out.taken)
	}
	if charging && part.isShare && h.Cost > 0 {
		l.leases.Owe(now, l.need(req, h), &h.ticket, h.holdsAtMost(req))
	}
	if charging && h.queued {
		h.release, h.params, h.after = now+quota.Instant(out.delay), l.local.used, l.local.after
	}
	return passes
}

// changeBucket looks at one of this node's own buckets, or charges it.
func (l *Limiter) changeBucket(
	req *Request, m *match.Hit, part nodeBucket, now quota.Instant, charging bool,
) (*outcome, error) {
	limit := req.LimitOf(m)
	do := bucketChange{generation: req.generation(m), now: now, cost: m.Cost, charge: charging}
	if limit.Algorithm.Windowed() && !part.isShare {
		return l.changeWindows(req, m, do)
	}
	kind := bucketstore.Local
	if part.isShare {
		kind = bucketstore.Share
	}
	if limit.Own > 0 {
		return l.changeOwn(req, m, do, kind, part)
	}
	t := &l.local
	*t = tokenChange{bucketChange: do, bucket: part}
	t.owing = req.rules.Index.Commit(req.policyOf(m)) != nil
	t.crowded = limit.Algorithm.Queues() && !m.Shadow && l.delays.Full()
	l.store.Figures = bucketstore.Figures{Params: part.params}
	return &t.outcome, t.storeError(l.store.Update(kind, m.Key, now, t))
}

// tokenChange is the change that takes tokens.
type tokenChange struct {
	bucketChange
	bucket nodeBucket
	// crowded: no request may be held back, so none may take a turn in a queue.
	crowded bool
	// owing: requests may have cost more than they had reserved, so the bucket may owe more than it
	// holds.
	owing bool

	// used are the figures that the bucket is counted in, after is its state behind this request.
	used  quota.Params
	after quota.State
}

// Apply implements bucketstore.Change.
func (c *tokenChange) Apply(e *bucketstore.Entry) bool {
	s := c.fit(e)
	p := c.used
	// The first use of a share in this failure.
	if c.bucket.isShare && (e.New || e.State.Last < c.bucket.since) {
		s = c.bucket.begin(p, s, c.now, e.New)
	}
	c.delay = p.Delay(s, c.now)
	c.turned = c.crowded && c.delay > 0 && c.cost > 0
	if c.turned {
		return false
	}
	if c.owing {
		c.after, c.result = p.TakeOwing(s, c.now, c.cost)
	} else {
		s = p.Refill(s, c.now)
		c.after, c.result = p.Take(s, c.now, c.cost)
	}
	if !c.charge {
		c.after = p.Drain(s, c.now)
	}
	c.taken = quota.Reservation{From: c.after.Last, Tokens: c.cost}
	c.remaining = max(0, p.Remaining(c.after))
	c.fullAt = c.now + quota.Instant(p.Owed(c.after, c.now))
	// An entry that starts in debt is stored also when it refuses, so that it can refill.
	indebted := e.New && c.after.Debt > 0 && !c.result.Allowed
	if !c.charged() && !indebted {
		return false
	}
	e.State, e.Params = c.after, p
	e.Generation, e.Limit = max(e.Generation, c.generation), 0
	return true
}

// fit sets the figures that the bucket is counted in from now on, and returns its state in them.
func (c *tokenChange) fit(e *bucketstore.Entry) quota.State {
	c.used = c.bucket.params
	switch {
	case e.New:
		return quota.State{Debt: owed(c.used, e.Debtor, c.now), Last: c.now}
	case e.Params == c.used:
		return e.State
	case c.generation >= e.Generation:
		return e.Params.Convert(e.State, c.now, c.used)
	}
	// A worker that has an older policy set than the bucket never converts it back.
	c.used = e.Params
	return e.State
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
