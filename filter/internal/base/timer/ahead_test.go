package timer_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/timer"
	"github.com/weir-proxy/weir/shared/quota"
)

// clocks are two clocks that go alike. After the n-th reading the n-th pause passes.
type clocks struct {
	now    quota.Instant
	pauses []quota.Span
}

const ahead = 1_700_000_000_000_000

func (c *clocks) pass() {
	if c.now++; len(c.pauses) > 0 {
		c.now += quota.Instant(c.pauses[0])
		c.pauses = c.pauses[1:]
	}
}

// Now implements timer.Clocks.
func (c *clocks) Now() quota.Instant { defer c.pass(); return c.now }

// Wall implements timer.Clocks.
func (c *clocks) Wall() int64 { defer c.pass(); return ahead + int64(c.now) }

// A VM that loses its processor while it reads the clocks finds the same time as the other VMs.
func TestAPauseBetweenReadingsShiftsNoClock(t *testing.T) {
	const pause = 8 * quota.Millisecond
	for _, pauses := range [][]quota.Span{
		nil, {pause}, {0, pause}, {0, 0, pause}, {pause, 0, 0, pause}, {pause, 0, 0, 0, pause, 0, pause, 0, 0},
		{pause, 0, 0, pause, 0, 0, pause, 0, 0, 300, 0, 0},
	} {
		if off := timer.Ahead(&clocks{now: 1e9, pauses: pauses}) - ahead; off < 0 || off > 500 {
			t.Errorf("pauses %v: the clocks are %d µs further apart than they are", pauses, off)
		}
	}
}
