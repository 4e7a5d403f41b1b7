// Package timer decides when a VM ticks: every 10 ms while it has something to do, once a second
// while it has nothing to do, and to the millisecond if a request waits for its turn.
package timer

import "github.com/weir-proxy/weir/shared/quota"

const (
	// Tick is the time between ticks of a VM that has something to do.
	Tick = 10 * quota.Millisecond
	// Idle is the longest time between ticks.
	Idle = quota.Second
	// finest is the shortest time between ticks: Envoy's timers count milliseconds.
	finest = quota.Millisecond
)

// Timer is Envoy's timer of one VM. Envoy begins the period anew after each tick, and when it is
// set. A VM does its periodic work at most once a Tick; the ticks in between are for requests whose
// turn has come. Make a Timer with New.
type Timer struct {
	// period is the period that Envoy has.
	period quota.Span
	// last is when the VM last did its work. next is when the next tick comes.
	last, next quota.Instant
}

// New makes the timer of a VM that starts at now, and returns the period to set.
func New(now quota.Instant) (Timer, quota.Span) {
	return Timer{period: Tick, last: now, next: now + quota.Instant(Tick)}, Tick
}

// Begin reports whether the VM must do its work at now. Envoy's timers may be early by less than a
// millisecond.
func (t *Timer) Begin(now quota.Instant) (work bool) {
	if now <= t.last+quota.Instant(Tick-finest) {
		return false
	}
	t.last = now
	return true
}

// Due reports whether the next tick comes at now or has come before.
func (t *Timer) Due(now quota.Instant) bool { return now >= t.next }

// Late returns by how much the tick at now is late.
func (t *Timer) Late(now quota.Instant) quota.Span { return quota.Span(max(now-t.next, 0)) }

// Slow reports whether the time between ticks may be longer than Tick.
func (t *Timer) Slow() bool { return t.period > Tick }

// Plan ends a tick. Resume is when a request goes on next, due when there is other work. It returns
// the period to set, 0 for no change.
func (t *Timer) Plan(now, resume, due quota.Instant) (set quota.Span) {
	period := periodUntil(now, min(resume, max(due, t.last+quota.Instant(Tick))))
	t.next = now + quota.Instant(period)
	if period == t.period {
		return 0
	}
	t.period = period
	return period
}

// Hasten makes a tick come at resume, when a request goes on. It is not called within a tick. It
// returns the period to set, 0 if the next tick is early enough.
func (t *Timer) Hasten(now, resume quota.Instant) (set quota.Span) {
	period := periodUntil(now, resume)
	if resume >= t.next || now+quota.Instant(period) >= t.next {
		return 0
	}
	t.period, t.next = period, now+quota.Instant(period)
	return period
}

// Wake makes a tick come soon, for work. It is not called within a tick. It returns the period to
// set, 0 if the next tick is early enough.
func (t *Timer) Wake(now quota.Instant) (set quota.Span) {
	return t.Hasten(now, t.last+quota.Instant(Tick))
}

// periodUntil returns the period after which a tick comes at an instant or just after it.
func periodUntil(now, at quota.Instant) quota.Span {
	wait := min(quota.Span(at-now), Idle)
	return max((wait+finest-1)/finest*finest, finest)
}
