// Package throttle limits the control plane's own callers, by the token buckets that it hands to
// others.
package throttle

import (
	"container/list"
	"fmt"
	"sync"
	"time"

	"github.com/weir-proxy/weir/shared/quota"
)

// Table is a token bucket for each key. Make one with New; nil lets everything through. It is safe
// for concurrent use.
type Table struct {
	params quota.Params
	most   int
	now    func() time.Time

	mu     sync.Mutex
	states map[string]*list.Element // of *entry
	recent *list.List               // the one used last in front
}

type entry struct {
	key   string
	state quota.State
}

// New makes a table of at most that many buckets, each with rate tokens a second and a burst. With
// more keys the one that was used least recently is forgotten, and is full if it comes back.
func New(rate, burst int64, most int, now func() time.Time) (*Table, error) {
	params, err := quota.NewParams(rate, quota.Second, burst)
	if err != nil {
		return nil, fmt.Errorf("a rate of %d a second with a burst of %d: %w", rate, burst, err)
	}
	return &Table{params: params, most: most, now: now, states: map[string]*list.Element{}, recent: list.New()}, nil
}

// Take spends one token of a key. If there is none it says how long to wait for it.
func (t *Table) Take(key string) (wait time.Duration, ok bool) {
	if t == nil {
		return 0, true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(key)
	state, result := t.params.Take(e.state, quota.Instant(t.now().UnixMicro()), 1)
	e.state = state
	return time.Duration(result.RetryAfter) * time.Microsecond, result.Allowed
}

// entry finds the bucket of a key, or makes it. The lock is held.
func (t *Table) entry(key string) *entry {
	if element, ok := t.states[key]; ok {
		t.recent.MoveToFront(element)
		return element.Value.(*entry)
	}
	if len(t.states) >= t.most {
		oldest := t.recent.Back()
		t.recent.Remove(oldest)
		delete(t.states, oldest.Value.(*entry).key)
	}
	e := &entry{key: key}
	t.states[key] = t.recent.PushFront(e)
	return e
}

// Known is a set of keys of a bounded size: a further key takes the place of the one that was seen
// least recently. Make one with NewKnown. It is safe for concurrent use.
type Known struct {
	most int

	mu   sync.Mutex
	keys map[string]*list.Element // of string
	seen *list.List               // the one seen last in front
}

// NewKnown makes an empty set of at most that many keys.
func NewKnown(most int) *Known {
	return &Known{most: most, keys: map[string]*list.Element{}, seen: list.New()}
}

// Has reports whether a key is in the set, and notes that it was seen.
func (k *Known) Has(key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	at, ok := k.keys[key]
	if ok {
		k.seen.MoveToFront(at)
	}
	return ok
}

// Add puts a key into the set.
func (k *Known) Add(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if place, known := k.keys[key]; known {
		k.seen.MoveToFront(place)
		return
	}
	if len(k.keys) >= k.most {
		last := k.seen.Back()
		delete(k.keys, k.seen.Remove(last).(string))
	}
	k.keys[key] = k.seen.PushFront(key)
}
