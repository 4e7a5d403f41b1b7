package series

import (
	"math"
	"time"

	"github.com/weir-proxy/weir/shared/wire"
)

// Measured counts what a node has measured of policies, as far as they are known. What was in
// flight counts for the time that the message covers, so that no slot has more of it than there
// was, but for what a late message moves. If that time is longer than a slot, its last part
// counts.
func (s *Service) Measured(m *wire.Measures, known func(policy string) bool) {
	node, now, covers := string(m.Node), s.Now(), time.Duration(m.Covers)
	counted := min(covers, fineStep)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range m.Items {
		one := &m.Items[i]
		name := string(one.Policy)
		if !known(name) {
			continue
		}
		s.add(name, node, ShadowRefused, one.ShadowRefused)
		s.add(name, node, CandidateRefused, one.CandidateRefused)
		s.add(name, node, ShadowUndetermined, one.ShadowUndetermined)
		s.add(name, node, CandidateUndetermined, one.CandidateUndetermined)
		s.add(name, node, Utilisation, one.Used)
		busy := one.Busy * hundredths / 1000
		if covers > counted {
			busy = int64(float64(busy) * float64(counted) / float64(covers))
		}
		for _, kind := range kinds {
			earlier := s.addEarlier(kind.At(now), now, counted, name, node, busy)
			s.ownAt(kind.At(now)).add(name, node, inFlight, busy-earlier)
		}
	}
}

// Tried counts a request that a policy in shadow, or a candidate limit, would have refused, or of
// which it does not know what it would have done.
func (s *Service) Tried(policy, node string, candidate, undetermined bool) {
	outcome := ShadowRefused
	switch {
	case candidate && undetermined:
		outcome = CandidateUndetermined
	case candidate:
		outcome = CandidateRefused
	case undetermined:
		outcome = ShadowUndetermined
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(policy, node, outcome, 1)
}

// addEarlier counts in the slot before that of now the part of busy that belongs there, and returns
// it. The lock is held.
func (s *Service) addEarlier(
	slot Slot, now time.Time, covers time.Duration, name, node string, busy int64,
) (earlier int64) {
	before := covers - now.Sub(slot.start())
	if before <= 0 || busy == 0 {
		return 0
	}
	earlier = int64(math.Ceil(float64(busy) * float64(before) / float64(covers)))
	s.ownAt(Slot{slot.Kind, slot.Number - 1}).add(name, node, inFlight, earlier)
	return earlier
}
