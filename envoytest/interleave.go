package envoytest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Step is one host call of an interleaved run: the VM that made it and the call's name, like
// "proxy_get_shared_data".
type Step struct {
	VM   int
	Call string
}

// Interleave runs the functions at once, as the threads of the process would, and returns when all
// have ended. They are free to drive any worker; the host must not be driven from elsewhere
// meanwhile. One of them runs at a time. At each host call, and where it needs a worker that
// another one is in, it hands over, and the seed chooses who goes on. No other guest sees the work
// of a guest between two host calls, so no order of effects is left out. Nothing else is random, so
// one seed always gives the same run.
//
// It returns the run: every host call in order. Runs do not nest.
func (h *Host) Interleave(seed uint64, functions ...func()) []Step {
	t := &turns{random: rand.New(rand.NewPCG(seed, uint64(len(functions)))), done: make(chan struct{})}
	t.stay = t.random.IntN(4)
	if !h.turns.CompareAndSwap(nil, t) {
		panic("envoytest: Interleave inside Interleave")
	}
	defer h.turns.Store(nil)
	for _, f := range functions {
		turn := make(chan struct{})
		t.ready = append(t.ready, turn)
		go func() {
			<-turn
			defer t.end() // also of a function that ends its goroutine, as testing.T.FailNow does
			f()
		}()
	}
	if len(functions) > 0 {
		t.choose()
		<-t.done
	}
	return t.steps
}

// AdvanceAtOnce lets d pass as Advance does, but runs the events of the same instant, such as the
// ticks of all workers, at once with Interleave. It returns the run.
func (h *Host) AdvanceAtOnce(seed uint64, d time.Duration) []Step {
	var steps []Step
	h.clock.run(d, func(due []func()) {
		seed++
		steps = append(steps, h.Interleave(seed, due...)...)
	})
	return steps
}

// turns says which of the functions of an interleaved run goes on. Only the running one touches it.
type turns struct {
	random *rand.Rand
	// stay, of four, is how often the running function keeps its turn: some runs change hands at
	// every step, some rarely.
	stay    int
	ready   []chan struct{} // of the functions that have not ended, the running function included
	running int
	steps   []Step
	done    chan struct{}
}

// step hands over before a host call.
func (t *turns) step(vm int, call string) {
	if t.random.IntN(4) >= t.stay {
		t.handOver()
	}
	t.steps = append(t.steps, Step{VM: vm, Call: call})
}

// handOver lets a random function go on, maybe the same function.
func (t *turns) handOver() {
	self := t.ready[t.running]
	if next := t.random.IntN(len(t.ready)); t.ready[next] != self {
		t.running = next
		t.ready[next] <- struct{}{}
		<-self
	}
}

// choose starts one of the functions.
func (t *turns) choose() {
	t.running = t.random.IntN(len(t.ready))
	t.ready[t.running] <- struct{}{}
}

// end takes the running function out and lets another one go on.
func (t *turns) end() {
	t.ready = append(t.ready[:t.running], t.ready[t.running+1:]...)
	if len(t.ready) == 0 {
		close(t.done)
		return
	}
	t.choose()
}

// threadLock is the lock of a thread. In an interleaved run a function that needs a taken one lets
// others go on.
type threadLock struct {
	h  *Host
	mu sync.Mutex
}

// Lock takes the lock.
func (l *threadLock) Lock() {
	t := l.h.turns.Load()
	if t == nil {
		l.mu.Lock()
		return
	}
	for attempt := 0; !l.mu.TryLock(); attempt++ {
		if attempt == maxAttempts {
			panic(fmt.Sprintf(
				"envoytest: a function of Interleave waits for a worker that no function leaves, after %d steps",
				len(t.steps)))
		}
		t.handOver()
	}
}

// Unlock gives it back.
func (l *threadLock) Unlock() { l.mu.Unlock() }

// maxAttempts is how often a function may find a worker taken before it is clear that it always
// will be.
const maxAttempts = 10_000_000
