package timer_test

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/timer"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	ms    = quota.Instant(quota.Millisecond)
	never = quota.Forever
)

// envoy is a VM's timer in Envoy: its period begins anew when it is set and behind each tick.
type envoy struct {
	timer  timer.Timer
	now    quota.Instant
	period quota.Span
	next   quota.Instant
}

func start() *envoy {
	e := &envoy{now: 5000 * ms}
	var period quota.Span
	e.timer, period = timer.New(e.now)
	e.set(period)
	return e
}

func (e *envoy) set(period quota.Span) {
	if period > 0 {
		e.period, e.next = period, e.now+quota.Instant(period)
	}
}

// tick lets time pass up to the next tick, and plans the tick after it. It reports whether it was a
// tick for work.
func (e *envoy) tick(resume, due quota.Instant) (work bool) {
	e.now = e.next
	work = e.timer.Begin(e.now)
	e.set(e.timer.Plan(e.now, resume, due))
	e.next = e.now + quota.Instant(e.period)
	return work
}

// The next tick comes when something is due: for work at most once a Tick, for a request at its
// millisecond, and once a second at least.
func TestTheNextTick(t *testing.T) {
	for _, c := range []struct {
		name              string
		resume, due, want quota.Instant
		slow              bool
	}{
		{"nothing is due", never, never, 1000 * ms, true},
		{"something was due", never, -1, 10 * ms, false},
		{"something is due at once", never, 3 * ms, 10 * ms, false},
		{"something is due later", never, 25 * ms, 25 * ms, true},
		{"something is due much later", never, 2500 * ms, 1000 * ms, true},
		{"a resume has come", 0, never, ms, false},
		{"a resume comes within a tick", 3 * ms, 0, 3 * ms, false},
		{"a resume comes within a millisecond", 3*ms + 1, 0, 4 * ms, false},
		{"work comes before a resume", 300 * ms, 20 * ms, 20 * ms, true},
		{"a resume comes before work", 20 * ms, 300 * ms, 20 * ms, true},
	} {
		e := start()
		e.now = e.next
		e.timer.Begin(e.now)
		e.set(e.timer.Plan(e.now, relative(e, c.resume), relative(e, c.due)))
		if got := quota.Instant(e.period); got != c.want || e.timer.Slow() != c.slow {
			t.Errorf("%s: in %d µs, want %d; slow %v", c.name, got, c.want, e.timer.Slow())
		}
	}
}

// relative is an instant given from now on.
func relative(e *envoy, at quota.Instant) quota.Instant {
	if at == never {
		return never
	}
	return e.now + at
}

// A callback while ticks are slow brings the next tick forward, never further away. Ticks for turns
// do not replace ticks for work.
func TestCallbacksBringTheNextTickForward(t *testing.T) {
	e := start()
	if e.set(e.timer.Wake(e.now)); e.next != e.now+10*ms {
		t.Errorf("the first tick comes in %d µs", e.next-e.now)
	}
	e.tick(never, never)
	quiet := e.now
	e.now += 4 * ms
	if e.set(e.timer.Wake(e.now)); e.next != quiet+10*ms {
		t.Errorf("4 ms behind work, the next is %d µs behind it", e.next-quiet)
	}
	e.tick(never, never)
	e.now += 500 * ms
	if e.set(e.timer.Wake(e.now)); e.next != e.now+ms {
		t.Errorf("long behind work, the next comes in %d µs", e.next-e.now)
	}
	e.tick(never, never)
	e.now += 500 * ms
	if !e.timer.Begin(e.now) || e.timer.Begin(e.now+9*ms) {
		t.Error("a request does the work, once a tick")
	}
	if e.set(e.timer.Wake(e.now)); e.next != e.now+10*ms {
		t.Errorf("behind the request's work, the next comes in %d µs", e.next-e.now)
	}
	resume := e.now + 3*ms
	if e.set(e.timer.Hasten(e.now, resume)); e.next != resume {
		t.Errorf("a resume comes in 3 ms, the next tick in %d µs", e.next-e.now)
	}
	if set := e.timer.Hasten(e.now, resume+ms); set != 0 {
		t.Errorf("a later resume sets %d µs", set)
	}
	worked := e.now
	if e.tick(never, e.now) || e.next != worked+10*ms || !e.tick(never, never) {
		t.Errorf("behind the resume, the next tick comes %d µs behind the last work", e.next-worked)
	}
}

// Whatever happens, the timer knows when Envoy ticks next; nothing due waits for longer than a
// Tick, and no resume for longer than a millisecond.
func TestDueTicksAreNotLate(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	e := start()
	resume, due := never, never
	for range 200_000 {
		if r.IntN(3) > 0 {
			if e.now = max(e.now, e.next); e.now >= due+11*ms && due != never || e.now > resume+ms && resume != never {
				t.Fatalf("a tick at %d, with a resume at %d and work due at %d", e.now, resume, due)
			}
			if e.now >= resume {
				resume = never
			}
			if e.timer.Begin(e.now) && e.now >= due {
				due = never
			}
			e.set(e.timer.Plan(e.now, resume, due))
			e.next = e.now + quota.Instant(e.period)
		} else if at := e.now + quota.Instant(r.Int64N(int64(20*ms))); at < e.next {
			e.now = at // A callback.
			switch r.IntN(3) {
			case 0:
				resume = min(resume, e.now+quota.Instant(r.Int64N(int64(50*ms))))
				e.set(e.timer.Hasten(e.now, resume))
			case 1:
				due = min(due, e.now)
				e.set(e.timer.Wake(e.now))
			}
		}
		if e.timer.Due(e.next-1) || !e.timer.Due(e.next) {
			t.Fatalf("Envoy ticks at %d, and the timer does not know", e.next)
		}
	}
}

// A tick is late by the time since it was to come.
func TestLate(t *testing.T) {
	e := start()
	for _, by := range []quota.Instant{0, ms, 70 * ms} {
		if got := e.timer.Late(e.next + by); got != quota.Span(by) {
			t.Errorf("late by %d, want %d", got, by)
		}
	}
	if got := e.timer.Late(e.next - ms/2); got != 0 {
		t.Errorf("an early tick is late by %d", got)
	}
}
