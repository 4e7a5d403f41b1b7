package consumers

import "github.com/weir-proxy/weir/shared/keyhash"

// Held returns a consumer's record in force from the memory of this replica, the zero Record if
// there is none. It returns false if this replica does not know.
func (s *Service) Held(key keyhash.Key) (Record, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, known := s.heldOf(key)
	return r.At(s.now()), known
}

// heldOf returns a consumer's record from memory, with parts that have ended. The lock is held.
func (s *Service) heldOf(key keyhash.Key) (Record, bool) {
	for i := len(s.log.Changes) - 1; i >= 0; i-- {
		if s.log.Changes[i].Key == key {
			return s.log.Changes[i].Record, true
		}
	}
	if r, ok := s.remembered[key]; ok {
		return r, true
	}
	if r, ok := s.bans[key]; ok {
		return r, true
	}
	return Record{}, s.loaded && s.log.Whole // Without any change it has no record.
}

// ListHeld returns the records in force in this replica's memory for which want returns true, at
// most list.Limit: recent changes, recently read records, and bans. It is nil before the store was
// read.
func (s *Service) ListHeld(list List, want func(Record) bool) []Listed {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded {
		return nil
	}
	// add adds a record, once.
	page, seen := []Listed{}, map[keyhash.Key]bool{}
	add := func(key keyhash.Key, r Record) {
		if seen[key] || len(page) == list.Limit {
			return
		}
		seen[key] = true
		r = r.At(s.now())
		if r.Revision > 0 && want(r) && (!list.Banned || r.Banned != nil) {
			page = append(page, Listed{key, r})
		}
	}
	// Changes first, then bans, then other records.
	for i := len(s.log.Changes) - 1; i >= 0; i-- {
		add(s.log.Changes[i].Key, s.log.Changes[i].Record)
	}
	for key, r := range s.bans {
		if asked, ok := s.remembered[key]; ok {
			r = asked
		}
		add(key, r)
	}
	for key, r := range s.remembered {
		add(key, r)
	}
	return page
}
