package penalty

// Marks is the largest number of groups of refusals that are kept of a caller.
const Marks = 8

// Refusals are the latest refusals of a caller, in groups. If an offence is at most Marks refusals,
// each refusal has a group, and the count is exact. Otherwise each group has an equal part, and
// counts until its first refusal is too old. So an offence is never found too early, and too late
// by fewer refusals than a group has. The zero value has no refusals.
type Refusals struct {
	Groups [Marks]Group
	Count  int
}

// Group is some refusals in a row, with the time of the first refusal.
type Group struct {
	First int64
	Count int64
}

// Add counts a refusal at now and reports whether it completes an offence. Then all refusals are
// forgotten, so the next offence needs the full number again.
func (s *Refusals) Add(r *Rule, now int64) (offence bool) {
	s.dropUntil(now - toMillis(r.Within))
	size := (r.Refusals + Marks - 1) / Marks
	if last := s.Count - 1; last < 0 || s.Groups[last].Count >= size {
		if s.Count == Marks { // The rule asked for more before it was changed.
			copy(s.Groups[:], s.Groups[1:])
			s.Count--
		}
		s.Groups[s.Count] = Group{First: now}
		s.Count++
	}
	s.Groups[s.Count-1].Count++
	var all int64
	for _, g := range s.Groups[:s.Count] {
		all += g.Count
	}
	if all < r.Refusals {
		return false
	}
	s.Count = 0
	return true
}

// dropUntil forgets the groups that began at an instant or before.
func (s *Refusals) dropUntil(until int64) {
	old := 0
	for old < s.Count && s.Groups[old].First <= until {
		old++
	}
	copy(s.Groups[:], s.Groups[old:s.Count])
	s.Count -= old
}
