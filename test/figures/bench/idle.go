package main

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-proxy/weir/test/figures"
)

// watchIdle reads the use of each contestant without requests, all at once, after a while in which
// starting ends.
func (r *runner) watchIdle(ctx context.Context, n int, trials []*trial, result round) error {
	if err := wait(ctx, r.plan.Idle/2); err != nil {
		return err
	}
	before := make([]work, len(trials))
	begin := time.Now()
	for i, t := range trials {
		now, err := t.world.work(r.running)
		if err != nil {
			return fmt.Errorf("%s: %w", t.id(), err)
		}
		before[i] = now
	}
	if err := wait(ctx, r.plan.Idle); err != nil {
		return err
	}
	for i, t := range trials {
		now, err := t.world.work(r.running)
		if err != nil {
			return fmt.Errorf("%s: %w", t.id(), err)
		}
		spent, took := now.since(before[i]), time.Since(begin)
		f := reading{
			IdleEnvoy: figures.Rounded(100 * spent.envoy.Seconds() / took.Seconds()),
			IdleOther: figures.Rounded(100 * spent.others.Seconds() / took.Seconds()),
			Foreign:   processors(spent.foreign, took),
		}
		if f.EnvoyMB, f.OtherMB, err = t.world.resident(); err != nil {
			return fmt.Errorf("%s: %w", t.id(), err)
		}
		result[t.id()] = f
		r.say(n, "idle", t.contestant, fmt.Sprintf("%8.3f %%", f.IdleEnvoy))
	}
	return nil
}

// wait ends early, with an error, if the program is interrupted.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
