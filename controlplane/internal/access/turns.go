package access

import (
	"context"
	"errors"
	"sync"
)

// ErrFull: the source has no room for one more that waits.
var ErrFull = errors.New("too many requests of this source wait already")

// Turns lets a bounded number in at once; the others wait and go in by turns. NewTurns makes it. It
// is safe for concurrent use.
type Turns struct {
	patience int

	mu    sync.Mutex
	free  int
	queue queue
}

// ticket is a request that waits. It is called, or gone, under the lock of Turns, never both.
type ticket struct {
	called chan struct{}
	in     bool
	gone   bool
}

// NewTurns lets in at most that many at once, and has at most waiting of one source wait.
func NewTurns(most, waiting int) *Turns { return &Turns{free: most, patience: waiting} }

// EnterNow reports whether there is room; then leave must be called.
func (t *Turns) EnterNow() (leave func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free == 0 {
		return nil, false
	}
	t.free--
	return t.leave, true
}

// Enter returns once there is room, and then leave must be called; or the context's error, or
// ErrFull at once. While there is no room, each source is let in as often as any other, and of a
// source each node as often as any other of it.
func (t *Turns) Enter(ctx context.Context, source, node string) (leave func(), err error) {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return t.leave, nil
	}
	if t.queue.waiting(source) >= t.patience {
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
	if mine.in { // Both happened.
		return t.leave, nil
	}
	mine.gone = true
	return nil, ctx.Err()
}

// leave makes room for whose turn it is.
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
