package lease

import (
	"math"

	"github.com/weir-proxy/weir/shared/quota"
)

// Change is what an operator does to a bucket. The zero value only looks.
type Change struct {
	// Reset makes all used tokens available again.
	Reset bool
	// Give is how many used tokens to give back, at most all of them: a bucket never holds more
	// than its burst.
	Give int64
}

// Holding is what a bucket holds.
type Holding struct {
	// Stale: the ask was made under an older policy set than the ledger's; the rest does not count.
	Stale bool
	// Level is the available tokens, Leased are those that nodes may hold unspent, which no change
	// gives back, and Used are all others that are missing from a full bucket. For windows, Leased
	// are the tokens counted ahead.
	Level, Used, Leased int64
	// Owed are tokens of Used beyond what a full bucket holds: requests have cost more than they
	// had reserved, and the bucket holds none again before these are paid.
	Owed int64
	// Above are used tokens that a lowered limit has no room for. They are not among Used, and take
	// nothing from the limit; a raised one counts them again.
	Above int64
	// AdmitsAfter is the wait until a request of the ask's cost is let in, one of a token if that
	// is 0, if nothing else is used until then. What costs more than the burst counts as the burst.
	AdmitsAfter quota.Span
	// FullAfter is the wait until the bucket is full if it is not used.
	FullAfter quota.Span
	// Doubt: the bucket may lack tokens that were not used, because its store has lost state. The
	// store says it.
	Doubt bool
	// Given are the tokens that a Change gave back.
	Given int64
}

// Adjust changes the bucket at now, under the ask's figures, and returns what it holds then. Leased
// tokens stay used: level and leased tokens together never exceed the burst.
func (l Ledger) Adjust(now quota.Instant, ask Ask, c Change) (Ledger, Holding) {
	if l.Version > ask.Version && l.Params != ask.Params && l.Params.Den != 0 {
		return l, Holding{Stale: true}
	}
	if l.restates(ask) { // The bucket is looked at by the figures of its last caller.
		ask.Params = l.Params
		if ask.Most.SlowerThan(l.Params) {
			ask.Params = ask.Most
		}
	}
	l = l.bring(now, ask)
	p, before := l.Params, l.Debt
	least := units(l.out(), p.Den)
	if c.Reset {
		l.Debt, l.Over, l.Gone = min(l.Debt, least), 0, 0
	} else if c.Give > 0 {
		l.Debt = min(l.Debt, max(least, l.Debt-units(c.Give, p.Den)))
	}
	if ask.Owing && l.Debt < before { // What was given back so is not given back again.
		l.Since = l.Last + 1
	}
	out := l.out()
	return l, Holding{
		Level: max(0, (p.Burst*p.Den-l.Debt)/p.Den), Used: max(ceilDiv(l.Debt, p.Den)-out, 0), Leased: out,
		FullAfter: quota.Span(max(l.Ready(p.Burst)-now, 0)), Given: ceilDiv(before, p.Den) - ceilDiv(l.Debt, p.Den),
		Owed: ceilDiv(max(l.Debt-p.Burst*p.Den, 0), p.Den), Above: l.Over,
		AdmitsAfter: quota.Span(max(l.Ready(min(max(ask.Cost, 1), p.Burst))-now, 0)),
	}
}

// Adjust is Ledger.Adjust for windows. It gives back the tokens that count longest.
func (l WindowLedger) Adjust(now quota.Instant, ask Ask, c Change) (WindowLedger, Holding) {
	if l.stale(ask) {
		return l, Holding{Stale: true}
	}
	l = l.At(now, ask)
	h, w := &l.History, l.Windows
	var given, leased int64
	for _, m := range h.Marks {
		if m.Start > h.Last {
			leased += m.Count
		}
	}
	if c.Reset {
		c.Give = math.MaxInt64
	}
	if c.Give > 0 {
		given = w.Release(h, c.Give)
	}
	level, owed := w.Remaining(h), w.Owed(h)
	used := w.Quota - level + owed
	if !w.Algorithm.Fixed() { // There they count in the next window, too.
		used -= leased
	}
	ready := w.ReadyToLend(h, min(max(ask.Cost, 1), w.Quota), ask.Deadline)
	return l, Holding{
		Level: level, Used: used, Leased: leased, Owed: owed,
		FullAfter: w.ResetAfter(h, h.Last), Given: given, AdmitsAfter: quota.Span(max(ready-h.Last, 0)),
	}
}
