// Package storetime measures the clock of the store, which all control planes share. An end that
// one of them sets is at the same moment for all of them, whatever the clocks of their machines
// say.
package storetime

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// Tolerance is how far the clock of this machine may differ from the store's before it counts
	// as wrong. Up to then the machine's clock is used unchanged, so that times do not jump.
	Tolerance = time.Second
	// patience is the timeout for asking the store.
	patience = time.Second
)

// Clock is the store's clock. Make a Clock with New. It is safe for concurrent use.
type Clock struct {
	wall func() time.Time
	log  *slog.Logger

	mu sync.Mutex
	// ahead is how far this machine's clock was ahead of the store's in the last measurement;
	// negative if it was behind. wrong is true if that exceeds Tolerance.
	ahead        time.Duration
	known, wrong bool
}

// New makes a Clock that follows wall, the clock of this machine, until the first measurement.
func New(wall func() time.Time, log *slog.Logger) *Clock { return &Clock{wall: wall, log: log} }

// Now returns the time by the store's clock, as last measured. It has no monotonic reading, because
// this machine's clock may be corrected while it runs.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.wall().Round(0)
	if c.wrong {
		now = now.Add(-c.ahead)
	}
	return now
}

// Ahead returns how far this machine's clock is ahead of the store's, negative if it is behind. It
// returns false before the first measurement.
func (c *Clock) Ahead() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ahead, c.known
}

// Warning says that this machine's clock is wrong; empty if it is right.
func (c *Clock) Warning() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.wrong {
		return ""
	}
	return c.warningText()
}

// warningText returns the text of Warning. The caller holds the lock.
func (c *Clock) warningText() string {
	side := "ahead of"
	if c.ahead < 0 {
		side = "behind"
	}
	return fmt.Sprintf("the clock of this control plane is %s %s the store's: "+
		"ends use the store's clock; correct one of the clocks", c.ahead.Abs().Round(time.Second), side)
}

// Measure compares the clocks. ask returns the store's time, or zero if it is unknown. A slow
// answer is ignored because it is too inexact.
func (c *Clock) Measure(ask func() time.Time) {
	begin := c.wall()
	there := ask()
	took := c.wall().Sub(begin)
	if there.IsZero() || took > patience {
		return
	}
	c.recordAhead(begin.Round(0).Add(took/2).Sub(there), took/2)
}

// recordAhead stores how far this machine's clock is ahead, give or take doubt.
func (c *Clock) recordAhead(ahead, doubt time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, wasAhead := c.wrong, c.ahead
	c.ahead, c.known = ahead, true
	c.wrong = ahead.Abs() > Tolerance+doubt
	switch {
	case c.wrong && (!was || (ahead-wasAhead).Abs() > Tolerance):
		c.log.Warn(c.warningText(), "ahead_seconds", ahead.Seconds())
	case was && !c.wrong:
		c.log.Info("the clock of this control plane is right again")
	}
}
