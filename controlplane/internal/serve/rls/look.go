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
	// lookEvery is for how long an answer of the store is remembered. As long may it take: what
	// comes late is for the calls after.
	lookEvery = time.Second
	// lookTime is the longest that a call waits for a look: a quarter of Envoy's patience.
	lookTime = 5 * time.Millisecond
	// looksOfOne is how many looks a caller is worth in lookEvery: its calls may differ in their
	// buckets and in their costs.
	looksOfOne = 4
	// looksAtOnce bounds the looks that are with the store.
	looksAtOnce = 64
	// maxLookers bounds the callers whose looks are remembered. The others have none meanwhile.
	maxLookers = 4096
)

// look is a question to the store of what buckets hold, and its answers.
type look struct {
	version uint64
	items   []wire.LeaseItem
	begun   time.Time
	// done is closed once there are answers, as of a time, or it is clear that there will be none.
	done    chan struct{}
	at      time.Time
	answers []wire.LeaseAnswer
}

// isOver is true, too, if the clock was put back.
func (o *look) isOver(now time.Time) bool { return now.Sub(o.begun).Abs() >= lookEvery }

// looks are those of the last lookEvery, by the keys of penalties.
type looks struct {
	places access.Places

	mu      sync.Mutex
	callers map[keyhash.Key][]*look
	swept   time.Time
}

// find returns a caller's look at items, and whether it is a new one, which has to begin; nil if
// there were enough looks just before. The items of a new one are copied.
func (l *looks) find(
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

// hasRoom reports whether there is room for a further caller, and forgets those whose looks are
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

// look finds out what a caller's buckets hold, as of a time, by the store or by a look just before.
// It is nil if that cannot be said soon.
func (s *Service) look(
	ctx context.Context, caller keyhash.Key, version uint64, items []wire.LeaseItem,
) *look {
	now := s.config.Now()
	one, isNew := s.looks.find(caller, version, items, now)
	if one == nil {
		return nil
	}
	if isNew {
		s.begin(one)
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

// begin asks the store, if a place is free. The call that wants to know may end before.
func (s *Service) begin(one *look) {
	if !s.looks.places.Take() {
		close(one.done)
		return
	}
	s.beside(func() {
		defer s.looks.places.Leave()
		defer close(one.done)
		ctx, cancel := context.WithTimeout(context.Background(), lookEvery)
		defer cancel()
		if answers, err := s.grant(ctx, one.version, one.items); err == nil {
			s.failing.answered()
			one.answers, one.at = answers, s.config.Now()
		}
	})
}

// left is what is left of a time that the look has found.
func (o *look) left(span quota.Span, now time.Time) quota.Span {
	if span == quota.Never {
		return span
	}
	return max(span-quota.Span(max(now.Sub(o.at), 0).Microseconds()), 0)
}
