// Package quota holds the limiting algorithms as values: plain integer arithmetic without clock,
// lock or I/O, so that the same code decides in the filter, in the control plane and in tests.
package quota

import (
	"errors"
	"math"
	"math/bits"
	"strconv"
)

// Instant is a moment on the clock of one bucket, in microseconds. Only differences have a meaning;
// a bucket never mixes two clocks. Clocks may stand still or step back: then a bucket does not
// refill.
type Instant int64

// Span is a length of time in microseconds.
type Span int64

// Spans of everyday units, and Never, the wait if no wait helps.
const (
	Millisecond Span = 1_000
	Second      Span = 1_000_000
	Minute           = 60 * Second
	Hour             = 60 * Minute
	Day              = 24 * Hour

	Never Span = math.MaxInt64
)

// Forever is the instant that never comes: if nothing is due, or if no time makes a difference.
const Forever Instant = math.MaxInt64

// MaxUnits bounds burst · Den. Below it every sum of the algorithms stays under 2^53. So Lua in
// Redis, whose numbers are doubles, computes exactly what Go does.
const MaxUnits = 1 << 52

// MaxWindow is the longest window a limit may have.
const MaxWindow = 366 * Day

// Params are the fixed figures of a token bucket: a rational rate without rounding. One microsecond
// earns Num units, one token is Den units, and the bucket holds Burst tokens. The zero value is not
// usable; make one with NewParams.
type Params struct {
	Num, Den int64
	Burst    int64
}

// State is the stored state of a bucket: Debt, the units missing from a full bucket, at the instant
// Last. The zero value is a full bucket. So a bucket that was never used equals a bucket that
// refilled and was forgotten.
type State struct {
	Debt int64
	Last Instant
	// Over is the number of used tokens that a lowered limit has no room for. The lowered limit
	// does not count them, and a raised limit counts them again; see Carry. Gone is when none of
	// them counts any more. If it is 0, they drain at the bucket's rate, after its debt.
	Over int64
	Gone Instant
}

// Result is the result of one Take.
type Result struct {
	// Allowed means that the cost was charged, or was 0.
	Allowed bool
	// RetryAfter is 0 if allowed; otherwise the shortest wait from now after which the same Take
	// passes if no other caller takes tokens. It is Never if the cost exceeds the burst.
	RetryAfter Span
}

// NewParams reduces quota tokens per window to Params. It refuses quota < 1, burst < 1, a window
// outside (0, MaxWindow], and figures whose exact arithmetic would exceed MaxUnits; the error names
// the figure to change.
func NewParams(quota int64, window Span, burst int64) (Params, error) {
	switch {
	case quota < 1:
		return Params{}, errors.New("quota must be at least 1")
	case burst < 1:
		return Params{}, errors.New("burst must be at least 1")
	case window < 1 || window > MaxWindow:
		return Params{}, errors.New("window must be longer than 0 and at most 366d")
	}
	g := gcd(quota, int64(window))
	p := Params{Num: quota / g, Den: int64(window) / g, Burst: burst}
	if p.Num > MaxUnits || burst > MaxUnits/p.Den {
		return Params{}, errors.New("quota, window and burst need more than exact arithmetic holds: " +
			"at most a burst of " + strconv.FormatInt(MaxUnits/p.Den, 10) +
			" with this quota and window; a quota that divides the window allows more")
	}
	return p, nil
}

// Part returns the share num/den of p's rate with a burst of its own. If exact arithmetic cannot
// hold the rate, Part rounds it down. If the part is so slow that exact arithmetic cannot hold a
// token with this burst, the burst is smaller. Num and den are positive, den is at most 1000, and
// num is between a hundredth of den and den.
func (p Params) Part(num, den, burst int64) Params {
	n, d := p.Num*num, p.Den*den
	g := gcd(n, d)
	part := Params{Num: n / g, Den: d / g, Burst: burst}
	limit := MaxUnits / burst
	if part.Num > MaxUnits {
		limit = min(limit, mulDiv(MaxUnits, part.Den, part.Num))
	}
	if part.Num <= MaxUnits && part.Den <= limit {
		return part
	}
	if num := mulDiv(part.Num, limit, part.Den); num > 0 {
		return Params{Num: num, Den: limit, Burst: burst}
	}
	slow := (part.Den-1)/part.Num + 1
	return Params{Num: 1, Den: slow, Burst: max(1, min(burst, MaxUnits/slow))}
}

