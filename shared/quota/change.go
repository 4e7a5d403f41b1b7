package quota

import "math"

// When a limit is changed, what was used stays used: new level = new burst - used, at least 0. Two
// promises hold over any number of changes. In every interval at most
//
//	the largest burst + the largest rate·t of the limits in force in it
//
// passes; and a caller who waits for one window of the new limit finds its bucket full. So tokens
// above a lowered burst are kept apart, in State.Over: they take nothing from the lower limit, and
// a raised limit counts them again.
//
// The first promise holds because debt and Over together shrink no faster than at the largest rate
// in force: at the bucket's own, debt first; or Over all at once at Gone, when the bucket of the
// limit before would owe nothing any more, and this one, which was left without a token, owes all
// that was used since. The second holds because the debt is a burst at most.

// mostUsed bounds the tokens that a change carries over, so that their sums stay exact in Lua.
const mostUsed = owedAtMost

// Convert carries what was used of a bucket, recorded in s under p, over to the figures of next at
// now. The limit was changed at an unknown instant since s.Last, when the bucket was last used: it
// counts as changed then or now, whichever leaves less of a debt. Beyond is how many tokens more
// than its burst the bucket may owe.
func (p Params) Convert(s State, now Instant, next Params, beyond int64) State {
	then, late := next.Drain(p.Carry(s, next, beyond), now), p.Carry(p.Drain(s, now), next, beyond)
	return fuller(then, late)
}

// fuller is the state of the two that owes less.
func fuller(a, b State) State {
	if b.Debt < a.Debt || b.Debt == a.Debt && b.Over < a.Over {
		return b
	}
	return a
}

// Carry is s in the figures of next, at the same instant.
func (p Params) Carry(s State, next Params, beyond int64) State {
	used, room := min(s.Debt/p.Den+s.Over, mostUsed), next.Burst+beyond
	part := s.Debt % p.Den
	if used < room {
		return State{Debt: next.owing(used) + next.partOf(part, p.Den), Last: s.Last}
	}
	if part > 0 {
		used++
	}
	carried := State{Debt: next.owing(room), Last: s.Last, Over: used - room}
	if carried.Over > 0 {
		carried.Gone = p.GoneAfter(s, next, carried.Over)
	}
	return carried
}

// partOf is a part of a token, of which den are a whole one, in p's units. It is up to two units
// more, and never less. Lua computes the same number.
func (p Params) partOf(part, den int64) int64 {
	if part == 0 {
		return 0
	}
	return min(int64(math.Ceil(float64(part)*(float64(p.Den)/float64(den))))+1, p.Den)
}

// Beyond is how many tokens more than its burst a bucket owes.
func (p Params) Beyond(s State) int64 { return max(0, p.TokensIn(s.Debt)-p.Burst) }

// GoneAfter is when over tokens above the burst of next need not be kept any longer, if s was left
// by p; 0 if they go at the rate of next.
//
// That is when p would have earned all of s, if this is within a window of next: a bucket of next
// that was left empty owes all that was used since then, and what was used before p has earned. In
// a longer time next earns tokens that p has not. So over then shrinks by the difference of the
// rates at most.
func (p Params) GoneAfter(s State, next Params, over int64) Instant {
	gone := max(s.Last+Instant(ceilDiv(s.Debt, p.Num)), s.Gone)
	if (s.Over == 0 || s.Gone != 0) && int64(gone-s.Last) <= next.Burst*next.Den/next.Num {
		return gone
	}
	slower := float64(p.Num)/float64(p.Den) - float64(next.Num)/float64(next.Den)
	if wait := math.Ceil(float64(over) / slower); slower > 0 && wait < MaxUnits/4 {
		return max(gone, s.Last+Instant(wait))
	}
	return 0
}

// DrainOver brings Over, which is not 0, to now, for a bucket whose debt is paid at an instant. Lua
// computes the same numbers.
func (p Params) DrainOver(s State, now, paid Instant) State {
	if now > paid {
		earned := math.Floor(float64(now-paid) * float64(p.Num) / float64(p.Den))
		s.Over -= int64(min(earned, float64(s.Over)))
	}
	if s.Gone != 0 && now >= s.Gone {
		s.Over = 0
	}
	if s.Over == 0 {
		s.Gone = 0
	}
	return s
}

// Forgettable is the instant from which s equals the zero value.
func (p Params) Forgettable(s State) Instant {
	return p.ForgetOver(s, s.Last+Instant(ceilDiv(s.Debt, p.Num)))
}

// ForgetOver is Forgettable for a bucket whose debt is paid at an instant.
func (p Params) ForgetOver(s State, paid Instant) Instant {
	if s.Over == 0 {
		return paid
	}
	gone := paid + Instant(ceilDiv(p.owing(s.Over), p.Num))
	if s.Gone != 0 {
		gone = min(gone, s.Gone)
	}
	return max(paid, gone)
}
