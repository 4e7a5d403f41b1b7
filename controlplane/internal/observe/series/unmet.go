package series

import "time"

// heardWithin is the longest time until a request is counted here, in reports of nodes or in
// estimates from one request in sixteen.
const heardWithin = 10 * time.Minute

// reportedWithin is the longest time after a change of the policy set in which counts of earlier
// requests may still arrive.
const reportedWithin = time.Minute

// Unmet returns the policies without any count since one minute after a time, as far back as the
// history goes: no request is known that met them. from is the start of that time, at the beginning
// of a slot. unmet is nil while requests since then might not be known yet, or if some policies are
// not counted for lack of room.
func (s *Service) Unmet(names []string, since time.Time) (unmet map[string]bool, from time.Time) {
	s.mu.Lock()
	// Find the earliest known slot.
	defer s.mu.Unlock()
	coarse, fine := s.rings[Coarse], s.rings[Fine]
	now := s.Now()
	newest := Coarse.At(now).Number
	first := newest - coarse.kept + 1
	for first < newest && !coarse.knowsSlot(first) {
		first++
	}
	from = Slot{Coarse, first}.start()
	// Start later if the time is later.
	since = since.Add(reportedWithin)
	if since.After(from) {
		if from = Fine.At(since).start(); now.Sub(from) >= time.Duration(fine.kept)*Fine.Step() {
			// The first minutes may belong to a slot that began long before.
			from = Slot{Coarse, firstSlot(Coarse, since)}.start()
		}
	}
	if now.Sub(from) < heardWithin || coarse.of[ByPolicy] >= maxPolicies {
		return nil, from
	}
	unmet = map[string]bool{}
	for _, name := range names {
		// The present coarse slot may lack counts that fine slots have.
		if !coarse.hasCounts(name, firstSlot(Coarse, from)) && !fine.hasCounts(name, firstSlot(Fine, from)) {
			unmet[name] = true
		}
	}
	return unmet, from
}

// firstSlot returns the number of the first slot that does not begin before a time.
func firstSlot(kind Kind, from time.Time) int64 {
	slot := kind.At(from)
	if slot.start().Before(from) {
		slot.Number++
	}
	return slot.Number
}

// hasCounts reports whether a policy has a count in a slot or in a later slot.
func (r *ring) hasCounts(policy string, from int64) bool {
	l := r.rows[row{ByPolicy, policy}]
	if l == nil {
		return false
	}
	for slot := r.last; slot >= max(from, r.last-r.kept+1); slot-- { // Most counts are in the newest slots.
		for _, values := range l {
			if values != nil && values[slot%r.kept] > 0 {
				return true
			}
		}
	}
	return false
}
