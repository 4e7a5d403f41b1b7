// Package storetime is the time by the clock of the store, which all control planes share. What one
// of them says to end at a time ends then for all of them, whatever its machine's clock says.
package storetime

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/every"
)

const (
	// Tolerance is how far the clock of this machine may be from the store's before it counts as
	// wrong. Up to then it is taken as it is, so that times do not go back and forth.
	Tolerance = time.Second
	// measureEvery is how often the clocks are compared, patience how long the store may take.
	measureEvery = 5 * time.Second
	patience     = time.Second
)

// Clock is the store's time. Make one with New. It is safe for concurrent use.
type Clock struct {
	wall func() time.Time
	ask  func(context.Context) (time.Time, error)
	log  *slog.Logger

	mu sync.Mutex
	// ahead is how far this machine's clock is ahead of the store's as last measured. Wrong: that
	// is more than what is tolerated.
	ahead        time.Duration
	known, wrong bool
}

// New makes a Clock over that of this machine. Ask asks for the store's time; without it the
// machine's is the store's.
func New(wall func() time.Time, ask func(context.Context) (time.Time, error), log *slog.Logger) *Clock {
	return &Clock{wall: wall, ask: ask, log: log}
}

// Now is the time by the store's clock, as far as it has been measured. It has no reading of the
// monotonic clock, since this machine's clock may be set right while it runs.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.wall().Round(0)
	if c.wrong {
		now = now.Add(-c.ahead)
	}
	return now
}

// Ahead is how far this machine's clock is ahead of the store's, negative if it is behind; false
// before the store has said.
func (c *Clock) Ahead() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ahead, c.known
}

// Warning says that this machine's clock is wrong; empty while it is not.
func (c *Clock) Warning() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.wrong {
		return ""
	}
	return c.words()
}

// words is Warning for a caller that holds the lock.
func (c *Clock) words() string {
	side := "ahead of"
	if c.ahead < 0 {
		side = "behind"
	}
	return fmt.Sprintf("the clock of this control plane is %s %s the store's: "+
		"ends go by the store's clock; set one right", c.ahead.Abs().Round(time.Second), side)
}

// Measure compares the clocks once. A store that takes long says too little.
func (c *Clock) Measure(ctx context.Context) {
	if c.ask == nil {
		return
	}
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begin := c.wall()
	there, err := c.ask(timed)
	took := c.wall().Sub(begin)
	if err != nil || took > patience {
		return
	}
	c.note(begin.Round(0).Add(took/2).Sub(there), took/2)
}

// note notes how far this machine's clock is ahead, give or take a doubt.
func (c *Clock) note(ahead, doubt time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, wasAhead := c.wrong, c.ahead
	c.ahead, c.known = ahead, true
	c.wrong = ahead.Abs() > Tolerance+doubt
	switch {
	case c.wrong && (!was || (ahead-wasAhead).Abs() > Tolerance):
		c.log.Warn(c.words(), "ahead_seconds", ahead.Seconds())
	case was && !c.wrong:
		c.log.Info("the clock of this control plane is right again")
	}
}

// Run compares the clocks until ctx ends.
func (c *Clock) Run(ctx context.Context) { every.Period(ctx, measureEvery, c.Measure) }
