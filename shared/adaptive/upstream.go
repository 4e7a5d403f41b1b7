package adaptive

import "github.com/weir-proxy/weir/shared/quota"

// Upstream is what the workers of an Envoy know together of an upstream: the limit, who is shed,
// and what has been seen since these last changed. Begin makes one ready for use.
type Upstream struct {
	Limit Limit
	// Percentile is that by which Limit has come to be.
	Percentile uint8
	Shed       Shed
	// Windows counts those that Limit has taken in.
	Windows uint32
	// Window has been seen since Began, Load and Reports since LoadBegan.
	Began, LoadBegan quota.Instant
	Window           Window
	Load             Load
	Reports          Reports
}

// Reports are the utilisations that an upstream has reported. Those of several workers add up.
type Reports struct {
	// Sum is that of the utilisations in millionths.
	Sum   uint64
	Count uint32
}

// mostReported bounds one report; a report of more is as busy.
const mostReported = 10

// Add takes in a report. It leaves out one that is no number or below 0.
func (r *Reports) Add(utilisation float64) {
	if utilisation >= 0 {
		r.Sum += uint64(min(utilisation, mostReported) * 1e6)
		r.Count++
	}
}

// Merge adds what another worker has seen in the same time.
func (r *Reports) Merge(other *Reports) {
	r.Sum += other.Sum
	r.Count += other.Count
}

// pressure is that of the mean.
func (r *Reports) pressure() Pressure {
	if r.Count == 0 {
		return calm
	}
	return Busy(float64(r.Sum) / float64(r.Count) / 1e6)
}

const (
	// ShedEvery is how often it is looked anew at who is shed.
	ShedEvery = 100 * quota.Millisecond
	// rested is after how long without a request less is shed: nothing has said since that too much
	// comes.
	rested = quota.Second
)

// Begin makes it one of which nothing is known yet.
//
//go:noinline
func (u *Upstream) Begin(c Config, now quota.Instant) {
	*u = Upstream{Limit: Start(c), Percentile: c.Percentile, Began: now, LoadBegan: now}
}

// Rest sheds a class less for each second in which no request came. Call it before what came then.
//
//go:noinline
func (u *Upstream) Rest(now quota.Instant) {
	if passed := quota.Span(now - u.LoadBegan); passed >= rested && u.Shed.Share > 0 {
		u.Shed.Share = max(u.Shed.Share-float64(passed)/float64(quota.Second), 0)
	}
}

// Advance has the limit take in its window if that is due, and looks anew at who is shed.
//
//go:noinline
func (u *Upstream) Advance(c Config, classes int, now quota.Instant) {
	if u.Percentile != c.Percentile {
		// Another percentile has another latency where none waits.
		u.Limit, u.Percentile = Limit{Value: u.Limit.Value}, c.Percentile
	}
	u.Limit.Value = clamp(u.Limit.Value, c)
	if passed := quota.Span(now - u.LoadBegan); passed >= ShedEvery {
		u.Shed.Next(classes, Kept(classes), &u.Load, u.Reports.pressure(), passed)
		u.Load, u.Reports, u.LoadBegan = Load{}, Reports{}, now
	}
	if lasted := quota.Span(now - u.Began); u.Limit.Due(&u.Window, lasted) {
		u.Limit.Next(c, &u.Window, lasted)
		u.Window, u.Began = Window{}, now
		u.Windows++
	}
}

// Kept is how many of the classes are never shed: the first, if there are others.
func Kept(classes int) int { return min(classes-1, 1) }
