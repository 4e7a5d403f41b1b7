package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/shared/quota"
)

// outcome is the result of a change to a bucket of this node's own.
type outcome struct {
	result quota.Result
	// remaining is the number of whole tokens left.
	remaining int64
	// fullAt is when the bucket will be full, by the caller's clock.
	fullAt quota.Instant
	// delay is the time in which the bucket's debt before this request drains.
	delay quota.Span
	// turned: the request would have to wait, and must not wait.
	turned bool
	// heir: the bucket began with a debt that another bucket may have left, and the debt is not
	// repaid yet.
	heir bool
	// taken are the taken tokens, and the instant from which they count.
	taken quota.Reservation
}

// bucketChange is the common part of all such changes: the cost, and whether it is charged.
type bucketChange struct {
	outcome
	// generation orders changes of the bucket's figures.
	generation uint64
	now        quota.Instant
	cost       int64
	// charge: the tokens are taken if there are enough.
	charge bool
}

// hasCharged reports whether tokens were taken.
func (c *bucketChange) hasCharged() bool { return c.charge && c.result.Allowed && c.cost > 0 }

// storeError returns err only if the change took tokens. Otherwise the decision holds all the same:
// only figures to remember are lost.
func (c *bucketChange) storeError(err error) error {
	if c.hasCharged() {
		return err
	}
	return nil
}

// nodeBucket identifies a bucket of this node's own: a local bucket, or the node's share of a
// central bucket in a failure.
type nodeBucket struct {
	params quota.Params
	// isShare: it is a share of a central bucket. The other fields count only then.
	isShare bool
	// since is when the failure began.
	since quota.Instant
	// holds is the highest level that the whole bucket may have had, as far as the node knows.
	holds int64
	// empty: a share that was never used starts without a token.
	empty bool
}

// firstState returns the first state of a share in this failure, in the figures of its bucket. The
// share is never fuller than its old state. IsNew: it was never used before.
func (s *nodeBucket) firstState(p quota.Params, is quota.State, now quota.Instant, isNew bool) quota.State {
	if isNew && s.empty {
		return p.Empty(now)
	}
	is = p.Refill(is, now)
	is.Debt = max(is.Debt, p.UnitsFor(p.Burst-min(s.holds, p.Burst)))
	return is
}

// tokenChange is the change that takes tokens.
type tokenChange struct {
	bucketChange
	bucket nodeBucket
	// crowded: no request may be held back, so no request may take a turn in a queue.
	crowded bool
	// owing: requests may have cost more than their reservations, so the bucket may owe more than
	// its burst.
	owing bool

	// used are the figures in which the bucket counts, and after its state after this request.
	used  quota.Params
	after quota.State
}

// Apply implements bucketstore.Change.
func (c *tokenChange) Apply(e *bucketstore.Entry) bool {
	s, converted := c.fitFigures(e)
	p := c.used
	c.heir = e.Heir
	// The first use of a share in this failure.
	if c.bucket.isShare && (e.New || e.State.Last < c.bucket.since) {
		s = c.bucket.firstState(p, s, c.now, e.New)
	}
	c.delay = p.Delay(s, c.now)
	c.turned = c.crowded && c.delay > 0 && c.cost > 0
	if c.turned {
		c.after = p.Drain(s, c.now)
		return converted && c.storeState(e)
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
	// An entry that starts in debt is stored even if it refuses, so that it can refill. An entry
	// whose limit has changed is stored too, because it refills by the new limit from now on.
	changed := converted || e.New && c.after.Debt > 0
	return (c.hasCharged() || changed && !c.result.Allowed) && c.storeState(e)
}

// storeState writes the state after this request into the entry.
func (c *tokenChange) storeState(e *bucketstore.Entry) bool {
	e.State, e.Params = c.after, c.used
	e.Generation, e.Limit = max(e.Generation, c.generation), 0
	return true
}

// fitFigures chooses the figures in which the bucket counts from now on. It returns the state in
// them, and whether the figures have changed.
func (c *tokenChange) fitFigures(e *bucketstore.Entry) (s quota.State, converted bool) {
	c.used = c.bucket.params
	switch {
	case e.New:
		return quota.State{Debt: debtUntil(c.used, e.Debtor, c.now), Last: c.now}, false
	case e.Params == c.used:
		return e.State, false
	case c.generation >= e.Generation:
		beyond := int64(0)
		if c.owing {
			beyond = e.Params.Beyond(e.State)
		}
		return e.Params.Convert(e.State, c.now, c.used, beyond), true
	}
	// A worker with an older policy set than the bucket never converts the bucket back.
	c.used = e.Params
	return e.State, false
}

// debtUntil returns the debt of a bucket that is full at debtor and not before.
func debtUntil(p quota.Params, debtor, now quota.Instant) int64 {
	if debtor <= now {
		return 0
	}
	whole := p.Burst * p.Den
	if int64(debtor-now) > whole/p.Num {
		return whole
	}
	return int64(debtor-now) * p.Num
}
