package series

import "time"

// heardWithin is how long a request may take to be counted here: the reports of nodes, and what is
// estimated from one request in sixteen.
const heardWithin = 10 * time.Minute

// reportedWithin is how long after a change of the policy set counts may still come of requests
// that were decided before it.
const reportedWithin = time.Minute

// Unmet are those of some policies of which nothing has been counted since a minute after a time,
// as far as the history goes back: no request is known that has met them. From is since when that
// is so, at the beginning of a slot. It is none of them before requests since then would be known,
// and where some policies are not counted for want of room.
func (s *Service) Unmet(names []string, since time.Time) (unmet map[string]bool, from time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	coarse, fine := s.rings[Coarse], s.rings[Fine]
	now := s.Now()
	newest := Coarse.At(now).Number
	first := newest - coarse.kept + 1
	for first < newest && !coarse.knows(first) {
		first++
	}
	from = Slot{Coarse, first}.start()
	since = since.Add(reportedWithin)
	if since.After(from) {
		if from = Fine.At(since).start(); now.Sub(from) >= time.Duration(fine.kept)*Fine.Step() {
			// The first minutes may be those of a slot that began long before.
			from = Slot{Coarse, firstSlot(Coarse, since)}.start()
		}
	}
	if now.Sub(from) < heardWithin || coarse.of[ByPolicy] >= maxPolicies {
		return nil, from
	}
	unmet = map[string]bool{}
	for _, name := range names {
		// The coarse slot that is filled now may lack what fine ones have.
		if !coarse.counts(name, firstSlot(Coarse, from)) && !fine.counts(name, firstSlot(Fine, from)) {
			unmet[name] = true
		}
	}
	return unmet, from
}

// firstSlot is the number of the first slot that does not begin before a time.
func firstSlot(kind Kind, from time.Time) int64 {
	slot := kind.At(from)
	if slot.start().Before(from) {
		slot.Number++
	}
	return slot.Number
}

// counts reports whether anything of a policy is counted in a slot or a later one.
func (r *ring) counts(policy string, from int64) bool {
	l := r.rows[row{ByPolicy, policy}]
	if l == nil {
		return false
	}
	for slot := r.last; slot >= max(from, r.last-r.kept+1); slot-- { // Most are found in the newest slots.
		for _, values := range l {
			if values != nil && values[slot%r.kept] > 0 {
				return true
			}
		}
	}
	return false
}
