package quota

import "math"

// When a limit is changed, used tokens stay used: new level = new burst - used, at least 0. Two
// promises hold over any number of changes. In every interval at most
//
//	the largest burst + the largest rate·t of the limits in force in it
//
// passes; and a caller who waits for one window of the new limit finds its bucket full. So tokens
// above a lowered burst are kept apart, in State.Over: the lower limit does not count them, and a
// raised limit counts them again.
//
// The first promise holds because debt and Over together shrink no faster than at the largest rate
// in force: at the bucket's own rate, debt first; or Over all at once at Gone. At that time a
// bucket of the limit before would owe nothing, and this bucket, which was left without a token,
// owes all tokens used since. The second holds because the debt is at most a burst.

// mostUsed bounds the tokens that a change carries over, so that their sums stay exact in Lua.
const mostUsed = owedAtMost

// Convert carries the used tokens of a bucket, recorded in s under p, over to the figures of next
// at now. The limit was changed at an unknown instant since s.Last, when the bucket was last used.
// Convert assumes that it was changed then or now, whichever leaves less debt. Beyond is how many
// tokens more than its burst the bucket may owe.
func (p Params) Convert(s State, now Instant, next Params, beyond int64) State {
	then, late := next.Drain(p.Carry(s, next, beyond), now), p.Carry(p.Drain(s, now), next, beyond)
	return withLessDebt(then, late)
}

// withLessDebt returns the state of the two that owes less.
func withLessDebt(a, b State) State {
	if b.Debt < a.Debt || b.Debt == a.Debt && b.Over < a.Over {
		return b
	}
	return a
}

// Carry returns s in the figures of next, at the same instant.
func (p Params) Carry(s State, next Params, beyond int64) State {
	used, room := min(s.Debt/p.Den+s.Over, mostUsed), next.Burst+beyond
	part := s.Debt % p.Den
	if used < room {
		return State{Debt: next.debtOf(used) + next.partOf(part, p.Den), Last: s.Last}
	}
	if part > 0 {
		used++
	}
	carried := State{Debt: next.debtOf(room), Last: s.Last, Over: used - room}
	if carried.Over > 0 {
		carried.Gone = p.GoneAfter(s, next, carried.Over)
	}
	return carried
}

// partOf returns a part of a token, of which den are a whole token, in p's units. It is up to two
// units more, and never less. Lua computes the same number.
func (p Params) partOf(part, den int64) int64 {
	if part == 0 {
		return 0
	}
	return min(int64(math.Ceil(float64(part)*(float64(p.Den)/float64(den))))+1, p.Den)
}

// Beyond returns how many tokens more than its burst a bucket owes.
func (p Params) Beyond(s State) int64 { return max(0, p.TokensIn(s.Debt)-p.Burst) }

// GoneAfter returns when over tokens above the burst of next need not be kept any longer, if s was
// left by p; 0 if they drain at the rate of next.
//
// It is when p would have earned all of s, if this is within a window of next. A bucket of next
// that was left empty then owes all tokens used since, and p has earned the tokens used before. In
// a longer time next earns tokens that p has not earned; then over shrinks at most by the
// difference of the rates.
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

// DrainOver brings Over, which is not 0, to now, for a bucket whose debt is paid at paid. Lua
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

// Forgettable returns the instant from which s equals the zero value.
func (p Params) Forgettable(s State) Instant {
	return p.ForgetOver(s, s.Last+Instant(ceilDiv(s.Debt, p.Num)))
}

// ForgetOver is Forgettable for a bucket whose debt is paid at paid.
func (p Params) ForgetOver(s State, paid Instant) Instant {
	if s.Over == 0 {
		return paid
	}
	gone := paid + Instant(ceilDiv(p.debtOf(s.Over), p.Num))
	if s.Gone != 0 {
		gone = min(gone, s.Gone)
	}
	return max(paid, gone)
}
