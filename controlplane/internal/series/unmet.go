package series

import "time"

// heardWithin is how long a request may take to be counted here: the reports of nodes, and what is
// estimated from one request in sixteen.
const heardWithin = 10 * time.Minute

// Unmet are those of some policies of which nothing has been counted since a time, as far as the
// history goes back: no request has met them. From is since when that is so. It is none of them
// before requests since then would be known, and where some policies are not counted for want of
// room.
func (s *Service) Unmet(names []string, since time.Time) (unmet map[string]bool, from time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	coarse := s.rings[Coarse]
	now := s.Now()
	newest := Coarse.At(now).Number
	first := newest - coarse.kept + 1
	for first < newest && !coarse.knows(first) {
		first++
	}
	from = Slot{Coarse, first}.start()
	if since.After(from) {
		from = since
	}
	if now.Sub(from) < heardWithin || coarse.of[ByPolicy] >= maxPolicies {
		return nil, from
	}
	unmet = map[string]bool{}
	for _, name := range names {
		if !coarse.counts(name) && !s.rings[Fine].counts(name) {
			unmet[name] = true
		}
	}
	return unmet, from
}

// counts reports whether anything of a policy is counted.
func (r *ring) counts(policy string) bool {
	l := r.rows[row{ByPolicy, policy}]
	return l != nil && !l.shrink()
}
