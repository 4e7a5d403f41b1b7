package adaptive

import (
	"math"
	"math/bits"

	"github.com/weir-proxy/weir/shared/quota"
)

func sqrt(x float64) float64 { return math.Sqrt(x) }

// Config is the part of a policy that describes an adaptive limit.
type Config struct {
	// Min and Max bound the limit, in requests at the upstream at the same time.
	Min, Max int64
	// Percentile is the percentile of the latency that the limit follows, 50 to 99.
	Percentile uint8
}

// Limit is a limit on the requests at an upstream at the same time. It finds its own value, as TCP
// Vegas does. By Little's law, the number of requests that wait at the upstream is its rate times
// its latency beyond the latency without waiting. The limit rises while next to none wait, falls
// while more than a few wait, and otherwise stays.
//
// A latency also rises where no request waits, for example because the upstream has become slower.
// Then a lower limit also lowers the rate, so the limit makes a trial. If the rate falls with the
// limit, the latency is the upstream's own, and the limit goes back. If the rate then does not come
// back, the upstream had less load.
//
// The zero value has no data; Start returns a limit that is ready for use.
type Limit struct {
	// Value is the limit, in requests.
	Value float64
	// Base is the latency without waiting, in microseconds; 0 until the first window.
	Base float64
	// called is the direction of the last window.
	called call
	// settled means that the limit was right without having risen before, and has moved little
	// since. pace is the rate at which it settled.
	settled bool
	pace    float64
	// before is the Value of one window ago.
	before float64
	// run is the number of windows in a row in which the limit has risen; startRun if it has only
	// risen so far. During a trial it is the number of windows in which the limit could fall no
	// further.
	run uint8
	// trial is the present trial. tried is the window that it compares later windows with, and
	// limit is the limit before the trial. former is the Base that the trial has replaced. back is
	// the rate that should come back.
	trial               trial
	tried               sample
	limit, former, back float64
}

// call is the direction in which a window moves the limit.
type call uint8

const (
	neither call = iota
	up
	down
)

// A trial is a change of the limit that shows whether requests wait at the upstream.
type trial uint8

const (
	// steady means that there is no trial.
	steady trial = iota
	// falling means that the limit was lowered. The trial checks whether the rate falls too.
	falling
	// probing means that the upstream has become quicker. The trial lowers the limit until the rate
	// falls too.
	probing
	// rising means that the rate fell, so the limit was raised again. The trial checks whether the
	// rate comes back.
	rising
	// lifted means that the limit could fall no further, so it was raised. The trial checks whether
	// the rate rises too.
	lifted
)

const (
	// startRun marks a limit that doubles with each window.
	startRun = math.MaxUint8
	// The limit rises while fewer than fewWaiting requests wait, times the logarithm of the limit,
	// and falls while more than manyWaiting wait. A settled limit falls above tooMany times that
	// number. A step goes half of the way to middle.
	fewWaiting, middle, manyWaiting = 5, 6.5, 8
	tooMany                         = 1.3
	// another is the relative difference of the rate that ends a settled limit.
	another = 0.15
	// tolerance is the factor by which the latency varies where no request waits.
	tolerance = 1.05
	// small is the part of a limit below which a step counts as small.
	small = 0.25
	// steepest is the smallest part of a limit that is left after a window.
	steepest = 0.7
	// steps is the largest rise in a window, as a part of the limit, if enough is missing. leaps is
	// the largest rise where next to no request can be waiting.
	steps, leaps = 0.125, 0.2
	// contrast is the least difference between two windows that a trial compares. sure is the
	// evidence that decides it: one case is 55 times as likely as the other.
	contrast, sure = 0.075, 4
	// headroom bounds the limit to this many times the requests at the upstream.
	headroom = 5
	// lowered is the largest fall of the base in a window after a lower latency. raised is its
	// largest rise after a higher latency, while the upstream has little load.
	lowered, raised = 0.95, 1.01
	// quicker is the part of the base below which a latency shows that the upstream has changed.
	quicker = 0.8
)

// Start returns the limit before any window: the least. It doubles with each window until requests
// wait.
func Start(c Config) Limit { return Limit{Value: float64(c.Min), run: startRun} }

// Most returns how many requests may be at the upstream at the same time.
func (l *Limit) Most() int64 { return int64(l.Value) }

