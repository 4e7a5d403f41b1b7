package client

import (
	"context"
	"time"
)

// Wait waits until the request may be sent. After the request, call Answered or Failed. Wait
// returns the context's error if the context ends first, and a *HeldError if an earlier refusal
// holds for longer than the call may wait.
//
// The waits of a call last for MaxWait in all at most, and never beyond the context's deadline. If
// the limits alone ask for a longer wait, Wait returns at once and the request may be sent, because
// the server knows better.
func (c *Call) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	began := time.Now()
	end := began.Add(c.timeLeft(ctx, began))
	defer func() { c.waited += time.Since(began) }()
	// A call that need not wait, or has too little time, does not queue.
	if err := c.waitAlone(ctx, began, end); err != nil {
		return err
	}
	if _, news, err := c.trySend(began, end, true); news == nil {
		return err
	}
	// One call waits at the head of its route, and the others wait for its place.
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	select {
	case c.route.turn <- struct{}{}:
		defer func() { <-c.route.turn }()
	case <-timer.C:
		now := time.Now()
		_, _, err := c.trySend(now, now, false)
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
	return c.waitFirst(ctx, end)
}

// waitAlone waits for the end of a refusal that concerns this call alone. Other calls pass it.
func (c *Call) waitAlone(ctx context.Context, now, end time.Time) error {
	wait := c.held.Sub(now)
	if wait <= 0 {
		return nil
	}
	if c.held.After(end) {
		return &HeldError{Wait: wait}
	}
	pause := time.NewTimer(wait)
	defer pause.Stop()
	select {
	case <-pause.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// waitFirst waits as the first of a route's calls. It looks again after each answer.
func (c *Call) waitFirst(ctx context.Context, end time.Time) error {
	for {
		wait, news, err := c.trySend(time.Now(), end, false)
		if news == nil {
			return err
		}
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-news:
			pause.Stop()
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		}
	}
}

// timeLeft returns the time for which a call may still wait.
func (c *Call) timeLeft(ctx context.Context, now time.Time) time.Duration {
	left := c.pacer.options.MaxWait - c.waited
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, deadline.Sub(now))
	}
	return max(left, 0)
}

// trySend counts the call as sent if it need not wait, or if its wait would end after end; then
// news is nil. If a refusal of the route holds beyond end, it counts nothing and returns a
// HeldError. Otherwise it returns the wait, and news, a channel that the next answer closes. A
// newcomer does not overtake calls that wait.
func (c *Call) trySend(now, end time.Time, newcomer bool) (wait time.Duration, news <-chan struct{}, err error) {
	p := c.pacer
	p.mu.Lock()
	defer p.mu.Unlock()
	wait = p.waitOf(c.route, now)
	tooLong := wait > end.Sub(now)
	switch {
	case tooLong && c.route.held.After(now):
		return 0, nil, &HeldError{Wait: c.route.held.Sub(now)}
	case wait > 0 && !tooLong, newcomer && !tooLong && len(c.route.turn) > 0:
		return wait, p.news, nil
	}
	c.route.calls[c] = true
	for _, l := range c.route.limits {
		c.spends = append(c.spends, l.countRequest(now))
	}
	return 0, nil, nil
}

// waitOf returns the wait before a route's next request: its longest wait over all limits.
func (p *Pacer) waitOf(r *route, now time.Time) time.Duration {
	wait := max(r.held.Sub(now), 0)
	for _, l := range r.limits {
		wait = max(wait, l.nextWait(now, p.options.Spread))
	}
	return wait
}
