// Package nodes knows the Envoys: who polls, which version each applies, and how many share the buckets.
package nodes

import (
	"context"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// Forgotten is how long after its last poll a node is still listed.
	Forgotten = 10 * time.Minute
	// Counted is how long after its last poll a node still counts as one that shares the buckets. A poll takes at most
	// half of it.
	Counted = time.Minute

	countEvery = time.Second
)

// Node is one process of one Envoy, as it described itself in its last poll.
type Node struct {
	ID string `json:"id"`
	// Boot is random for each process, in hexadecimal: two Envoys that were given the same id are still two.
	Boot string `json:"boot"`
	// Applied is the version in use; 0 before the first.
	Applied uint64 `json:"applied"`
	// Refused is the version that the node could not apply, with the Reason; 0 if there is none.
	Refused uint64 `json:"refused,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Filter  string `json:"filter,omitempty"`
	// State is the node's step on the failure ladder.
	State string `json:"state,omitempty"`
	Zone  string `json:"zone,omitempty"`
	// Seen is when the node last polled, by the store's clock.
	Seen time.Time `json:"last_seen"`
}

// Key tells nodes apart.
func (n Node) Key() string { return n.ID + "\x00" + n.Boot }

// Clean returns n with every text bounded and printable: nodes are trusted to count, not to write logs and terminals.
func (n Node) Clean() Node {
	for _, c := range []struct {
		text *string
		max  int
	}{{&n.ID, wire.MaxNodeID}, {&n.Boot, 16}, {&n.Reason, 256}, {&n.Filter, 64}, {&n.State, 32}, {&n.Zone, 64}} {
		*c.text = clean(*c.text, c.max)
	}
	return n
}

// clean replaces what is not printable and cuts to max bytes without splitting a character.
func clean(text string, max int) string {
	var b strings.Builder
	for _, r := range text {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			r = '?'
		}
		if b.Len()+utf8.RuneLen(r) > max {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Store keeps nodes until Forgotten after their last Touch.
type Store interface {
	// Touch stores n as seen now; n.Seen is ignored.
	Touch(ctx context.Context, n Node) error
	// Nodes returns the nodes that are not forgotten, in the order of Key.
	Nodes(ctx context.Context) ([]Node, error)
	// CountNodes is the number of nodes seen within the last span.
	CountNodes(ctx context.Context, within time.Duration) (int64, error)
}

// Registry is the nodes as this replica sees them. Make one with New. It is safe for concurrent use.
type Registry struct {
	store Store
	now   func() time.Time

	mu      sync.Mutex
	count   int64
	counted time.Time
}

// New makes a Registry over store; now tells when a count has become old.
func New(store Store, now func() time.Time) *Registry {
	return &Registry{store: store, now: now, count: 1}
}

// Touch notes that a node polls. Its texts are cleaned.
func (r *Registry) Touch(ctx context.Context, n Node) error { return r.store.Touch(ctx, n.Clean()) }

// List returns the nodes that polled lately.
func (r *Registry) List(ctx context.Context) ([]Node, error) { return r.store.Nodes(ctx) }

// Count is the number of nodes that share the buckets, at least 1. It asks the store at most once a second; while the store
// is away, the last count holds.
func (r *Registry) Count(ctx context.Context) int64 {
	now := r.now()
	r.mu.Lock()
	if !r.counted.IsZero() && now.Sub(r.counted) < countEvery {
		defer r.mu.Unlock()
		return r.count
	}
	r.counted = now // Whoever comes meanwhile takes the last count.
	r.mu.Unlock()
	count, err := r.store.CountNodes(ctx, Counted)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.count = max(count, 1)
	}
	return r.count
}
