package envoytest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-proxy/weir/shared/vtimetest"
)

// bootOffset is the monotonic clock at New: it counts from the boot of the machine, never from
// zero.
const bootOffset = 1000 * time.Second

// clock is the virtual time of the process, with its queue of events.
type clock struct {
	mono atomic.Int64 // nanoseconds since boot
	wall atomic.Int64 // nanoseconds to add to mono for the wall clock

	advance sync.Mutex             // held while time moves
	mu      sync.Mutex             // guards due
	due     vtimetest.Queue[int64] // by nanoseconds since boot
}

// after schedules fire; it runs in Advance, with no lock held. An event without a delay still waits
// for the next Advance.
func (c *clock) after(d time.Duration, fire func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due.Add(c.mono.Load()+int64(max(d, 0)), fire)
}

// next removes and returns the first event that is due by until.
func (c *clock) next(until int64) (vtimetest.Event[int64], bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.due.Next(until)
}

// Now returns the wall clock of the process.
func (h *Host) Now() time.Time { return time.Unix(0, h.clock.mono.Load()+h.clock.wall.Load()).UTC() }

// Monotonic returns the monotonic clock of the process, counted from the boot of the machine.
func (h *Host) Monotonic() time.Duration { return time.Duration(h.clock.mono.Load()) }

// StepWallClock moves the wall clock by d, which may be negative, without any time passing.
func (h *Host) StepWallClock(d time.Duration) { h.clock.wall.Add(int64(d)) }

// StepMonotonicClock moves the monotonic clock by d, which may be negative, without any time
// passing: nothing fires, and the wall clock stays. After a step forward, events that were due
// meanwhile are late. After a step back, all events are due that much later.
func (h *Host) StepMonotonicClock(d time.Duration) {
	h.clock.mono.Add(int64(d))
	h.clock.wall.Add(-int64(d))
}

// Advance lets d pass. In time order, it fires the ticks of all root contexts, and delivers answers
// and timeouts of calls. Advance(0) handles the events that are due now. Work inside a guest takes
// no time.
func (h *Host) Advance(d time.Duration) {
	h.clock.run(d, func(due []func()) {
		for _, fire := range due {
			fire()
		}
	})
}

// run lets d pass. For each instant it calls fire with all events of that instant.
func (c *clock) run(d time.Duration, fire func(due []func())) {
	c.advance.Lock()
	defer c.advance.Unlock()
	until := c.mono.Load() + int64(d)
	for e, ok := c.next(until); ok; e, ok = c.next(until) {
		c.mono.Store(max(e.At, c.mono.Load()))
		due := []func(){e.Fire}
		for more, ok := c.next(e.At); ok; more, ok = c.next(e.At) {
			due = append(due, more.Fire)
		}
		fire(due)
	}
	c.mono.Store(until)
}