// Next updates the limit with a window that lasted for the given time. A window with too few
// answers changes nothing. The limit does not fall while less than half of it is in use, so a quiet
// service is never shed.
//
//go:noinline
func (l *Limit) Next(c Config, w *Window, lasted quota.Span) {
	l.Value = clampValue(l.Value, c)
	l.before = l.Value
	if w.Latency.Total < Enough || lasted <= 0 {
		return
	}
	s := w.takeSample(float64(c.Percentile)/100, lasted)
	if l.Base == 0 {
		l.Base = s.latency
	}
	quiet := w.Refused == 0 && s.held < l.Value/2
	if !l.continueTrial(s, c, quiet) {
		l.moveBase(s, quiet)
		l.moveLimit(s, quiet)
	}
	l.Value = clampValue(l.Value, c)
}

// moveBase moves the base towards a latency that surely differs from it.
func (l *Limit) moveBase(s sample, quiet bool) {
	switch {
	case s.high < l.Base:
		l.Base = max(l.Base*lowered, s.high)
	case quiet && s.low > l.Base:
		l.Base = min(l.Base*raised, s.low)
	}
}

// moveLimit moves the limit according to the number of waiting requests. A single window can be
// chance. So a settled limit needs two windows for each small step, and stronger evidence. A limit
// that followed each doubtful window would wander.
//
//go:noinline
func (l *Limit) moveLimit(s sample, quiet bool) {
	unit := max(approxLog10(l.Value), 1)
	l.unsettleOnNewRate(s)
	// Estimate how many requests wait: surely at least, and probably.
	most, likely := float64(manyWaiting), (s.low+s.latency)/2
	if l.settled {
		most, likely = manyWaiting*tooMany, (s.latency+s.high)/2
	}
	surely := min(s.rate*(s.low-l.Base*tolerance), s.held)
	rather := s.rate * (likely - l.Base*tolerance)
	switch {
	case surely > most*unit && !quiet:
		l.lowerValue(max((surely-middle*unit)/2, unit), unit)
	case rather < fewWaiting*unit && l.Value < headroom*s.held:
		l.trial = steady
		most := min(max((middle*unit-rather)/2, unit), l.Value*steps)
		if s.rate*(s.high-l.Base*tolerance) < fewWaiting*unit {
			most = l.Value * leaps
		}
		l.Value = max(min(l.Value+l.riseStep(unit, most), headroom*s.held), l.Value)
	default:
		if l.called != up && !l.settled {
			l.settled, l.pace = true, s.rate
		}
		l.run, l.trial, l.called = 0, steady, neither
	}
}

// unsettleOnNewRate marks the limit as not settled if the rate has changed.
//
//go:noinline
func (l *Limit) unsettleOnNewRate(s sample) {
	if !l.settled {
		return
	}
	if off := s.rate/l.pace - 1; off > another || off < -another {
		l.settled = false
		return
	}
	l.pace += (s.rate - l.pace) / 8
}

// lowerValue lowers the limit, and starts a trial of whether the rate falls too.
//
//go:noinline
func (l *Limit) lowerValue(by, unit float64) {
	again := l.called == down
	if l.called = down; l.trial != falling {
		l.run = 0
	}
	if l.settled = l.settled && by < l.Value*small; l.settled {
		if !again {
			return
		}
		by, l.called = max(by/2, unit), neither
	}
	if l.trial == steady {
		l.trial, l.tried, l.limit = falling, sample{}, l.Value
	}
	l.Value = max(l.Value*steepest, l.Value-by)
}

// riseStep returns by how much the limit rises: at most the given number, unless it still doubles
// after its start. Each step in a row is twice as large as the step before.
//
//go:noinline
func (l *Limit) riseStep(unit, most float64) float64 {
	again := l.called == up
	l.called = up
	switch {
	case l.run == startRun:
		return l.Value
	case l.settled && !again:
		return 0
	}
	step := min(unit*float64(uint(1)<<min(l.run, 16)), most)
	l.run++
	l.settled = l.settled && l.run == 1
	return step
}

