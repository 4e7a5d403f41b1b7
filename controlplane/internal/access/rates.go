package access

import (
	"container/list"
	"fmt"
	"sync"
	"time"

	"github.com/weir-proxy/weir/shared/quota"
)

// Rates is a token bucket for each key, of the same kind as the buckets of policies. Make it with
// NewRates. A nil Rates allows everything. It is safe for concurrent use.
type Rates struct {
	params quota.Params
	now    func() time.Time

	mu     sync.Mutex
	states recent[quota.State]
}

// NewRates makes at most most buckets, each with rate tokens per second and a burst. If there are
// more keys, the least recently used key is dropped, and its bucket is full when it returns.
func NewRates(rate, burst int64, most int, now func() time.Time) (*Rates, error) {
	params, err := quota.NewParams(rate, quota.Second, burst)
	if err != nil {
		return nil, fmt.Errorf("a rate of %d a second with a burst of %d: %w", rate, burst, err)
	}
	return &Rates{params: params, now: now, states: newRecent[quota.State](most)}, nil
}

// Take takes one token of a key. If there is none, it returns how long to wait.
func (r *Rates) Take(key string) (wait time.Duration, ok bool) {
	if r == nil {
		return 0, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.states.findOrAdd(key)
	next, result := r.params.Take(*state, quota.Instant(r.now().UnixMicro()), 1)
	*state = next
	return time.Duration(result.RetryAfter) * time.Microsecond, result.Allowed
}

// Keys is a set of keys with a maximum size: a further key replaces the least recently seen key.
// Make it with NewKeys. It is safe for concurrent use.
type Keys struct {
	mu   sync.Mutex
	keys recent[struct{}]
}

// NewKeys makes an empty set of at most most keys.
func NewKeys(most int) *Keys { return &Keys{keys: newRecent[struct{}](most)} }

// Has reports whether a key is in the set, and marks it as seen.
func (k *Keys) Has(key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys.find(key) != nil
}

// Add adds a key to the set.
func (k *Keys) Add(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys.findOrAdd(key)
}

// recent holds a value for each of the most recently used keys.
type recent[V any] struct {
	most  int
	byKey map[string]*list.Element // of *kept[V]
	order *list.List               // most recently used first
}

type kept[V any] struct {
	key   string
	value V
}

// newRecent makes an empty recent with room for most keys.
func newRecent[V any](most int) recent[V] {
	return recent[V]{most: most, byKey: map[string]*list.Element{}, order: list.New()}
}

// find returns the value of a key and marks it as used; nil if there is none.
func (r *recent[V]) find(key string) *V {
	element, ok := r.byKey[key]
	if !ok {
		return nil
	}
	r.order.MoveToFront(element)
	return &element.Value.(*kept[V]).value
}

// findOrAdd returns the value of a key, which is zero for a new key. If there are too many keys, a
// new one replaces the least recently used key.
func (r *recent[V]) findOrAdd(key string) *V {
	if value := r.find(key); value != nil {
		return value
	}
	if len(r.byKey) >= r.most {
		delete(r.byKey, r.order.Remove(r.order.Back()).(*kept[V]).key)
	}
	fresh := &kept[V]{key: key}
	r.byKey[key] = r.order.PushFront(fresh)
	return &fresh.value
}
