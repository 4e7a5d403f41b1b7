package access

import (
	"context"
	"errors"
	"sync"
)

// ErrFull is returned if too many requests of the source wait already.
var ErrFull = errors.New("too many requests of this source wait already")

// Turns lets a bounded number of requests run at once; the others wait and run in rotation. Make
// one with NewTurns. It is safe for concurrent use.
type Turns struct {
	patience int

	mu    sync.Mutex
	free  int
	queue queue
}

// ticket is a waiting request. It is either called or gone, never both; the lock of Turns guards
// this.
type ticket struct {
	called chan struct{}
	in     bool
	gone   bool
}

// NewTurns lets at most most requests run at once, and at most waiting of one source wait.
func NewTurns(most, waiting int) *Turns { return &Turns{free: most, patience: waiting} }

// EnterNow reports whether there is room. If so, the caller must call leave.
func (t *Turns) EnterNow() (leave func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free == 0 {
		return nil, false
	}
	t.free--
	return t.leave, true
}

// Enter waits until there is room. Then the caller must call leave. It returns the context's error,
// or ErrFull at once. Sources that wait get equal shares, and so do the nodes of a source.
func (t *Turns) Enter(ctx context.Context, source, node string) (leave func(), err error) {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return t.leave, nil
	}
	if t.queue.countWaiting(source) >= t.patience {
		t.mu.Unlock()
		return nil, ErrFull
	}
	mine := &ticket{called: make(chan struct{})}
	t.queue.push(mine, source, node)
	t.mu.Unlock()
	select {
	case <-mine.called:
		return t.leave, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if mine.in { // The ticket was called and the context ended.
		return t.leave, nil
	}
	mine.gone = true
	return nil, ctx.Err()
}

// leave makes room for the next request in rotation.
func (t *Turns) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for next := t.queue.pop(); next != nil; next = t.queue.pop() {
		if !next.gone {
			next.in = true
			close(next.called)
			return
		}
	}
	t.free++
}
