package timer

import "github.com/weir-proxy/weir/shared/quota"

// Clocks are the clocks of the machine: a clock that cannot be set, and Unix time in microseconds.
type Clocks interface {
	Now() quota.Instant
	Wall() int64
}

const (
	// readings is the largest number of times that Ahead reads the clocks.
	readings = 4
	// together is the number of microseconds within which two readings count as simultaneous.
	together quota.Span = 50
)

// Ahead returns the time by which Unix time is ahead of the clock that cannot be set. The thread
// may lose its processor between two readings. So it reads again until hardly any time has passed
// between the readings, and the closest readings count.
func Ahead(c Clocks) (ahead quota.Span) {
	least := quota.Never
	for range readings {
		before := c.Now()
		wall := quota.Span(c.Wall()) - quota.Span(before)
		if took := quota.Span(c.Now() - before); took < least {
			ahead, least = wall, took
		}
		if least <= together {
			break
		}
	}
	return ahead
}
