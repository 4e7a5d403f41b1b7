package fair

import (
	"context"
	"errors"
	"sync"
)

// ErrFull: as many of the source wait as may.
var ErrFull = errors.New("too many requests of this source wait already")

// Gate lets a bounded number in at once; the others wait and go in by turns. Make one with NewGate.
// It is safe for concurrent use.
type Gate struct {
	patience int

	mu    sync.Mutex
	free  int
	queue queue
}

// ticket is one who waits. It is called, or gone, under the gate's lock, never both.
type ticket struct {
	called chan struct{}
	in     bool
	gone   bool
}

// NewGate makes a gate that lets in at most that many at once, and has at most waiting of one
// source wait.
func NewGate(most, waiting int) *Gate { return &Gate{free: most, patience: waiting} }

// EnterNow reports whether there is room; then leave must be called.
func (g *Gate) EnterNow() (leave func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.free == 0 {
		return nil, false
	}
	g.free--
	return g.leave, true
}

// Enter returns once there is room, and then leave must be called; or the context's error, or
// ErrFull at once. While there is no room, each source is let in as often as any other, and of a
// source each node as often as any other of it.
func (g *Gate) Enter(ctx context.Context, source, node string) (leave func(), err error) {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return g.leave, nil
	}
	if g.queue.waiting(source) >= g.patience {
		g.mu.Unlock()
		return nil, ErrFull
	}
	t := &ticket{called: make(chan struct{})}
	g.queue.push(t, source, node)
	g.mu.Unlock()
	select {
	case <-t.called:
		return g.leave, nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.in { // Both happened.
		return g.leave, nil
	}
	t.gone = true
	return nil, ctx.Err()
}

// leave makes room for whose turn it is.
func (g *Gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for t := g.queue.pop(); t != nil; t = g.queue.pop() {
		if !t.gone {
			t.in = true
			close(t.called)
			return
		}
	}
	g.free++
}
