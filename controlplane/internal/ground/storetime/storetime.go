// Package storetime is the time by the clock of the store, which all control planes share. What one
// of them says to end at a time ends then for all of them, whatever its machine's clock says.
package storetime

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// Tolerance is how far the clock of this machine may be from the store's before it counts as
	// wrong. Up to then it is taken as it is, so that times do not go back and forth.
	Tolerance = time.Second
	// patience is how long the store may take to say its time.
	patience = time.Second
)

// Clock is the store's time. Make one with New. It is safe for concurrent use.
type Clock struct {
	wall func() time.Time
	log  *slog.Logger

	mu sync.Mutex
	// ahead is how far this machine's clock is ahead of the store's as last measured. Wrong: that
	// is more than what is tolerated.
	ahead        time.Duration
	known, wrong bool
}

// New makes a Clock over that of this machine, which is the store's until that has said another.
func New(wall func() time.Time, log *slog.Logger) *Clock { return &Clock{wall: wall, log: log} }

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

// Measure compares the clocks by a call that asks for the store's time; it returns zero if that is
// not known. A store that takes long says too little.
func (c *Clock) Measure(ask func() time.Time) {
	begin := c.wall()
	there := ask()
	took := c.wall().Sub(begin)
	if there.IsZero() || took > patience {
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
