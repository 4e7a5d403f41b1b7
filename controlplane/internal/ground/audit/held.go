package audit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/every"
)

const (
	// heldEntries is the number of entries that a replica keeps in memory while the store is
	// unreachable.
	heldEntries = 500
	// readEvery is the period at which it reads them again.
	readEvery = 10 * time.Second
	// readTime is the timeout for one read.
	readTime = time.Second
)

// Held is a Store that keeps its newest entries in memory, in case the store is unreachable. Make
// one with NewHeld, and run Run in one goroutine. It is safe for concurrent use.
type Held struct {
	Store
	now func() time.Time

	mu   sync.Mutex
	list []Entry
	read time.Time
}

// NewHeld makes a Held for a store. now is the clock by which entries age.
func NewHeld(store Store, now func() time.Time) *Held { return &Held{Store: store, now: now} }

// Run reads the newest entries until ctx ends.
func (h *Held) Run(ctx context.Context) {
	h.readNewest(ctx)
	every.Period(ctx, readEvery, h.readNewest)
}

// readNewest reads the newest entries. If that fails, the previous ones stay.
func (h *Held) readNewest(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	_, _ = h.Audit(ctx, "", heldEntries)
}

// Audit implements Store.
func (h *Held) Audit(ctx context.Context, before string, limit int) ([]Entry, error) {
	list, err := h.Store.Audit(ctx, before, limit)
	if err != nil || before != "" {
		return list, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	older := h.list
	h.read = h.now()
	before, h.list = "", slices.Clone(list)
	if len(list) == limit {
		before = list[len(list)-1].ID
	}
	if len(older) > 0 && older[0].ID >= before { // No entry is missing between the two lists.
		for _, e := range older {
			if e.ID < before && len(h.list) < heldEntries {
				h.list = append(h.list, e)
			}
		}
	}
	return list, nil
}

// errNotHeld is returned before the first entries have been read.
var errNotHeld = errors.New("no entry of the audit has been read yet")

// InMemory returns the entries in memory as a store, and the time at which they were read.
func (h *Held) InMemory() (Store, time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return memory{h.list, !h.read.IsZero()}, h.read
}

// memory is a store of entries from a past read, newest first.
type memory struct {
	list  []Entry
	known bool
}

// Audit implements Store.
func (m memory) Audit(_ context.Context, before string, limit int) ([]Entry, error) {
	if !m.known {
		return nil, errNotHeld
	}
	rest := m.list
	for before != "" && len(rest) > 0 && rest[0].ID >= before {
		rest = rest[1:]
	}
	return rest[:min(limit, len(rest))], nil
}