// continueTrial continues a trial, and reports whether it has set the limit.
//
//go:noinline
func (l *Limit) continueTrial(s sample, c Config, quiet bool) bool {
	switch {
	case quiet:
		l.giveUp(s)
		return false
	case l.trial == steady && l.isMuchQuicker(s):
		l.trial, l.tried, l.limit, l.Base = probing, sample{}, l.Value, s.high
		return true
	case l.trial == steady:
		return false
	case l.tried.count == 0:
		// Start to compare with this window. The window before may be mixed: part of it was before
		// the change of the latency, part after it.
		l.tried = s
		if l.trial == probing {
			l.Base, l.Value = min(l.Base, s.high), l.Value*steepest
		}
		return l.trial == probing
	case l.trial == rising:
		times := min(s.held/l.tried.held, l.back/l.tried.rate)
		if l.logEvidence(s, times) < -sure || s.held < l.tried.held*(1+contrast) {
			l.Base = l.former
		}
		l.trial = steady
		return false
	case l.trial == lifted:
		return l.endLift(s, c)
	}
	follows := l.logEvidence(s, s.held/l.tried.held)
	switch {
	case follows > sure:
		// The rate follows the limit: no request waits. The upstream may be a new upstream with the
		// same number of places. Raise the limit, and see whether the rate comes back.
		l.former, l.Base = l.Base, s.latency
		l.Value, l.tried, l.back = l.limit, s, l.tried.rate
		l.trial, l.run = rising, 0
		return true
	case follows < -sure:
		// The rate stays: requests waited. Compare with this window from now on.
		l.tried, l.Base = s, min(l.Base, s.latency)
	case l.trial == probing:
		l.trial = steady // The upstream has become so quick that the trial cannot tell.
	case l.Value <= float64(c.Min):
		return l.liftFromMinimum(s)
	}
	if l.trial == probing {
		l.Value *= steepest
	}
	return l.trial == probing
}

// liftFromMinimum raises a limit that can fall no further, to see whether the rate rises too. It
// does so after 2, 4, 8 and so on up to 128 windows, and then after each 128 windows.
//
//go:noinline
func (l *Limit) liftFromMinimum(s sample) bool {
	// Count the windows. From 255 the count goes back, so that it reaches 128 again in 128 windows.
	if l.run == math.MaxUint8 {
		l.run = math.MaxUint8 / 2
	}
	l.run++
	isPowerOfTwo := l.run&(l.run-1) == 0
	if l.run < 2 || !isPowerOfTwo {
		return false
	}
	// Undo the two steepest falls, and compare the next window with this window.
	l.former, l.Base = l.Base, s.latency
	l.Value, l.tried, l.trial = l.Value/(steepest*steepest), s, lifted
	return true
}

// endLift ends a trial of liftFromMinimum. The limit is the least again, unless the rate rose with
// it.
func (l *Limit) endLift(s sample, c Config) bool {
	if l.logEvidence(s, s.held/l.tried.held) > sure {
		l.trial, l.run = steady, 0
		return false
	}
	l.trial, l.Base, l.Value = falling, l.former, float64(c.Min)
	return true
}

// isMuchQuicker reports whether the upstream has become so quick that the base may be a latency
// with waiting.
func (l *Limit) isMuchQuicker(s sample) bool { return s.high < l.Base*quicker }

// giveUp ends a trial that cannot be decided: few requests come, so next to none wait.
func (l *Limit) giveUp(s sample) {
	switch l.trial {
	case probing:
		l.Base = min(l.Base, s.high)
	case rising, lifted:
		l.Base = l.former
	}
	l.trial = steady
}

// logEvidence compares two cases: the rate is the given number of times the rate of the tried
// window, or it is the same. It returns the logarithm of how much likelier the first case is; 0 if
// the cases are too close.
//
//go:noinline
func (l *Limit) logEvidence(s sample, times float64) float64 {
	if times > 1-contrast && times < 1+contrast {
		return 0
	}
	want, got := approxLog(times), approxLog(s.rate/l.tried.rate)
	return want * (2*got - want) / (2 * (1/s.count + 1/l.tried.count))
}

// approxLog returns the natural logarithm of a number from 0.5 to 2, within 0.03.
func approxLog(x float64) float64 { return 2 * (x - 1) / (x + 1) }

// approxLog10 returns the decimal logarithm of a number from 1, within 0.03. It is linear between
// powers of two.
func approxLog10(x float64) float64 {
	whole := bits.Len64(uint64(x)) - 1
	return (float64(whole) + x/float64(uint64(1)<<whole) - 1) * (math.Ln2 / math.Ln10)
}

func clampValue(value float64, c Config) float64 {
	return min(max(value, float64(c.Min)), float64(c.Max))
}
