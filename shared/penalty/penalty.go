// Package penalty has the arithmetic of penalties: when refusals become an offence, how long the
// penalty for it lasts, and when it is forgotten. All times are Unix milliseconds, so that every
// node and the control plane mean the same instant.
package penalty

import "github.com/weir-proxy/weir/shared/quota"

// Rule is a policy's rule for penalties. It is valid if each span is whole milliseconds and within
// the bounds of the policy language; Max is at least For.
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
	// Extend means that a request during a penalty makes it start over.
	Extend bool
	// All means that every policy refuses the consumer, and not only the policy that it offended.
	All bool
	// Shadow means that penalties are counted and listed, and refuse nothing.
	Shadow bool
}

// Record is the record of a caller's offences. The zero value has no offence.
type Record struct {
	// Level is the number of offences that count at Until.
	Level int
	// Until is when the last penalty ends or has ended.
	Until int64
}

// InForce reports whether the penalty refuses at now.
func (r Record) InForce(now int64) bool { return r.Level > 0 && now < r.Until }

// Beats reports whether r replaces another record of the same caller: the record that ends later,
// or else the record of the higher level. So nodes and the control plane agree, in any order and
// number of messages.
func (r Record) Beats(other Record) bool {
	return r.Until > other.Until || r.Until == other.Until && r.Level > other.Level
}

// Level returns how many offences of a record are not forgotten at now.
func (r *Rule) Level(rec Record, now int64) int {
	if now <= rec.Until {
		return rec.Level
	}
	return max(0, rec.Level-int(min((now-rec.Until)/toMillis(r.Forget), int64(rec.Level))))
}

// Forgotten returns when all offences of a record are forgotten.
func (r *Rule) Forgotten(rec Record) int64 { return rec.Until + int64(rec.Level)*toMillis(r.Forget) }

// Top returns the level of the longest penalties. Further offences do not raise it.
func (r *Rule) Top() int {
	level := 1
	for length := r.For; length < r.Max && r.Factor > 1; level++ {
		length = r.nextLength(length)
	}
	return level
}

// nextLength returns a length multiplied by the factor, at most Max.
func (r *Rule) nextLength(length quota.Span) quota.Span {
	if length > r.Max/quota.Span(r.Factor) {
		return r.Max
	}
	return length * quota.Span(r.Factor)
}

// Length returns how many milliseconds a penalty of a level lasts. Random decides the jitter.
//
//go:noinline
func (r *Rule) Length(level int, random uint64) int64 {
	length := r.For
	for range level - 1 {
		length = r.nextLength(length)
	}
	spread := toMillis(length) * r.Jitter / 100
	return min(toMillis(length)+int64(random%uint64(spread+1)), toMillis(r.Max))
}

// Offend returns the record of a caller after a further offence at now.
func (r *Rule) Offend(rec Record, now int64, random uint64) Record {
	level := min(r.Level(rec, now)+1, r.Top())
	return Record{Level: level, Until: now + r.Length(level, random)}
}

// Prolong returns the record after a request during its penalty: the penalty starts over. A record
// that would gain less than a second, or a 64th of its length, is not changed, so that a flood of
// requests writes little.
func (r *Rule) Prolong(rec Record, now int64, random uint64) Record {
	length := r.Length(rec.Level, random)
	if now+length-rec.Until < max(1000, length/64) {
		return rec
	}
	return Record{Level: rec.Level, Until: now + length}
}

func toMillis(s quota.Span) int64 { return int64(s / quota.Millisecond) }
