// Package penalty is the arithmetic of penalties: when refusals become an offence, how long the
// penalty for it lasts, and when it is forgotten. All times are Unix milliseconds, so that every
// node and the control plane mean the same instant.
package penalty

import "github.com/weir-proxy/weir/shared/quota"

// Rule is what a policy says of penalties. It is valid if each span is whole milliseconds and
// within the bounds of the policy language; Max is at least For.
type Rule struct {
	// Refusals within Within are an offence.
	Refusals int64
	Within   quota.Span
	// For is the length of the first penalty. Each further offence multiplies it by Factor, up to
	// Max.
	For, Max quota.Span
	Factor   int64
	// Forget is how long a caller must be without a penalty for one level to be forgotten.
	Forget quota.Span
	// Jitter is the percentage of its length by which a penalty may last longer.
	Jitter int64
	// Extend: a request during a penalty makes it start over.
	Extend bool
	// All: the consumer is refused by every policy, and not only by the one that it offended.
	All bool
	// Shadow: penalties are counted and listed, and refuse nothing.
	Shadow bool
}

// Record is what is remembered of a caller. The zero value has no offence.
type Record struct {
	// Level is how many offences count, as of Until.
	Level int
	// Until is when the last penalty ends or has ended.
	Until int64
}

// InForce reports whether the penalty refuses at now.
func (r Record) InForce(now int64) bool { return r.Level > 0 && now < r.Until }

// Beats reports whether r takes the place of another record of the same caller: the one that ends
// later, or the one of the higher level. So nodes and the control plane agree in whatever order
// they hear of records, and however often.
func (r Record) Beats(other Record) bool {
	return r.Until > other.Until || r.Until == other.Until && r.Level > other.Level
}

// Level is how many offences of a record are not forgotten at now.
func (r *Rule) Level(rec Record, now int64) int {
	if now <= rec.Until {
		return rec.Level
	}
	return max(0, rec.Level-int(min((now-rec.Until)/millis(r.Forget), int64(rec.Level))))
}

// Forgotten is when all offences of a record are forgotten.
func (r *Rule) Forgotten(rec Record) int64 { return rec.Until + int64(rec.Level)*millis(r.Forget) }

// Top is the level at which penalties last as long as they may. Further offences do not raise it.
func (r *Rule) Top() int {
	level := 1
	for length := r.For; length < r.Max && r.Factor > 1; level++ {
		length = r.times(length)
	}
	return level
}

// times is a length multiplied by the factor, at most Max.
func (r *Rule) times(length quota.Span) quota.Span {
	if length > r.Max/quota.Span(r.Factor) {
		return r.Max
	}
	return length * quota.Span(r.Factor)
}

// Length is how many milliseconds a penalty of a level lasts. Random decides the jitter.
//
//go:noinline
func (r *Rule) Length(level int, random uint64) int64 {
	length := r.For
	for range level - 1 {
		length = r.times(length)
	}
	spread := millis(length) * r.Jitter / 100
	return min(millis(length)+int64(random%uint64(spread+1)), millis(r.Max))
}

// Offend is the record of a caller after a further offence at now.
func (r *Rule) Offend(rec Record, now int64, random uint64) Record {
	level := min(r.Level(rec, now)+1, r.Top())
	return Record{Level: level, Until: now + r.Length(level, random)}
}

// Prolong is the record after a request during its penalty: it starts over. A record that would
// gain less than a second, or a 64th of its length, stays as it is, so that a flood of requests
// writes little.
func (r *Rule) Prolong(rec Record, now int64, random uint64) Record {
	length := r.Length(rec.Level, random)
	if now+length-rec.Until < max(1000, length/64) {
		return rec
	}
	return Record{Level: rec.Level, Until: now + length}
}

func millis(s quota.Span) int64 { return int64(s / quota.Millisecond) }