// mulDiv returns a·b/c rounded down, for a result below 2^63.
func mulDiv(a, b, c int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	q, _ := bits.Div64(high, low, uint64(c))
	return int64(q)
}

// Take spends n tokens from s at instant now. It reads no clock and keeps nothing: the caller
// stores the returned State. A refused Take spends nothing. A cost of 0 only looks and always
// passes; a negative cost counts as 0, never as a refund. The token bucket is the same as GCRA and
// as the leaky bucket as a meter: Debt/Num is GCRA's distance to its arrival time.
func (p Params) Take(s State, now Instant, n int64) (State, Result) {
	s = p.Refill(s, now)
	if n <= 0 {
		return s, Result{Allowed: true}
	}
	if n > p.Burst {
		return s, Result{RetryAfter: Never}
	}
	room := p.Burst*p.Den - s.Debt
	cost := n * p.Den
	if cost > room {
		return s, Result{RetryAfter: ceilDiv(cost-room, p.Num) + timeBehind(s, now)}
	}
	s.Debt += cost
	return s, Result{Allowed: true}
}

// Refill brings s to now: the debt shrinks by the units earned since s.Last, never below 0 and
// never above the burst. If now is before s.Last, time stands still.
func (p Params) Refill(s State, now Instant) State {
	if limit := p.Burst * p.Den; s.Debt > limit {
		s.Debt = limit
	}
	return p.Drain(s, now)
}

// Remaining returns the number of whole tokens that an immediate caller could take from s. Take or
// Refill must have brought s to the caller's now.
func (p Params) Remaining(s State) int64 {
	return (p.Burst*p.Den - s.Debt) / p.Den
}

// ResetAfter returns the wait from now until the bucket is full again.
func (p Params) ResetAfter(s State, now Instant) Span {
	s = p.Refill(s, now)
	if s.Debt == 0 {
		return 0
	}
	return ceilDiv(s.Debt, p.Num) + timeBehind(s, now)
}

// Delay returns how long a request waits for its turn in a bucket that is a queue: until the debt
// of the state before it has drained.
func (p Params) Delay(before State, now Instant) Span { return p.ResetAfter(before, now) }

// Earned returns how many whole tokens a span earns, at most MaxUnits.
func (p Params) Earned(span Span) int64 {
	high, low := bits.Mul64(uint64(max(span, 0)), uint64(p.Num))
	if high >= uint64(p.Den) {
		return MaxUnits
	}
	tokens, _ := bits.Div64(high, low, uint64(p.Den))
	return int64(min(tokens, MaxUnits))
}

// Window returns the time in which an empty bucket refills, rounded up.
func (p Params) Window() Span { return ceilDiv(p.Burst*p.Den, p.Num) }

// Empty returns the state of a bucket without a single token at now.
func (p Params) Empty(now Instant) State { return State{Debt: p.Burst * p.Den, Last: now} }

// SlowerThan reports whether p earns fewer tokens a second than q.
func (p Params) SlowerThan(q Params) bool {
	ah, al := bits.Mul64(uint64(p.Num), uint64(q.Den))
	bh, bl := bits.Mul64(uint64(q.Num), uint64(p.Den))
	return ah < bh || ah == bh && al < bl
}

// TokensIn returns a debt in whole tokens, rounded up.
func (p Params) TokensIn(debt int64) int64 {
	return int64(ceilDiv(debt, p.Den))
}

// UnitsFor returns the debt of n used tokens, at most a whole burst.
func (p Params) UnitsFor(n int64) int64 {
	return min(n, p.Burst) * p.Den
}

// timeBehind returns by how much now is before the bucket's own clock.
func timeBehind(s State, now Instant) Span {
	if now < s.Last {
		return Span(s.Last - now)
	}
	return 0
}

func ceilDiv(a, b int64) Span {
	q := a / b
	if a%b > 0 {
		q++
	}
	return Span(q)
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
