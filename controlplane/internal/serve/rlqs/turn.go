package rlqs

import (
	"context"

	"github.com/weir-proxy/weir/controlplane/internal/serve/assign"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// perTurn bounds the buckets of one turn, so that a turn ends soon.
	perTurn = 512
	// standFor is the life of an assignment without tokens. Each bucket is checked twice in that
	// time, even if its assignment lives longer, so that a change soon reaches the filter.
	standFor = 4 * quota.Second
)

// round is a bucket with its assignments of this turn.
type round struct {
	bucket *bucket
	assign.Round
	verdict Verdict
}

// Turn assigns the buckets that are due. It asks the clock again after it took the tokens: an
// assignment that took too long is not sent.
func (e *Engine) Turn(ctx context.Context, clock func() quota.Instant) {
	asked := clock()
	due := e.takeDue(asked)
	standings := make([]Standing, len(due))
	for i, b := range due {
		standings[i] = e.source.Stand(ctx, b.id)
	}
	rounds, asks := e.openRounds(asked, due, standings)
	if len(asks) > 0 {
		e.source.Take(ctx, asks)
	}
	e.closeRounds(asked, clock(), rounds, asks)
}

// takeDue takes the buckets that are due out of the order.
func (e *Engine) takeDue(now quota.Instant) (due []*bucket) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.order) > 0 && e.order[0].due <= now && len(due) < perTurn {
		b := e.order[0]
		e.order.remove(b)
		b.look = now + quota.Instant(standFor/2)
		due = append(due, b)
	}
	return due
}

// openRounds begins the rounds of the buckets that are due. asks has the limited buckets' asks, in
// the order of the rounds.
func (e *Engine) openRounds(now quota.Instant, due []*bucket, standings []Standing) (rounds []round, asks []Ask) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, b := range due {
		// Note the standing. Without a change, a bucket that was only to be checked needs no
		// assignment.
		s := &standings[i]
		b.noteStanding(now, s)
		if b.pool.Due() > now {
			e.settleBucket(b)
			continue
		}
		// Open the round. The filters that it forgets must abandon the bucket.
		if b.level >= 0 {
			s.Figures.Level = min(s.Figures.Level, b.level)
		}
		one, forgotten := b.pool.Open(now, s.Figures, e.jitter())
		for _, f := range forgotten {
			e.forgetFilter(b, f)
		}
		if len(one.Filters) == 0 {
			e.settleBucket(b)
			continue
		}
		// Only a limited bucket needs tokens.
		if s.Verdict != Limited {
			one.TTL, one.Span = standFor, standFor/2
		}
		rounds = append(rounds, round{b, one, s.Verdict})
		if s.Verdict == Limited {
			asks = append(asks, Ask{ID: b.id, Limits: s.Limits, Want: one.Sum(), Lease: assign.Lease(one.TTL)})
		}
	}
	return rounds, asks
}

// noteStanding notes the standing of a bucket. If it has changed since the last look, all filters
// of the bucket are assigned anew.
func (b *bucket) noteStanding(now quota.Instant, s *Standing) {
	if s.Verdict == Unknown || s.Verdict == b.verdict && s.Figures == b.figures {
		return
	}
	b.verdict, b.figures = s.Verdict, s.Figures
	b.pool.Hurry(now)
}

// forgetFilter removes the bucket from a filter that the pool has already forgotten. A filter that
// is not silent gets a message to forget it too.
func (e *Engine) forgetFilter(b *bucket, f assign.Forgotten) {
	e.holders--
	if o := e.outlets[f.Filter]; o != nil {
		delete(o.buckets, b.id.Name)
	}
	if !f.Silent {
		e.sendAction(f.Filter, Action{Kind: Abandon, ID: b.id, By: quota.Forever})
	}
}

// closeRounds ends the rounds, and sends their assignments.
func (e *Engine) closeRounds(asked, now quota.Instant, rounds []round, asks []Ask) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range rounds {
		var ask Ask
		if r.verdict == Limited {
			ask, asks = asks[0], asks[1:]
			if ask.Failed {
				r.bucket.verdict = Unknown // The next standing makes all its filters due.
			} else {
				r.bucket.level = ask.Level
			}
		}
		shares := r.bucket.pool.Close(asked, r.Round, ask.Granted)
		for i, filter := range r.Filters {
			if action, ok := r.action(shares[i], ask.Failed, asked); ok {
				e.sendAction(filter, action)
			}
		}
		e.settleBucket(r.bucket)
	}
}

// action returns the action for a filter that may admit share requests; ok is false if there is
// nothing to send.
func (r *round) action(share int64, failed bool, asked quota.Instant) (a Action, ok bool) {
	a = Action{ID: r.bucket.id, TTL: standFor, By: quota.Forever}
	switch {
	case r.verdict == Unknown || failed:
		return a, false
	case r.verdict == Allowed:
		a.Kind = Allow
	case r.verdict == Denied:
		a.Kind = Deny
	case share == 0:
		a.Kind, a.TTL = Deny, r.TTL
	default:
		a.Kind, a.TTL, a.Bucket = Assign, r.TTL, assign.Fill(share, r.TTL)
		a.By = asked + quota.Instant(assign.Late/2)
	}
	return a, true
}

func (e *Engine) sendAction(filter uint64, a Action) {
	if o := e.outlets[filter]; o != nil {
		o.to.Offer([]Action{a})
	}
}
