package client

import (
	"context"
	"time"
)

// Wait waits until the request may be sent; after it, report what became of the request by Answered
// or Failed. It returns the context's error if that ends first, and a *HeldError.
//
// It never waits longer than MaxWait in all, nor where the context's deadline would come first. A
// request that would have to wait longer for its turn is sent at once, because the server knows
// better. One that the server has refused is not.
func (c *Call) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	began := time.Now()
	end := began.Add(c.room(ctx, began))
	defer func() { c.waited += time.Since(began) }()
	if err := c.waitAlone(ctx, began, end); err != nil {
		return err
	}
	if _, news, err := c.try(began, end, true); news == nil {
		return err
	}
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	select {
	case c.route.turn <- struct{}{}:
		defer func() { <-c.route.turn }()
	case <-timer.C:
		now := time.Now()
		_, _, err := c.try(now, now, false)
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
	return c.waitFirst(ctx, end)
}

// waitAlone waits for what the server has refused this call alone: no other has to wait for it.
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

// waitFirst waits at the head of the calls of a route.
func (c *Call) waitFirst(ctx context.Context, end time.Time) error {
	for {
		wait, news, err := c.try(time.Now(), end, false)
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

// room is how long a call may still wait.
func (c *Call) room(ctx context.Context, now time.Time) time.Duration {
	room := c.pacer.options.MaxWait - c.waited
	if deadline, ok := ctx.Deadline(); ok {
		room = min(room, deadline.Sub(now))
	}
	return max(room, 0)
}

// try sends the call on its way if it need not wait, or may not wait for so long as it should.
// Otherwise it returns how long it should wait, and what is closed when there is news. A newcomer
// does not overtake calls that wait.
func (c *Call) try(now, end time.Time, newcomer bool) (wait time.Duration, news <-chan struct{}, err error) {
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
		c.spends = append(c.spends, l.count(now))
	}
	return 0, nil, nil
}

// waitOf is how long a route's next request should wait.
func (p *Pacer) waitOf(r *route, now time.Time) time.Duration {
	wait := max(r.held.Sub(now), 0)
	for _, l := range r.limits {
		wait = max(wait, l.wait(now, p.options.Spread))
	}
	return wait
}
