package adaptive

import (
	"math"
	"math/bits"

	"github.com/weir-proxy/weir/shared/quota"
)

func sqrt(x float64) float64 { return math.Sqrt(x) }

// Config is what a policy says of an adaptive limit.
type Config struct {
	// Min and Max bound the limit: requests at the upstream at once.
	Min, Max int64
	// Percentile of the latency is what the limit goes by, 50 to 99.
	Percentile uint8
}

// Limit is a limit on the requests at an upstream at once that finds itself. It is that of TCP
// Vegas: by Little's law, the requests that wait at the upstream are its rate times what the
// latency has above that of an upstream where none waits. The limit rises while next to none wait,
// falls while more wait than a few, and stays in between.
//
// A latency also rises where nothing waits, for example because the upstream has got slower. Then
// a lower limit lowers the rate as well, so the limit tries: if the rate falls with the limit, the
// latency is the upstream's own, and the limit goes back; if the rate does not come back with it,
// there was less to give.
//
// The zero value has seen nothing; Start makes one for use.
type Limit struct {
	// Value is the limit.
	Value float64
	// Base is the latency in microseconds where none waits; 0 until the first window.
	Base float64
	// called is what the last window has called for.
	called call
	// settled: it was right as it was without having risen before, and has moved little since; pace
	// is the rate at which it was.
	settled bool
	pace    float64
	// before is what Value was a window ago.
	before float64
	// run is how many windows in a row it has risen; startRun: it has only risen so far. During a
	// trial it is for how many the limit could fall no further.
	run uint8
	// trial is what the limit tries at present. tried is the window that it compares others with,
	// and limit what the limit was before it tried; former is the Base that a trial has put another
	// in the place of, and back the rate that is to come back.
	trial               trial
	tried               sample
	limit, former, back float64
}

// call is what a window calls for.
type call uint8

const (
	neither call = iota
	up
	down
)

type trial uint8

const (
	// steady: it tries nothing.
	steady trial = iota
	// falling: it has lowered the limit, and looks whether the rate falls too.
	falling
	// probing: the upstream has become quicker, so it lowers the limit until the rate falls too.
	probing
	// rising: the rate fell, so it has raised the limit again, and looks whether the rate comes
	// back.
	rising
	// lifted: it can fall no further, so it has raised the limit, and looks whether the rate rises
	// too.
	lifted
)

const (
	// startRun begins with doublings.
	startRun = math.MaxUint8
	// fewWaiting and manyWaiting times the logarithm of the limit are the requests that wait below
	// which it rises, and above which it falls; once settled it falls above tooMany times as many.
	// A step goes half of the way to middle times the logarithm.
	fewWaiting, middle, manyWaiting = 5, 6.5, 8
	tooMany                         = 1.3
	// another is by how much the rate of another upstream differs from that at which the limit has
	// settled.
	another = 0.15
	// tolerance is by how much latency differs where nothing waits.
	tolerance = 1.05
	// small is the part of a limit below which a step is one.
	small = 0.25
	// steepest is the part of a limit that is left after a window, at least.
	steepest = 0.7
	// steps is the part of the limit by which a window raises it at most, if what it lacks is not
	// less; leaps is the same where surely next to none wait, whatever it lacks.
	steps, leaps = 0.125, 0.2
	// contrast is the least difference of what two windows held that a trial compares, sure the
	// evidence that decides it: one of two cases is 55 times as likely as the other.
	contrast, sure = 0.075, 4
	// headroom times what is in use is as far as the limit rises.
	headroom = 5
	// lowered is by how much a lower latency lowers the base in a window at most, raised by how
	// much a higher one raises it while little is asked of the upstream.
	lowered, raised = 0.95, 1.01
	// quicker is the part of the base below which a latency shows another upstream than before.
	quicker = 0.8
)

// Start is the limit before anything was seen: the least. It doubles with each window until it
// finds that requests wait.
func Start(c Config) Limit { return Limit{Value: float64(c.Min), run: startRun} }

// Most is how many requests may be at the upstream at once.
func (l *Limit) Most() int64 { return int64(l.Value) }

// Next takes in a window that has lasted so long. One with too few answers changes nothing. Nor
// does the limit fall while less than half of it is in use: a quiet service is never shed.
//
//go:noinline
func (l *Limit) Next(c Config, w *Window, lasted quota.Span) {
	l.Value = clamp(l.Value, c)
	l.before = l.Value
	if w.Latency.Total < Enough || lasted <= 0 {
		return
	}
	s := w.sample(float64(c.Percentile)/100, lasted)
	if l.Base == 0 {
		l.Base = s.latency
	}
	quiet := w.Refused == 0 && s.held < l.Value/2
	if !l.tries(s, c, quiet) {
		l.learn(s, quiet)
		l.step(s, quiet)
	}
	l.Value = clamp(l.Value, c)
}

// learn moves the base to a latency that is surely another.
func (l *Limit) learn(s sample, quiet bool) {
	switch {
	case s.high < l.Base:
		l.Base = max(l.Base*lowered, s.high)
	case quiet && s.low > l.Base:
		l.Base = min(l.Base*raised, s.low)
	}
}

