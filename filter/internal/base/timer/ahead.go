package timer

import "github.com/weir-proxy/weir/shared/quota"

// Clocks are those of the machine: one that cannot be set, and Unix time in microseconds.
type Clocks interface {
	Now() quota.Instant
	Wall() int64
}

const (
	// readings is how often Ahead reads the clocks at most.
	readings = 4
	// together is within how many microseconds two readings are as good as one.
	together quota.Span = 50
)

// Ahead is by how much Unix time is ahead of the clock that cannot be set. The thread may lose its
// processor between two readings. So they are made again until hardly any time has passed between
// them, and those count for which the least did.
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
