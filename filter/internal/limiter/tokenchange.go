package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
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
	// heir: the bucket began with a debt that may be another's, and that is not over.
	heir bool
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

// nodeBucket is which bucket of this node's own decides: one that belongs to this node alone, or
// its share of a central one in a failure.
type nodeBucket struct {
	params quota.Params
	// isShare: it is a share of a central bucket. The other fields count only then.
	isShare bool
	// since is when the failure began.
	since quota.Instant
	// holds is the most that the whole bucket held by what the node knows.
	holds int64
	// empty: a share that was never used starts without a token.
	empty bool
}

// begin is the state with which a share that was not used yet in this failure goes on, in the
// figures that its bucket is counted in. It is never fuller than it was. A new one never was used
// at all.
func (s *nodeBucket) begin(p quota.Params, is quota.State, now quota.Instant, isNew bool) quota.State {
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
	s, converted := c.fit(e)
	p := c.used
	c.heir = e.Heir
	// The first use of a share in this failure.
	if c.bucket.isShare && (e.New || e.State.Last < c.bucket.since) {
		s = c.bucket.begin(p, s, c.now, e.New)
	}
	c.delay = p.Delay(s, c.now)
	c.turned = c.crowded && c.delay > 0 && c.cost > 0
	if c.turned {
		c.after = p.Drain(s, c.now)
		return converted && c.store(e)
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
	// An entry that starts in debt is stored also when it refuses, so that it can refill. So is one
	// whose limit was changed, since it refills by the new one from then on.
	changed := converted || e.New && c.after.Debt > 0
	return (c.charged() || changed && !c.result.Allowed) && c.store(e)
}

// store stores the state behind this request.
func (c *tokenChange) store(e *bucketstore.Entry) bool {
	e.State, e.Params = c.after, c.used
	e.Generation, e.Limit = max(e.Generation, c.generation), 0
	return true
}

// fit sets the figures that the bucket is counted in from now on. It returns its state in them, and
// whether they are others than before.
func (c *tokenChange) fit(e *bucketstore.Entry) (s quota.State, converted bool) {
	c.used = c.bucket.params
	switch {
	case e.New:
		return quota.State{Debt: owed(c.used, e.Debtor, c.now), Last: c.now}, false
	case e.Params == c.used:
		return e.State, false
	case c.generation >= e.Generation:
		beyond := int64(0)
		if c.owing {
			beyond = e.Params.Beyond(e.State)
		}
		return e.Params.Convert(e.State, c.now, c.used, beyond), true
	}
	// A worker that has an older policy set than the bucket never converts it back.
	c.used = e.Params
	return e.State, false
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
