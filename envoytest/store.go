package envoytest

import (
	"slices"
	"sync"
)

// Store is the shared data of one process: a map for each vm_id, one lock for everything, and one
// counter that gives every successful set, whatever its key, its cas. It has no limit, no expiry,
// and nothing a guest could delete with.
type Store struct {
	mu      sync.Mutex
	scopes  map[string]map[string]entry
	handles map[string]int
	cas     uint32
}

type entry struct {
	value []byte
	cas   uint32
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{scopes: map[string]map[string]entry{}, handles: map[string]int{}}
}

// retain keeps the data of a vm_id alive until the matching release.
func (s *Store) retain(vmID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handles[vmID]++
}

// release drops the data of a vm_id with its last handle.
func (s *Store) release(vmID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handles[vmID]--
	if s.handles[vmID] == 0 {
		delete(s.handles, vmID)
		delete(s.scopes, vmID)
	}
}

// get returns the stored value itself: set replaces values and never changes a value.
func (s *Store) get(vmID string, key []byte) (entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.scopes[vmID][string(key)]
	return e, ok
}

// set overwrites a present key if cas is 0 or its own, and inserts an absent key whatever cas is.
func (s *Store) set(vmID string, key, value []byte, cas uint32) status {
	s.mu.Lock()
	defer s.mu.Unlock()
	scope := s.scopes[vmID]
	if scope == nil {
		scope = map[string]entry{}
		s.scopes[vmID] = scope
	}
	if e, ok := scope[string(key)]; ok && cas != 0 && cas != e.cas {
		return statusCasMismatch
	}
	s.cas++
	if s.cas == 0 {
		s.cas = 1
	}
	scope[string(key)] = entry{value: slices.Clone(value), cas: s.cas}
	return statusOK
}

// keys returns the keys of a vm_id in order.
func (s *Store) keys(vmID string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]string, 0, len(s.scopes[vmID]))
	for k := range s.scopes[vmID] {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Shared returns a copy of the shared data under key, in the host's vm_id, and its cas.
func (h *Host) Shared(key string) (value []byte, cas uint32, ok bool) {
	e, ok := h.store.get(h.opt.VMID, []byte(key))
	return slices.Clone(e.value), e.cas, ok
}

// SharedKeys returns the keys of the shared data of the host's vm_id, in order.
func (h *Host) SharedKeys() []string { return h.store.keys(h.opt.VMID) }

// SetShared overwrites the shared data under key, as another plugin with the same vm_id could.
func (h *Host) SetShared(key string, value []byte) { h.store.set(h.opt.VMID, []byte(key), value, 0) }
