package adaptive

import "github.com/weir-proxy/weir/shared/quota"

// Upstream is the workers' shared record of an upstream: its limit, the classes that are shed, and
// the data since these changed last. Begin makes an Upstream ready for use.
type Upstream struct {
	Limit Limit
	// Percentile is the percentile of the latency with which Limit was found.
	Percentile uint8
	Shed       Shed
	// Windows counts the windows that Limit has used.
	Windows uint32
	// Window has the data since Began; Load and Reports have the data since LoadBegan.
	Began, LoadBegan quota.Instant
	Window           Window
	Load             Load
	Reports          Reports
}

// Reports are the utilisations that an upstream has reported. The reports to several workers can be
// added.
type Reports struct {
	// Sum is the sum of the utilisations, in millionths.
	Sum   uint64
	Count uint32
}

// mostReported bounds one report; a higher report counts as this value.
const mostReported = 10

// Add adds a report. It ignores a report that is not a number or is below 0.
func (r *Reports) Add(utilisation float64) {
	if utilisation >= 0 {
		r.Sum += uint64(min(utilisation, mostReported) * 1e6)
		r.Count++
	}
}

// Merge adds the reports to another worker in the same time.
func (r *Reports) Merge(other *Reports) {
	r.Sum += other.Sum
	r.Count += other.Count
}

// meanPressure returns the pressure of the mean report.
func (r *Reports) meanPressure() Pressure {
	if r.Count == 0 {
		return calm
	}
	return Busy(float64(r.Sum) / float64(r.Count) / 1e6)
}

const (
	// ShedEvery is the interval after which the share to shed is computed again.
	ShedEvery = 100 * quota.Millisecond
	// rested is the time without a request after which less is shed: nothing shows any more that
	// the load is too high.
	rested = quota.Second
)

// Begin sets the upstream to its state before any data.
//
//go:noinline
func (u *Upstream) Begin(c Config, now quota.Instant) {
	*u = Upstream{Limit: Start(c), Percentile: c.Percentile, Began: now, LoadBegan: now}
}

// Rest sheds one class less for each second without a request. Call it before the data of the next
// request is added.
//
//go:noinline
func (u *Upstream) Rest(now quota.Instant) {
	if passed := quota.Span(now - u.LoadBegan); passed >= rested && u.Shed.Share > 0 {
		u.Shed.Share = max(u.Shed.Share-float64(passed)/float64(quota.Second), 0)
	}
}

// Advance updates the limit with its window if that is due, and computes the share to shed again.
//
//go:noinline
func (u *Upstream) Advance(c Config, classes int, now quota.Instant) {
	if u.Percentile != c.Percentile {
		// Another percentile has another latency without waiting.
		u.Limit, u.Percentile = Limit{Value: u.Limit.Value}, c.Percentile
	}
	u.Limit.Value = clampValue(u.Limit.Value, c)
	if passed := quota.Span(now - u.LoadBegan); passed >= ShedEvery {
		u.Shed.Next(classes, Kept(classes), &u.Load, u.Reports.meanPressure(), passed)
		u.Load, u.Reports, u.LoadBegan = Load{}, Reports{}, now
	}
	if lasted := quota.Span(now - u.Began); u.Limit.Due(&u.Window, lasted) {
		u.Limit.Next(c, &u.Window, lasted)
		u.Window, u.Began = Window{}, now
		u.Windows++
	}
}

// Kept returns how many of the classes are never shed: the first class, if there are several.
func Kept(classes int) int { return min(classes-1, 1) }
