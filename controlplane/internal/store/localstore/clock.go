package localstore

import (
	"sync"
	"time"

	"github.com/weir-proxy/weir/shared/quota"
)

// clock is the store's time in microseconds since 1970, roughly. It starts at the wall clock or at
// the end of the last run, the later of both, runs with the monotonic clock, and never goes back.
type clock struct {
	base  quota.Instant
	start time.Time
	wall  func() time.Time

	mu   sync.Mutex
	last quota.Instant
}

func newClock(saved quota.Instant, wall func() time.Time) *clock {
	start := wall()
	return &clock{base: max(saved, quota.Instant(start.UnixMicro())), start: start, wall: wall}
}

func (c *clock) now() quota.Instant {
	now := c.base + quota.Instant(c.wall().Sub(c.start)/time.Microsecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last, now)
	return c.last
}
