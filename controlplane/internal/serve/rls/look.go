package rls

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// A call that a penalty refuses is refused whatever the store says: it asks only so that the answer
// names its limits and a wait that is true. Its caller, who does not listen, must cost the others
// nothing. So looks are few, have places of their own, and are waited for so shortly that no Envoy
// lets the request pass meanwhile.

const (
	// lookEvery is the time that an answer of the store is remembered, and the longest time that it
	// may take: a late answer is used for the next calls.
	lookEvery = time.Second
	// lookTime is the longest that a call waits for a look: a quarter of Envoy's patience.
	lookTime = 5 * time.Millisecond
	// looksOfOne is the largest number of looks for one caller in lookEvery: its calls may differ
	// in their buckets and in their costs.
	looksOfOne = 4
	// looksAtOnce bounds the looks that are with the store.
	looksAtOnce = 64
	// maxLookers is the largest number of callers whose looks are remembered. Further callers get
	// no look.
	maxLookers = 4096
)

// look is a question to the store about the tokens of buckets, and its answers.
type look struct {
	version uint64
	items   []wire.LeaseItem
	begun   time.Time
	// done is closed when the look has ended. answers are the store's answers at the time at; nil
	// if the store gave none.
	done    chan struct{}
	at      time.Time
	answers []wire.LeaseAnswer
}

// isOver reports whether the look is too old to use, or the clock was put back.
func (o *look) isOver(now time.Time) bool { return now.Sub(o.begun).Abs() >= lookEvery }

// looks has the looks of the last lookEvery, by the keys of penalties.
type looks struct {
	places access.Places

	mu      sync.Mutex
	callers map[keyhash.Key][]*look
	swept   time.Time
}

// findLook returns a caller's look at items, and whether the look is new and must be started; nil
// if the caller has used its looks of this lookEvery. The items of a new look are copied.
func (l *looks) findLook(
	caller keyhash.Key, version uint64, items []wire.LeaseItem, now time.Time,
) (one *look, isNew bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list, known := l.callers[caller]
	if known {
		list = slices.DeleteFunc(list, func(o *look) bool { return o.isOver(now) })
		l.callers[caller] = list
	}
	for _, o := range list {
		if o.version == version && slices.Equal(o.items, items) {
			return o, false
		}
	}
	if len(list) >= looksOfOne || !known && !l.hasRoom(now) {
		return nil, false
	}
	one = &look{version: version, items: slices.Clone(items), begun: now, done: make(chan struct{})}
	l.callers[caller] = append(list, one)
	return one, true
}

// hasRoom reports whether there is room for a further caller, and removes callers whose looks are
// over. The lock is held.
func (l *looks) hasRoom(now time.Time) bool {
	if len(l.callers) < maxLookers {
		return true
	}
	if now.Sub(l.swept).Abs() < lookEvery {
		return false
	}
	l.swept = now
	for key, list := range l.callers {
		if len(list) == 0 || list[len(list)-1].isOver(now) {
			delete(l.callers, key)
		}
	}
	return len(l.callers) < maxLookers
}

// lookAtBuckets returns the state of a caller's buckets with its time, from the store or from a
// look of the last lookEvery. It returns nil if the caller has used its looks, or if the look does
// not end within lookTime.
func (s *Service) lookAtBuckets(
	ctx context.Context, caller keyhash.Key, version uint64, items []wire.LeaseItem,
) *look {
	now := s.config.Now()
	one, isNew := s.looks.findLook(caller, version, items, now)
	if one == nil {
		return nil
	}
	if isNew {
		s.startLook(one)
	}
	select {
	case <-one.done:
		return one
	default:
	}
	patience := time.NewTimer(min(lookTime-now.Sub(one.begun), lookTime))
	defer patience.Stop()
	select {
	case <-one.done:
		return one
	case <-patience.C:
	case <-ctx.Done():
	}
	return nil
}

// startLook asks the store, if a place is free. The call that waits for it may end earlier.
func (s *Service) startLook(one *look) {
	if !s.looks.places.Take() {
		close(one.done)
		return
	}
	s.beside(func() {
		defer s.looks.places.Leave()
		defer close(one.done)
		ctx, cancel := context.WithTimeout(context.Background(), lookEvery)
		defer cancel()
		if answers, err := s.grantOne(ctx, one.version, one.items); err == nil {
			s.failing.noteAnswer()
			one.answers, one.at = answers, s.config.Now()
		}
	})
}

// leftOf returns the rest of a wait that the look has found.
func (o *look) leftOf(span quota.Span, now time.Time) quota.Span {
	if span == quota.Never {
		return span
	}
	return max(span-quota.Span(max(now.Sub(o.at), 0).Microseconds()), 0)
}
