package envoytest

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"
)

// bootOffset is the monotonic clock at New: it counts from the boot of the machine, never from
// zero.
const bootOffset = 1000 * time.Second

// clock is the virtual time of the process and what is due in it.
type clock struct {
	mono atomic.Int64 // nanoseconds since boot
	wall atomic.Int64 // what to add for the wall clock

	advance sync.Mutex // held while time moves
	mu      sync.Mutex // guards what follows
	due     eventQueue
	seq     uint64
}

// event is something to happen at a time; events of one time happen in the order they were made.
type event struct {
	at   int64
	seq  uint64
	fire func()
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

// after schedules fire; it runs in Advance, with no lock held. What is due at once still waits for
// the next Advance.
func (c *clock) after(d time.Duration, fire func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	heap.Push(&c.due, event{at: c.mono.Load() + int64(max(d, 0)), seq: c.seq, fire: fire})
}

// next removes and returns the first event that is due by until.
func (c *clock) next(until int64) (event, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.due) == 0 || c.due[0].at > until {
		return event{}, false
	}
	return heap.Pop(&c.due).(event), true
}

// Now returns the wall clock of the process.
func (h *Host) Now() time.Time { return time.Unix(0, h.clock.mono.Load()+h.clock.wall.Load()).UTC() }

// Monotonic returns the monotonic clock of the process, counted from the boot of the machine.
func (h *Host) Monotonic() time.Duration { return time.Duration(h.clock.mono.Load()) }

// StepWallClock moves the wall clock by d, which may be negative, without any time passing.
func (h *Host) StepWallClock(d time.Duration) { h.clock.wall.Add(int64(d)) }

// StepMonotonicClock moves the monotonic clock by d, which may be negative, without any time
// passing: nothing fires, and the wall clock stays. What was due in between is late, or due that
// much later.
func (h *Host) StepMonotonicClock(d time.Duration) {
	h.clock.mono.Add(int64(d))
	h.clock.wall.Add(-int64(d))
}

// Advance lets d pass: it fires, in time order, the ticks of all root contexts, and delivers what
// is due of answers and timeouts of calls. Advance(0) does what is due now. Work inside a guest
// takes no time.
func (h *Host) Advance(d time.Duration) {
	h.clock.run(d, func(due []func()) {
		for _, fire := range due {
			fire()
		}
	})
}

// run lets d pass and hands what is due to fire, all of one instant together.
func (c *clock) run(d time.Duration, fire func(due []func())) {
	c.advance.Lock()
	defer c.advance.Unlock()
	until := c.mono.Load() + int64(d)
	for e, ok := c.next(until); ok; e, ok = c.next(until) {
		c.mono.Store(max(e.at, c.mono.Load()))
		due := []func(){e.fire}
		for more, ok := c.next(e.at); ok; more, ok = c.next(e.at) {
			due = append(due, more.fire)
		}
		fire(due)
	}
	c.mono.Store(until)
}
