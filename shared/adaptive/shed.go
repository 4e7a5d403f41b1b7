package adaptive

import "github.com/weir-proxy/weir/shared/quota"

const (
	// MaxClasses bounds the classes of requests.
	MaxClasses = 8
	// Cohorts is the number of groups of callers within a class. They have about the same size, and
	// a class is shed one cohort after another cohort.
	Cohorts = 128
)

// Rank is the class of a request, 0 for the most important class, and the cohort of its caller.
type Rank struct{ Class, Cohort uint8 }

// Load counts the requests of a limit over some time. The loads of several workers can be added.
type Load struct {
	// Arrived counts requests by class.
	Arrived [MaxClasses]uint32
	// Shed counts requests whose rank is shed. Refused counts requests that the full limit refused
	// although their rank is not shed.
	Shed, Refused uint32
}

// Merge adds the load of another worker over the same time.
//
//go:noinline
func (l *Load) Merge(other *Load) {
	for i := range l.Arrived {
		l.Arrived[i] += other.Arrived[i]
	}
	l.Shed += other.Shed
	l.Refused += other.Refused
}

func (l *Load) totalArrived() (sum float64) {
	for i := range l.Arrived {
		sum += float64(l.Arrived[i])
	}
	return sum
}

// Shed decides which requests are shed: the classes from the last one up, and some cohorts of the
// next class. When it sheds more it moves by at most Downward of all requests a second, when it
// sheds less by Upward. The zero value sheds nothing.
type Shed struct {
	// Share is the number of classes that are shed. 1.25 is the last class and a quarter of the
	// class before it.
	Share float64
}

// Downward and Upward bound how much more, or less, is shed within a second, as shares of all
// requests.
const Downward, Upward = 0.4, 0.15

// Bounds of the reasons to shed. Below the first bound less may be shed, up to the second nothing
// changes. Above it more is shed, and at the last bound the most that is allowed.
const (
	// refusedFew and refusedMany are shares of the requests whose rank is not shed: those requests
	// that meet a full limit. If there were none of them, the limit would not be full.
	refusedFew, refusedMany = 0.05, 0.12
	// lateLittle, lateMuch and lateAll are delays of a worker's ticks.
	lateLittle = 20 * quota.Millisecond
	lateMuch   = 50 * quota.Millisecond
	lateAll    = 200 * quota.Millisecond
	// busyLittle, busyMuch and busyAll are used parts of an upstream's capacity.
	busyLittle, busyMuch, busyAll = 0.8, 0.9, 1.0
)

// Pressure is the strength of a reason to shed more: at 1 Shed sheds the most it may, at 0 it
// changes nothing, and below 0 it may shed less.
type Pressure float64

// alwaysKept is the part of a single class that is never shed, so that some requests show when to
// stop.
const alwaysKept = 0.1

// calm is the pressure at which less can be shed.
const calm Pressure = -1

// Late returns the pressure of a worker whose ticks come late by the given time.
func Late(by quota.Span) Pressure {
	return pressureOf(float64(by), float64(lateLittle), float64(lateMuch), float64(lateAll))
}

// Busy returns the pressure of an upstream that reports the used part of its capacity.
func Busy(utilisation float64) Pressure {
	return pressureOf(utilisation, busyLittle, busyMuch, busyAll)
}

//go:noinline
func pressureOf(value, little, much, all float64) Pressure {
	switch {
	case value < little:
		return calm
	case value < much:
		return 0
	}
	return Pressure(min((value-much)/(all-much)+0.1, 1))
}

