package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// figuresChange is the change that takes tokens of a bucket whose callers bring their own figures.
// The bucket's params are the figures of this caller, and most are the largest figures.
type figuresChange struct {
	bucketChange
	most quota.Params
	// mark identifies the limit, because the figures of a bucket do not: see bucketstore.Figures.
	mark   uint32
	bucket nodeBucket
}

// Apply implements bucketstore.Change.
func (c *figuresChange) Apply(e *bucketstore.Entry) bool {
	figures, s, was := c.firstState(e)
	after, in, result := figures.TakeAs(was, s, c.now, c.cost)
	c.result, c.heir = result, e.Heir
	restated := !result.Allowed && in != was // The wait was computed in these figures.
	if !c.charge && result.Allowed {
		after, in = was.Drain(s, c.now), was
	}
	c.taken = quota.Reservation{From: after.Last, Tokens: c.cost}
	c.remaining = max(0, figures.Burst-in.TokensIn(after.Debt))
	c.fullAt = c.now + quota.Instant(in.Owed(after, c.now))
	changed := !e.New && e.Limit != c.mark && !c.isOlder(e)
	stores := c.hasCharged() || restated || (changed || e.New && after.Debt > 0) && !result.Allowed
	if stores {
		if !c.isOlder(e) { // Otherwise the bucket keeps the limit of the newer policy set.
			e.Limit = c.mark
		}
		e.State, e.Params, e.Generation = after, in, max(e.Generation, c.generation)
	}
	return stores
}

// isOlder reports whether the worker has an older policy set than the bucket, with another limit.
func (c *figuresChange) isOlder(e *bucketstore.Entry) bool {
	return !e.New && e.Limit != c.mark && c.generation < e.Generation
}

// firstState returns the request's figures, the bucket's state, and the figures in which that state
// counts. An absent bucket starts with the debt that it may have had, in the largest figures.
func (c *figuresChange) firstState(e *bucketstore.Entry) (figures quota.Params, s quota.State, was quota.Params) {
	figures, s, was = c.bucket.params, e.State, e.Params
	switch {
	case e.New:
		s, was = quota.State{Debt: debtUntil(c.most, e.Debtor, c.now), Last: c.now}, c.most
	case c.isOlder(e):
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

// markOf returns a number that tells limits with callers' own figures apart by their largest
// figures. It is never 0.
func markOf(most *policy.Limit) uint32 {
	p := most.Params
	return (uint32(p.Num)*0x9e3779b1 ^ uint32(p.Den)*0x85ebca6b ^ uint32(p.Den>>32) ^ uint32(p.Burst)*0xc2b2ae35) | 1
}
