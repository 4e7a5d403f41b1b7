// Package gather lets callers share calls. A caller who finds no call under way makes its own at
// once. Those who come while one is under way gather, and go together in the next.
package gather

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Line is where the callers of one server gather. Init it before use. It is safe for concurrent
// use.
type Line[T any] struct {
	call  func(ctx context.Context, together []T) error
	full  int
	delay time.Duration

	mu       sync.Mutex
	underWay int
	// waiting gathers for the next call; nil if no caller waits. It leaves as soon as no call is
	// under way.
	waiting *batch[T]
}

// Init sets how the line works. Call makes one call for one or more items, and puts what belongs to
// one item alone into the item; its error concerns them all. Items of the size full, or more, leave
// without waiting for the call under way, and so does what has gathered for the delay: a call that
// is slow or lost holds up no other for longer.
func (l *Line[T]) Init(full int, delay time.Duration, call func(context.Context, []T) error) {
	l.full, l.delay, l.call = full, delay, call
}

// Shared is the failure of a call, or of waiting for one, that another caller of the same call has
// got as it is: both are evidence of one failure.
type Shared struct{ Err error }

// Error returns the failure's text.
func (s *Shared) Error() string { return s.Err.Error() }

// Unwrap returns the failure.
func (s *Shared) Unwrap() error { return s.Err }

// IsShared reports whether another caller has got the same failure as it is.
func IsShared(err error) bool {
	var shared *Shared
	return errors.As(err, &shared)
}

// batch is what goes in one call.
type batch[T any] struct {
	members []*member[T]
	size    int
	late    *time.Timer
	// done is closed once the call has ended with err.
	done chan struct{}
	err  error
	// claimed: a caller has got the failure as it is.
	claimed atomic.Bool
}

type member[T any] struct {
	ctx  context.Context
	item T
	size int
}

// Do makes a call for an item of a size, or shares one. It returns when the call ends or ctx does.
// An item whose ctx ends while it gathers is not sent. One that was sent may have taken effect
// whatever the error is, and must be left alone by the caller: the call may still write to it.
func (l *Line[T]) Do(ctx context.Context, item T, size int) error {
	l.mu.Lock()
	if l.underWay == 0 {
		l.underWay++
		l.mu.Unlock()
		defer l.ended()
		return l.call(ctx, []T{item})
	}
	m := &member[T]{ctx, item, size}
	b := l.join(m)
	l.mu.Unlock()
	select {
	case <-b.done:
		return b.failure(b.err)
	case <-ctx.Done():
		if l.leave(b, m) {
			return ctx.Err()
		}
		return b.failure(ctx.Err())
	}
}

// Waiting is how many callers gather for the next call.
func (l *Line[T]) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		return 0
	}
	return len(l.waiting.members)
}

// failure is what a caller gets of an error: only one gets it as it is. A caller who went away has
// seen no failure.
func (b *batch[T]) failure(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || b.claimed.CompareAndSwap(false, true) {
		return err
	}
	return &Shared{err}
}

// join adds a member to those that gather. The lock is held.
func (l *Line[T]) join(m *member[T]) *batch[T] {
	b := l.waiting
	if b == nil {
		b = &batch[T]{done: make(chan struct{})}
		l.waiting = b
		b.late = time.AfterFunc(l.delay, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.waiting == b {
				l.depart()
			}
		})
	}
	b.members = append(b.members, m)
	b.size += m.size
	if b.size >= l.full {
		l.depart()
	}
	return b
}

// leave takes a member out of what gathers. It reports false if that has left.
func (l *Line[T]) leave(b *batch[T], m *member[T]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting != b {
		return false
	}
	b.members = slices.DeleteFunc(b.members, func(other *member[T]) bool { return other == m })
	b.size -= m.size
	if len(b.members) == 0 {
		b.late.Stop()
		l.waiting = nil
	}
	return true
}

// depart has the call made for what has gathered. The lock is held.
func (l *Line[T]) depart() {
	b := l.waiting
	b.late.Stop()
	l.waiting = nil
	l.underWay++
	go l.run(b)
}

// run makes the call of a batch.
func (l *Line[T]) run(b *batch[T]) {
	defer l.ended()
	items := make([]T, len(b.members))
	for i, m := range b.members {
		items[i] = m.item
	}
	ctx, cancel := b.context()
	defer cancel()
	b.err = l.call(ctx, items)
	close(b.done)
}

// ended counts the end of a call. After the last one, what has gathered leaves.
func (l *Line[T]) ended() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay--
	if l.underWay == 0 && l.waiting != nil {
		l.depart()
	}
}

// context lasts as long as the most patient member's: no other ends the call, and none waits longer
// than its own. Its values are those of the first.
func (b *batch[T]) context() (context.Context, context.CancelFunc) {
	ctx := context.WithoutCancel(b.members[0].ctx)
	var latest time.Time
	for _, m := range b.members {
		deadline, ok := m.ctx.Deadline()
		if !ok {
			return ctx, func() {}
		}
		if deadline.After(latest) {
			latest = deadline
		}
	}
	return context.WithDeadline(ctx, latest)
}
