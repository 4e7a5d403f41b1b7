package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// figuresChange is the change that takes tokens of a bucket whose callers bring figures of their
// own: the params of the bucket are this caller's, most are the largest.
type figuresChange struct {
	bucketChange
	most quota.Params
	// mark tells the limit from others, as the figures of a bucket do not: see bucketstore.Figures.
	mark   uint32
	bucket nodeBucket
}

// Apply implements bucketstore.Change.
func (c *figuresChange) Apply(e *bucketstore.Entry) bool {
	figures, s, was := c.begin(e)
	after, in, result := figures.TakeAs(was, s, c.now, c.cost)
	c.result, c.heir = result, e.Heir
	restated := !result.Allowed && in != was // The wait was computed in these figures.
	if !c.charge && result.Allowed {
		after, in = was.Drain(s, c.now), was
	}
	c.taken = quota.Reservation{From: after.Last, Tokens: c.cost}
	c.remaining = max(0, figures.Burst-in.TokensIn(after.Debt))
	c.fullAt = c.now + quota.Instant(in.Owed(after, c.now))
	changed := !e.New && e.Limit != c.mark && !c.older(e)
	stores := c.charged() || restated || (changed || e.New && after.Debt > 0) && !result.Allowed
	if stores {
		if !c.older(e) { // Otherwise the bucket stays that of the newer policy set's limit.
			e.Limit = c.mark
		}
		e.State, e.Params, e.Generation = after, in, max(e.Generation, c.generation)
	}
	return stores
}

// older reports whether the worker has an older policy set than the bucket, with another limit.
func (c *figuresChange) older(e *bucketstore.Entry) bool {
	return !e.New && e.Limit != c.mark && c.generation < e.Generation
}

// begin is what the request is decided by: its figures, and the bucket's state with those that it
// is counted in. An absent bucket owes by the largest figures what it may have owed by any.
func (c *figuresChange) begin(e *bucketstore.Entry) (figures quota.Params, s quota.State, was quota.Params) {
	figures, s, was = c.bucket.params, e.State, e.Params
	switch {
	case e.New:
		s, was = quota.State{Debt: owed(c.most, e.Debtor, c.now), Last: c.now}, c.most
	case c.older(e):
		figures = e.Params
	case e.Limit != c.mark: // The limit was changed.
		s, was = was.Convert(s, c.now, c.most, 0), c.most
	}
	if !c.bucket.isShare || !e.New && e.State.Last >= c.bucket.since {
		return figures, s, was
	}
	if e.New && c.bucket.empty {
		return figures, figures.Empty(c.now), figures
	}
	if own, fits := was.Restate(was.Drain(s, c.now), figures); fits {
		own.Debt = max(own.Debt, figures.UnitsFor(figures.Burst-min(c.bucket.holds, figures.Burst)))
		return figures, own, figures
	}
	return figures, s, was
}

// markOf tells limits of callers' own figures apart by the most that they allow; it is never 0.
func markOf(most *policy.Limit) uint32 {
	p := most.Params
	return (uint32(p.Num)*0x9e3779b1 ^ uint32(p.Den)*0x85ebca6b ^ uint32(p.Den>>32) ^ uint32(p.Burst)*0xc2b2ae35) | 1
}
