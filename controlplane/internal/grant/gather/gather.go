// Package gather lets callers share calls. If no call is under way, a caller first lets other ready
// goroutines run, and then makes one call for all items that have gathered. Items that arrive while
// a call is under way gather for the next call.
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

// Line gathers the callers of one server. Call Init before use. It is safe for concurrent use.
type Line[T any] struct {
	call  func(ctx context.Context, together []T) error
	full  int
	delay time.Duration
	// yield lets other ready goroutines run, so that requests from one read of a connection share a
	// call.
	yield func()

	mu       sync.Mutex
	underWay int
	// waiting gathers items for the next call; nil if no caller waits. It leaves as soon as no call
	// is under way.
	waiting *batch[T]
}

// Init configures the line. call makes one call for one or more items, and puts the result of each
// item into the item; its error concerns all items. Items with a total size of full, or more, leave
// without waiting for the call under way, and so does a batch that has gathered for delay: a slow
// or lost call delays other calls no longer than that.
func (l *Line[T]) Init(full int, delay time.Duration, call func(context.Context, []T) error) {
	l.full, l.delay, l.call, l.yield = full, delay, call, runtime.Gosched
}

// Shared is the failure of a call, or of a wait for it, that another caller of the same call has
// received unwrapped: both are evidence of one failure.
type Shared struct{ Err error }

// Error returns the failure's text.
func (s *Shared) Error() string { return s.Err.Error() }

// Unwrap returns the failure.
func (s *Shared) Unwrap() error { return s.Err }

// IsShared reports whether another caller has received the same failure unwrapped.
func IsShared(err error) bool {
	var shared *Shared
	return errors.As(err, &shared)
}

// batch has the items of one call.
type batch[T any] struct {
	members []*member[T]
	size    int
	// late ends the wait for a call under way; nil in a batch that does not wait.
	late *time.Timer
	// done is closed once the call has ended with err.
	done chan struct{}
	err  error
	// claimed is true once a caller has received the failure unwrapped.
	claimed atomic.Bool
}

type member[T any] struct {
	ctx  context.Context
	item T
	size int
}

// Do makes a call for an item of a size, or shares a call. It returns when the call ends or ctx
// ends. If ctx ends while the item gathers, the item is not sent. An item that was sent may have
// taken effect whatever the error is, and the caller must not use it again: the call may still
// write to it. With a ctx of Outlast, Do returns when the call ends.
func (l *Line[T]) Do(ctx context.Context, item T, size int) error {
	m := &member[T]{ctx, item, size}
	l.mu.Lock()
	// Join a call that is under way.
	if l.underWay > 0 {
		b := l.joinBatch(m)
		l.mu.Unlock()
		return l.awaitCall(b, m)
	}
	// Otherwise begin a call, and let others join it first.
	l.underWay++
	b := newBatch[T]()
	l.waiting = b
	l.addMember(b, m)
	l.mu.Unlock()
	l.yield()
	if !l.takeAlone(b) {
		return l.awaitCall(b, m)
	}
	defer l.endOwnCall()
	return l.call(ctx, []T{item})
}

// takeAlone takes the only member out of the waiting batch, and reports true: its own call begins.
// It reports false if there are more members, which leave together.
func (l *Line[T]) takeAlone(b *batch[T]) bool {
	l.mu.Lock()
	if l.waiting == b && len(b.members) == 1 {
		l.waiting = nil
		l.mu.Unlock()
		return true
	}
	l.mu.Unlock()
	l.endOwnCall() // This caller's own call does not take place.
	return false
}

// awaitCall waits until the call of a member's batch ends, or until the member's ctx ends.
func (l *Line[T]) awaitCall(b *batch[T], m *member[T]) error {
	select {
	case <-b.done:
		return b.failureFor(b.err)
	case <-m.ctx.Done():
		if l.leaveBatch(b, m) {
			return m.ctx.Err()
		}
		err := b.failureFor(m.ctx.Err())
		if late, outlasts := Outlasts(m.ctx); outlasts {
			late(err)
			<-b.done
			err = b.err
		}
		return err
	}
}

type outlastKey struct{}

