package adaptive

import "github.com/weir-proxy/weir/shared/quota"

const (
	// MaxClasses bounds the classes of requests.
	MaxClasses = 8
	// Cohorts are the groups of callers within a class, of about the same size. A class is shed a
	// cohort after the other.
	Cohorts = 128
)

// Rank is the class of a request, 0 for the most important, and the cohort of its caller.
type Rank struct{ Class, Cohort uint8 }

// Load is what came to a limit in a time. Those of several workers add up.
type Load struct {
	// Arrived counts requests by class.
	Arrived [MaxClasses]uint32
	// Shed are those of a rank that is shed, Refused those that the limit did not let through
	// although theirs is not.
	Shed, Refused uint32
}

// Merge adds what came to another worker in the same time.
//
//go:noinline
func (l *Load) Merge(other *Load) {
	for i := range l.Arrived {
		l.Arrived[i] += other.Arrived[i]
	}
	l.Shed += other.Shed
	l.Refused += other.Refused
}

func (l *Load) total() (sum float64) {
	for i := range l.Arrived {
		sum += float64(l.Arrived[i])
	}
	return sum
}

// Shed says who is shed: the classes from the last up, and of the class that it has come to some
// cohorts. It moves by at most Downward of all requests a second when it sheds more, and by
// Upward when it sheds less. The zero value sheds nothing.
type Shed struct {
	// Share is the classes that are shed: 1.25 is the last class, and a quarter of that before it.
	Share float64
}

// Downward and Upward are the most that is shed more, or less, in a second: shares of all requests.
const Downward, Upward = 0.4, 0.15

// Pressures. Each is 0 or less where there is none, in between where nothing changes, and at 1 or
// more where as much as may be is shed.
const (
	// refusedFew and refusedMany are shares of the requests that are not shed: those that meet a
	// full limit. Without a few of them the limit would not be full.
	refusedFew, refusedMany = 0.05, 0.12
	// lateLittle, lateMuch and lateAll are delays of a worker's ticks.
	lateLittle = 20 * quota.Millisecond
	lateMuch   = 50 * quota.Millisecond
	lateAll    = 200 * quota.Millisecond
	// busyLittle, busyMuch and busyAll are parts of an upstream's capacity that is in use.
	busyLittle, busyMuch, busyAll = 0.8, 0.9, 1.0
)

// Pressure is how strongly something asks for more to be shed: 1 at once, 0 not at all. Below 0
// nothing stands in the way of shedding less.
type Pressure float64

// alwaysKept is the part of a single class that is never shed: something must show when to stop.
const alwaysKept = 0.1

// calm is the pressure where less can be shed.
const calm Pressure = -1

// Late is the pressure of a worker whose ticks come so late.
func Late(by quota.Span) Pressure {
	return pressure(float64(by), float64(lateLittle), float64(lateMuch), float64(lateAll))
}

// Busy is the pressure of an upstream that reports how much of its capacity is in use.
func Busy(utilisation float64) Pressure {
	return pressure(utilisation, busyLittle, busyMuch, busyAll)
}

//go:noinline
func pressure(value, little, much, all float64) Pressure {
	switch {
	case value < little:
		return calm
	case value < much:
		return 0
	}
	return Pressure(min((value-much)/(all-much)+0.1, 1))
}

// pressure is that of requests that meet a full limit although they are not shed, and the
// share of requests that should be shed in their place.
func (l *Load) pressure() (p Pressure, share float64) {
	all := l.total()
	open := all - float64(l.Shed)
	if all == 0 || open <= 0 {
		return calm, 0
	}
	refused := float64(l.Refused) / open
	switch {
	case refused < refusedFew:
		return calm, 0
	case refused < refusedMany:
		return 0, 0
	}
	return 1, (refused - refusedFew) * open / all
}

// Next takes in what came in a time, and what else asks for more to be shed. The first kept classes
// of all are never shed.
//
//go:noinline
func (s *Shed) Next(classes, kept int, load *Load, others Pressure, passed quota.Span) {
	seconds := min(float64(passed)/float64(quota.Second), 1)
	full, share := load.pressure()
	share = min(share, Downward*seconds)
	if others > 0 {
		share = max(share, Downward*seconds*float64(others))
	}
	switch {
	case share > 0:
		s.Share = moved(s.Share, share, classes, kept, load)
	case full < 0 && others < 0 && load.total() > 0 && load.total() == float64(load.Shed):
		// Nothing was let through, as where nothing comes: see Upstream.Rest.
		s.Share = max(s.Share-seconds, 0)
	case full < 0 && others < 0:
		s.Share = moved(s.Share, -Upward*seconds, classes, kept, load)
	}
}

// moved is the classes that are shed when a share of all requests more is shed; less if it is
// negative. A class that no request is of is passed over on the way to another one, and is not
// shed for the sake of classes that never are.
//
//go:noinline
func moved(shed, share float64, classes, kept int, load *Load) float64 {
	all := load.total()
	most := float64(classes) - max(float64(kept), alwaysKept)
	shed = min(shed, most)
	if all == 0 {
		if share > 0 {
			return shed
		}
		return max(shed-1, 0) // Nothing comes that could be too much.
	}
	if share > 0 {
		return sheddingMore(shed, share, most, classes, load)
	}
	for share < 0 && shed > 0 {
		of := int(shed)
		if float64(of) == shed {
			of--
		}
		part := float64(load.Arrived[classes-1-of]) / all
		if part*(shed-float64(of)) > -share {
			return shed + share/part
		}
		share += part * (shed - float64(of))
		shed = float64(of)
	}
	return shed
}

// sheddingMore is moved for a share above 0, up to most classes.
func sheddingMore(shed, share, most float64, classes int, load *Load) float64 {
	all, came := load.total(), shed
	for shed < most {
		of := int(shed) // classes that are shed whole
		left := float64(of+1) - shed
		part := float64(load.Arrived[classes-1-of]) / all
		if part*left > share {
			return shed + share/part
		}
		share -= part * left
		shed = float64(of + 1)
		if part > 0 {
			came = shed
		}
	}
	return came
}

// Sheds reports whether a request of a rank is shed, of so many classes.
//
//go:noinline
func (s *Shed) Sheds(r Rank, classes int) bool {
	// The cohorts of a class are shed from the last to the first.
	return s.Share > float64(classes-int(r.Class))-(float64(r.Cohort)+0.5)/Cohorts
}

// Room is how many requests may be at the upstream at once, as a request of a rank meets it. It is
// more for the classes before the one that is being shed: without that their requests would meet a
// limit that those have filled which are to be shed next. For the same reason the first class meets
// a lower limit a window late: the others have filled the higher one.
//
//go:noinline
func (l *Limit) Room(r Rank, s *Shed, classes int, c Config) int64 {
	most := l.Most()
	if classes == 1 {
		return most
	}
	more, before := max(most/4, leastMore), int64(classes-1)-int64(s.Share)
	class := int64(r.Class)
	switch {
	case class == 0 && before == 0: // All others are shed.
		return most
	case class >= before:
		return min(most, c.below(more, 4))
	case class > 0:
		return min(most+more/2*(before-class)/before, c.below(more/2, 8))
	}
	return min(max(most, int64(l.before))+more, c.Max)
}

// below is the most that classes after the first may have at the upstream: so many less than Max,
// and at least Min, but for a part of Max, one at least, that is the first class's alone.
func (c *Config) below(less, part int64) int64 {
	return max(c.Max-less, min(c.Min, c.Max-max(c.Max/part, 1)), 1)
}

// leastMore is how many more requests the first classes may have at the upstream, at least.
const leastMore = 10
