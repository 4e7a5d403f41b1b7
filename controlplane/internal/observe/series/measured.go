package series

import (
	"math"
	"time"

	"github.com/weir-proxy/weir/shared/wire"
)

// Measured counts the measurements of a node for known policies. Requests in flight count for the
// time that the message covers, so that a slot has no more of them than there were, except for the
// part that a late message moves. If that time is longer than a slot, only its last part counts.
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
			s.ownAt(kind.At(now)).addCount(name, node, inFlight, busy-earlier)
		}
	}
}

// Tried counts a request that a policy in shadow, or a candidate limit, would have refused; or, if
// undetermined, a request for which this is not known.
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

// addEarlier counts the part of busy that belongs to the slot before now's slot, and returns it.
// The lock is held.
func (s *Service) addEarlier(
	slot Slot, now time.Time, covers time.Duration, name, node string, busy int64,
) (earlier int64) {
	before := covers - now.Sub(slot.start())
	if before <= 0 || busy == 0 {
		return 0
	}
	earlier = int64(math.Ceil(float64(busy) * float64(before) / float64(covers)))
	s.ownAt(Slot{slot.Kind, slot.Number - 1}).addCount(name, node, inFlight, earlier)
	return earlier
}