// step moves the limit by the requests that wait. One window alone may be chance: once settled, it
// takes two for each small step, and more that wait, or surely fewer. A limit that went after each
// doubtful window would wander.
//
//go:noinline
func (l *Limit) step(s sample, quiet bool) {
	unit := max(log10(l.Value), 1)
	l.unsettle(s)
	most, likely := float64(manyWaiting), (s.low+s.latency)/2
	if l.settled {
		most, likely = manyWaiting*tooMany, (s.latency+s.high)/2
	}
	surely := min(s.rate*(s.low-l.Base*tolerance), s.held)
	rather := s.rate * (likely - l.Base*tolerance)
	switch {
	case surely > most*unit && !quiet:
		l.fall(max((surely-middle*unit)/2, unit), unit)
	case rather < fewWaiting*unit && l.Value < headroom*s.held:
		l.trial = steady
		most := min(max((middle*unit-rather)/2, unit), l.Value*steps)
		if s.rate*(s.high-l.Base*tolerance) < fewWaiting*unit {
			most = l.Value * leaps
		}
		l.Value = max(min(l.Value+l.rise(unit, most), headroom*s.held), l.Value)
	default:
		if l.called != up && !l.settled {
			l.settled, l.pace = true, s.rate
		}
		l.run, l.trial, l.called = 0, steady, neither
	}
}

// unsettle ends the rest of a limit that has settled at another rate.
//
//go:noinline
func (l *Limit) unsettle(s sample) {
	if !l.settled {
		return
	}
	if off := s.rate/l.pace - 1; off > another || off < -another {
		l.settled = false
		return
	}
	l.pace += (s.rate - l.pace) / 8
}

// fall lowers the limit, and begins to try whether the rate falls too.
//
//go:noinline
func (l *Limit) fall(by, unit float64) {
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

// rise is by how much the limit rises, most at most but for the doublings at its start. Each step
// in a row is twice as large as the one before.
//
//go:noinline
func (l *Limit) rise(unit, most float64) float64 {
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

// tries goes on with a trial, and reports whether it has set the limit.
//
//go:noinline
func (l *Limit) tries(s sample, c Config, quiet bool) bool {
	switch {
	case quiet:
		l.giveUp(s)
		return false
	case l.trial == steady && l.freer(s):
		l.trial, l.tried, l.limit, l.Base = probing, sample{}, l.Value, s.high
		return true
	case l.trial == steady:
		return false
	case l.tried.count == 0:
		// The window before may have been of two kinds, before and after what made the latency
		// change.
		l.tried = s
		if l.trial == probing {
			l.Base, l.Value = min(l.Base, s.high), l.Value*steepest
		}
		return l.trial == probing
	case l.trial == rising:
		if l.evidence(s, min(s.held/l.tried.held, l.back/l.tried.rate)) < -sure || s.held < l.tried.held*(1+contrast) {
			l.Base = l.former
		}
		l.trial = steady
		return false
	case l.trial == lifted:
		return l.lower(s, c)
	}
	follows := l.evidence(s, s.held/l.tried.held)
	switch {
	case follows > sure:
		// The upstream may be another, but it has as many places as before.
		l.former, l.Base = l.Base, s.latency
		l.Value, l.tried, l.back = l.limit, s, l.tried.rate
		l.trial, l.run = rising, 0
		return true
	case follows < -sure:
		// They waited. From here on it looks anew.
		l.tried, l.Base = s, min(l.Base, s.latency)
	case l.trial == probing:
		l.trial = steady // It has become quicker than what it tries can tell.
	case l.Value <= float64(c.Min):
		return l.lift(s)
	}
	if l.trial == probing {
		l.Value *= steepest
	}
	return l.trial == probing
}

// lift raises a limit that can fall no further, so that it shows whether the rate rises too: after
// 2 windows, 4, 8 and so on, then after each 128.
//
//go:noinline
func (l *Limit) lift(s sample) bool {
	if l.run++; l.run == 0 {
		l.run = 128
	}
	if l.run < 2 || l.run&(l.run-1) != 0 {
		return false
	}
	l.former, l.Base = l.Base, s.latency
	l.Value, l.tried, l.trial = l.Value/(steepest*steepest), s, lifted
	return true
}

// lower ends what lift has begun: the limit is the least again, unless the rate rose with it.
func (l *Limit) lower(s sample, c Config) bool {
	if l.evidence(s, s.held/l.tried.held) > sure {
		l.trial, l.run = steady, 0
		return false
	}
	l.trial, l.Base, l.Value = falling, l.former, float64(c.Min)
	return true
}

// freer reports whether the upstream has become so much quicker that the base may be one of
// requests that wait.
func (l *Limit) freer(s sample) bool { return s.high < l.Base*quicker }

// giveUp ends a trial that cannot be decided: too little comes, so next to none wait.
func (l *Limit) giveUp(s sample) {
	switch l.trial {
	case probing:
		l.Base = min(l.Base, s.high)
	case rising, lifted:
		l.Base = l.former
	}
	l.trial = steady
}

// evidence is how much likelier a rate is if it is so many times that of the window before than if
// it is the same, as a logarithm; 0 if that is about the same.
//
//go:noinline
func (l *Limit) evidence(s sample, times float64) float64 {
	if times > 1-contrast && times < 1+contrast {
		return 0
	}
	want, got := log(times), log(s.rate/l.tried.rate)
	return want * (2*got - want) / (2 * (1/s.count + 1/l.tried.count))
}

// log is about the natural logarithm of a number from 0.5 to 2, within 0.03.
func log(x float64) float64 { return 2 * (x - 1) / (x + 1) }

// log10 is about the logarithm of a number from 1, within 0.03: between powers of two it is even.
func log10(x float64) float64 {
	whole := bits.Len64(uint64(x)) - 1
	return (float64(whole) + x/float64(uint64(1)<<whole) - 1) * (math.Ln2 / math.Ln10)
}

func clamp(value float64, c Config) float64 {
	return min(max(value, float64(c.Min)), float64(c.Max))
}