// refusalPressure returns the pressure of requests that meet a full limit although their rank is
// not shed, and the share of requests that should be shed in their place.
func (l *Load) refusalPressure() (p Pressure, share float64) {
	all := l.totalArrived()
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

// Next updates the share with the load of some time and the pressure of other reasons. It never
// sheds the first kept classes.
//
//go:noinline
func (s *Shed) Next(classes, kept int, load *Load, others Pressure, passed quota.Span) {
	seconds := min(float64(passed)/float64(quota.Second), 1)
	full, share := load.refusalPressure()
	share = min(share, Downward*seconds)
	if others > 0 {
		share = max(share, Downward*seconds*float64(others))
	}
	switch {
	case share > 0:
		s.Share = shiftShare(s.Share, share, classes, kept, load)
	case full < 0 && others < 0 && load.totalArrived() > 0 && load.totalArrived() == float64(load.Shed):
		// No request passed, as if none had come: see Upstream.Rest.
		s.Share = max(s.Share-seconds, 0)
	case full < 0 && others < 0:
		s.Share = shiftShare(s.Share, -Upward*seconds, classes, kept, load)
	}
}

// shiftShare converts a share of all requests, which shall be shed in addition, into a number of
// classes: it returns the new Shed.Share. If share is negative, fewer requests are shed. It sheds a
// class without requests only together with a more important class that has requests.
//
//go:noinline
func shiftShare(shed, share float64, classes, kept int, load *Load) float64 {
	all := load.totalArrived()
	most := float64(classes) - max(float64(kept), alwaysKept)
	shed = min(shed, most)
	if all == 0 {
		if share > 0 {
			return shed
		}
		return max(shed-1, 0) // Nothing comes that could be too much.
	}
	if share > 0 {
		return shedMore(shed, share, most, classes, load)
	}
	for share < 0 && shed > 0 {
		whole := int(shed) // The classes that stay shed, apart from the part of the next class.
		if float64(whole) == shed {
			whole--
		}
		part := float64(load.Arrived[classes-1-whole]) / all
		if part*(shed-float64(whole)) > -share {
			return shed + share/part
		}
		share += part * (shed - float64(whole))
		shed = float64(whole)
	}
	return shed
}

// shedMore is shiftShare for a share above 0. It sheds class by class, from the last class up,
// until the share is reached or most classes are shed.
func shedMore(shed, share, most float64, classes int, load *Load) float64 {
	all := load.totalArrived()
	shedWithRequests := shed // The result without the last classes that have no requests.
	for shed < most {
		whole := int(shed) // The classes of which all requests are shed.
		left := float64(whole+1) - shed
		part := float64(load.Arrived[classes-1-whole]) / all
		if part*left > share { // The rest of the share is a part of this class.
			return min(shed+share/part, most)
		}
		share -= part * left
		shed = min(float64(whole+1), most)
		if part > 0 {
			shedWithRequests = shed
		}
	}
	return shedWithRequests
}

// Sheds reports whether a request of a rank is shed.
//
//go:noinline
func (s *Shed) Sheds(r Rank, classes int) bool {
	// The cohorts of a class are shed from the last to the first.
	return s.Share > float64(classes-int(r.Class))-(float64(r.Cohort)+0.5)/Cohorts
}

// Room returns how many requests may be at the upstream at the same time, for a request of a rank.
// It is higher for the classes before the class that is partly shed. Otherwise their requests would
// meet a limit that the classes after them have filled, which are to be shed next. For the same
// reason the first class meets a lower limit one window late: the other classes have filled the
// higher limit.
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
		return min(most, c.limitForOthers(more, 4))
	case class > 0:
		return min(most+more/2*(before-class)/before, c.limitForOthers(more/2, 8))
	}
	return min(max(most, int64(l.before))+more, c.Max)
}

// limitForOthers returns how many requests of the classes after the first may be at the upstream:
// Max less the given number, and at least Min. But a part of Max, at least one place, is for the
// first class alone.
func (c *Config) limitForOthers(less, part int64) int64 {
	return max(c.Max-less, min(c.Min, c.Max-max(c.Max/part, 1)), 1)
}

// leastMore is the least number of further requests that the first classes may have at the
// upstream.
const leastMore = 10
