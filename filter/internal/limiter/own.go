package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// ownTake is the change that takes tokens of a bucket whose callers bring figures of their own:
// params are this caller's, most are the largest.
type ownTake struct {
	take
	params, most quota.Params
	// mark tells the limit from others, as the figures of a bucket do not: see bucketstore.Figures.
	mark  uint32
	share share
}

// Apply implements bucketstore.Change.
func (t *ownTake) Apply(e *bucketstore.Entry) bool {
	figures, s, was := t.begin(e)
	after, in, result := figures.TakeAs(was, s, t.now, t.cost)
	t.result = result
	restated := !result.Allowed && in != was // What is told of a wait goes by these figures.
	if !t.commit && result.Allowed {
		after, in = was.Drain(s, t.now), was
	}
	t.remaining = max(0, figures.Burst-in.TokensIn(after.Debt))
	t.fullAt = t.now + quota.Instant(in.Owed(after, t.now))
	stores := t.charges() || restated || e.New && after.Debt > 0 && !result.Allowed
	if stores {
		e.State, e.Params, e.Generation, e.Limit = after, in, max(e.Generation, t.generation), t.mark
	}
	return stores
}

// begin is what the request is decided by: its figures, and the bucket's state with those that it
// is counted in. An absent bucket owes by the largest figures what it may have owed by any.
func (t *ownTake) begin(e *bucketstore.Entry) (figures quota.Params, s quota.State, was quota.Params) {
	figures, s, was = t.params, e.State, e.Params
	switch {
	case e.New:
		s, was = quota.State{Debt: owed(t.most, e.Debtor, t.now), Last: t.now}, t.most
	case e.Limit != t.mark && t.generation < e.Generation: // A worker that has an older policy set than the bucket.
		figures = e.Params
	}
	if !t.share.of || !e.New && e.State.Last >= t.share.since {
		return figures, s, was
	}
	if e.New && t.share.empty {
		return figures, figures.Empty(t.now), figures
	}
	if own, fits := was.Restate(was.Drain(s, t.now), figures); fits {
		own.Debt = max(own.Debt, figures.UnitsFor(figures.Burst-min(t.share.holds, figures.Burst)))
		return figures, own, figures
	}
	return figures, s, was
}

// markOf tells limits of callers' own figures apart by the most that they allow; it is never 0.
func markOf(most *policy.Limit) uint32 {
	p := most.Params
	return (uint32(p.Num)*0x9e3779b1 ^ uint32(p.Den)*0x85ebca6b ^ uint32(p.Den>>32) ^ uint32(p.Burst)*0xc2b2ae35) | 1
}
