package penalty

// Marks is how many groups of refusals are remembered of a caller.
const Marks = 8

// Refusals are the latest refusals of a caller, in groups. An offence of up to Marks refusals has a
// group for each, and is counted exactly. Each group of a longer one has an equal part, and counts
// until its first refusal is too old. So an offence is never found too early, and too late by fewer
// refusals than one group has. The zero value has none.
type Refusals struct {
	Groups [Marks]Group
	Count  int
}

// Group is some refusals in a row, with the time of the first.
type Group struct {
	First int64
	Count int64
}

// Add counts a refusal at now and reports whether it completes an offence. Then all are forgotten,
// so the next offence takes as many again.
func (s *Refusals) Add(r *Rule, now int64) (offence bool) {
	s.drop(now - millis(r.Within))
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

// drop forgets the groups that began at an instant or before.
func (s *Refusals) drop(until int64) {
	old := 0
	for old < s.Count && s.Groups[old].First <= until {
		old++
	}
	copy(s.Groups[:], s.Groups[old:s.Count])
	s.Count -= old
}
