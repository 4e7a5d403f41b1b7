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
	// heldEntries is how many entries a replica keeps for when the store is away.
	heldEntries = 500
	// readEvery is how often it reads them anew.
	readEvery = 10 * time.Second
	// readTime is how long that may take.
	readTime = time.Second
)

// Held is a Store that keeps its newest entries in memory, for when it is away. Make one with
// NewHeld, and run Run in one goroutine. It is safe for concurrent use.
type Held struct {
	Store
	now func() time.Time

	mu   sync.Mutex
	list []Entry
	read time.Time
}

// NewHeld makes a Held over a store; now tells how old entries are.
func NewHeld(store Store, now func() time.Time) *Held { return &Held{Store: store, now: now} }

// Run reads the newest entries until ctx ends.
func (h *Held) Run(ctx context.Context) {
	h.look(ctx)
	every.Period(ctx, readEvery, h.look)
}

// look reads the newest entries. If that fails, those of before stay.
func (h *Held) look(ctx context.Context) {
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
	if len(older) > 0 && older[0].ID >= before { // No entry is missing between the two.
		for _, e := range older {
			if e.ID < before && len(h.list) < heldEntries {
				h.list = append(h.list, e)
			}
		}
	}
	return list, nil
}

// errNotHeld: nothing has been read yet.
var errNotHeld = errors.New("no entry of the audit has been read yet")

// InMemory is what is held, as a store, and when it was read.
func (h *Held) InMemory() (Store, time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return memory{h.list, !h.read.IsZero()}, h.read
}

// memory is a store of entries that were read, newest first.
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
