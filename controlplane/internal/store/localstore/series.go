package localstore

import (
	"bytes"
	"context"
	"maps"
	"sync"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
)

// slots are the histories. They are only in memory, because no decision depends on them.
type slots struct {
	mu  sync.Mutex
	all map[series.Slot]map[string][]byte
}

// PutSlot implements series.Store.
func (s *Store) PutSlot(_ context.Context, slot series.Slot, replica string, text []byte) error {
	k := &s.slots
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil {
		k.all = map[series.Slot]map[string][]byte{}
	}
	if k.all[slot] == nil {
		k.all[slot] = map[string][]byte{}
		maps.DeleteFunc(k.all, func(old series.Slot, _ map[string][]byte) bool {
			return old.Kind == slot.Kind && old.Number <= slot.Number-slot.Kind.Kept()
		})
	}
	k.all[slot][replica] = bytes.Clone(text)
	return nil
}

// Slots implements series.Store.
func (s *Store) Slots(_ context.Context, of []series.Slot) ([]map[string][]byte, error) {
	k := &s.slots
	k.mu.Lock()
	defer k.mu.Unlock()
	found := make([]map[string][]byte, len(of))
	for i, slot := range of {
		found[i] = maps.Clone(k.all[slot])
	}
	return found, nil
}