// Outlast lets a caller whose item was sent in time wait for the end of the call: Do, and the call,
// go on after the deadline of ctx. At that moment late is called once, with the error that would
// have been returned. For a caller that was cancelled nothing goes on. A nil late ends the effect
// of an outer Outlast.
func Outlast(ctx context.Context, late func(error)) context.Context {
	return context.WithValue(ctx, outlastKey{}, late)
}

// Outlasts reports whether a call goes on after the end of its ctx, and returns the function to
// call then.
func Outlasts(ctx context.Context) (late func(error), outlasts bool) {
	late, _ = ctx.Value(outlastKey{}).(func(error))
	return late, late != nil && !errors.Is(ctx.Err(), context.Canceled)
}

// Waiting returns the number of callers that gather for the next call.
func (l *Line[T]) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		return 0
	}
	return len(l.waiting.members)
}

// failureFor returns the error for a caller: only one caller receives it unwrapped. A caller that
// went away has seen no failure.
func (b *batch[T]) failureFor(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || b.claimed.CompareAndSwap(false, true) {
		return err
	}
	return &Shared{err}
}

// joinBatch adds a member to the batch that gathers while a call is under way. The lock is held.
func (l *Line[T]) joinBatch(m *member[T]) *batch[T] {
	b := l.waiting
	if b == nil {
		b = newBatch[T]()
		l.waiting = b
		b.late = time.AfterFunc(l.delay, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.waiting == b {
				l.sendBatch()
			}
		})
	}
	l.addMember(b, m)
	return b
}

func newBatch[T any]() *batch[T] { return &batch[T]{done: make(chan struct{})} }

// addMember adds a member to the waiting batch. The lock is held.
func (l *Line[T]) addMember(b *batch[T], m *member[T]) {
	b.members = append(b.members, m)
	b.size += m.size
	if b.size >= l.full {
		l.sendBatch()
	}
}

// leaveBatch removes a member from the waiting batch. It returns false if the batch has left.
func (l *Line[T]) leaveBatch(b *batch[T], m *member[T]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting != b {
		return false
	}
	b.members = slices.DeleteFunc(b.members, func(other *member[T]) bool { return other == m })
	b.size -= m.size
	if len(b.members) == 0 {
		b.stopTimer()
		l.waiting = nil
	}
	return true
}

// sendBatch starts the call of the waiting batch. The lock is held.
func (l *Line[T]) sendBatch() { go l.runCalls(l.takeBatch()) }

// takeBatch takes the waiting batch for a call, which is under way from then on. The lock is held.
func (l *Line[T]) takeBatch() *batch[T] {
	b := l.waiting
	b.stopTimer()
	l.waiting = nil
	l.underWay++
	return b
}

// stopTimer ends the timer of the batch.
func (b *batch[T]) stopTimer() {
	if b.late != nil {
		b.late.Stop()
	}
}

// runCalls makes the call of a batch, and then of the batches that have gathered in between: as
// long as callers come, one goroutine makes all calls, because its stack has grown already.
func (l *Line[T]) runCalls(b *batch[T]) {
	for b != nil {
		l.makeCall(b)
		b = l.endCall()
	}
}

// makeCall makes the call of a batch.
func (l *Line[T]) makeCall(b *batch[T]) {
	items := make([]T, len(b.members))
	for i, m := range b.members {
		items[i] = m.item
	}
	ctx, cancel := b.callContext()
	defer cancel()
	b.err = l.call(ctx, items)
	close(b.done)
}

// endCall counts the end of a call. After the last call it returns the batch that has gathered.
func (l *Line[T]) endCall() *batch[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay--
	if l.underWay == 0 && l.waiting != nil {
		return l.takeBatch()
	}
	return nil
}

// endOwnCall counts the end of a caller's own call, and starts the call of the batch that has
// gathered.
func (l *Line[T]) endOwnCall() {
	if b := l.endCall(); b != nil {
		go l.runCalls(b)
	}
}

// callContext returns a context that lasts until the latest deadline of the members: no member ends
// the call of the other members, and none waits longer than its own deadline. Its values are from
// the first member. It outlasts its end if the context of a member does.
func (b *batch[T]) callContext() (context.Context, context.CancelFunc) {
	var latest time.Time
	var late func(error)
	for _, m := range b.members {
		if _, outlasts := Outlasts(m.ctx); outlasts {
			late = func(error) {} // Each member calls its own function.
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
