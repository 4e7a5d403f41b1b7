// Package gather lets callers share calls. A caller who finds no call under way lets those go first
// that are ready to run, and makes a call at once with those that came. Those who come while one is
// under way gather, and go together in the next.
package gather

import (
	"context"
	"errors"
	"runtime"
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
	// yield lets others run that are ready: what one read of a connection brings goes together.
	yield func()

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
	l.full, l.delay, l.call, l.yield = full, delay, call, runtime.Gosched
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
	// late ends the wait for a call that is under way; nil in a batch that waits for none.
	late *time.Timer
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
// whatever the error is, and must be left alone by the caller: the call may still write to it. With
// a ctx of Outlast it returns when the call ends.
func (l *Line[T]) Do(ctx context.Context, item T, size int) error {
	m := &member[T]{ctx, item, size}
	l.mu.Lock()
	if l.underWay > 0 {
		b := l.join(m)
		l.mu.Unlock()
		return l.await(b, m)
	}
	l.underWay++
	b := newBatch[T]()
	l.waiting = b
	l.add(b, m)
	l.mu.Unlock()
	l.yield()
	if !l.alone(b) {
		return l.await(b, m)
	}
	defer l.ended()
	return l.call(ctx, []T{item})
}

// alone takes the only member out of what gathers, whose call is under way then. It reports false
// if there are more: they leave together.
func (l *Line[T]) alone(b *batch[T]) bool {
	l.mu.Lock()
	if l.waiting == b && len(b.members) == 1 {
		l.waiting = nil
		l.mu.Unlock()
		return true
	}
	l.mu.Unlock()
	l.ended() // The call that was to be the first one's own.
	return false
}

// await waits until the call of a member's batch ends, or the member's patience does.
func (l *Line[T]) await(b *batch[T], m *member[T]) error {
	select {
	case <-b.done:
		return b.failure(b.err)
	case <-m.ctx.Done():
		if l.leave(b, m) {
			return m.ctx.Err()
		}
		err := b.failure(m.ctx.Err())
		if late, outlasts := Outlasts(m.ctx); outlasts {
			late(err)
			<-b.done
			err = b.err
		}
		return err
	}
}

type outlastKey struct{}

// Outlast has a caller who was sent in time learn how the call ends: Do, and the call, go on when
// the deadline of ctx is over. That is when late is called, once and before they return, with the
// error that would have been returned. For a caller who has left nothing goes on. Nil ends what an
// outer ctx of Outlast says.
func Outlast(ctx context.Context, late func(error)) context.Context {
	return context.WithValue(ctx, outlastKey{}, late)
}

// Outlasts reports whether a call goes on when its ctx has ended, and what is to be called then.
func Outlasts(ctx context.Context) (late func(error), outlasts bool) {
	late, _ = ctx.Value(outlastKey{}).(func(error))
	return late, late != nil && !errors.Is(ctx.Err(), context.Canceled)
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

// join adds a member to those that gather while a call is under way. The lock is held.
func (l *Line[T]) join(m *member[T]) *batch[T] {
	b := l.waiting
	if b == nil {
		b = newBatch[T]()
		l.waiting = b
		b.late = time.AfterFunc(l.delay, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.waiting == b {
				l.depart()
			}
		})
	}
	l.add(b, m)
	return b
}

func newBatch[T any]() *batch[T] { return &batch[T]{done: make(chan struct{})} }

// add adds a member to the batch that gathers. The lock is held.
func (l *Line[T]) add(b *batch[T], m *member[T]) {
	b.members = append(b.members, m)
	b.size += m.size
	if b.size >= l.full {
		l.depart()
	}
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
		b.stop()
		l.waiting = nil
	}
	return true
}

// depart has the call made for what has gathered. The lock is held.
func (l *Line[T]) depart() { go l.run(l.next()) }

// next takes what has gathered for a call that is under way then. The lock is held.
func (l *Line[T]) next() *batch[T] {
	b := l.waiting
	b.stop()
	l.waiting = nil
	l.underWay++
	return b
}

// stop has the batch wait for no delay any more.
func (b *batch[T]) stop() {
	if b.late != nil {
		b.late.Stop()
	}
}

// run makes the call of a batch, and then of what has gathered meanwhile: as long as callers come,
// one goroutine makes the calls, whose stack has grown already.
func (l *Line[T]) run(b *batch[T]) {
	for b != nil {
		l.make(b)
		b = l.following()
	}
}

// make makes the call of a batch.
func (l *Line[T]) make(b *batch[T]) {
	items := make([]T, len(b.members))
	for i, m := range b.members {
		items[i] = m.item
	}
	ctx, cancel := b.context()
	defer cancel()
	b.err = l.call(ctx, items)
	close(b.done)
}

// following counts the end of a call. After the last one, it returns what has gathered.
func (l *Line[T]) following() *batch[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay--
	if l.underWay == 0 && l.waiting != nil {
		return l.next()
	}
	return nil
}

// ended counts the end of a call that a caller has made itself. What has gathered leaves.
func (l *Line[T]) ended() {
	if b := l.following(); b != nil {
		go l.run(b)
	}
}

// context lasts as long as the most patient member's: no other ends the call, and none waits longer
// than its own. Its values are those of the first. It outlasts its end if that of a member does.
func (b *batch[T]) context() (context.Context, context.CancelFunc) {
	var latest time.Time
	var late func(error)
	for _, m := range b.members {
		if _, outlasts := Outlasts(m.ctx); outlasts {
			late = func(error) {} // Each member hears of it by itself.
			break
		}
	}
	ctx := Outlast(context.WithoutCancel(b.members[0].ctx), late)
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
