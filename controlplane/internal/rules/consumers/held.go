package consumers

import "github.com/weir-proxy/weir/shared/keyhash"

// Held is the record in force of a consumer as this replica knows it without the store, the zero
// record if there is none. It reports false if it does not know.
func (s *Service) Held(key keyhash.Key) (Record, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, known := s.heldOf(key)
	return r.At(s.now()), known
}

// heldOf is Held as it was read. The lock is held.
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
	return Record{}, s.loaded && s.log.Whole // Without a change it has none.
}

// ListHeld are the records in force that this replica knows without the store and for which want
// reports true, at most as many as asked for: those that changed lately, those that were asked for
// lately, and the bans. It is nil before any is known.
func (s *Service) ListHeld(list List, want func(Record) bool) []Listed {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded {
		return nil
	}
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
