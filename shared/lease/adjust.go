package lease

import (
	"math"

	"github.com/weir-proxy/weir/shared/quota"
)

// Change is an operator's change of a bucket. The zero value only looks.
type Change struct {
	// Reset makes all used tokens available again.
	Reset bool
	// Give is how many used tokens to give back, at most all of them: a bucket never holds more
	// than its burst.
	Give int64
}

// Holding describes a bucket's tokens.
type Holding struct {
	// Stale means that the ask has an older policy set than the ledger. The other fields do not
	// count.
	Stale bool
	// Level is the number of available tokens. Leased is the number of tokens that nodes may hold
	// unspent, which no change gives back. Used is the number of all other tokens that are missing
	// from a full bucket. For windows, Leased is the number of tokens whose lease has not ended.
	Level, Used, Leased int64
	// Owed is the number of tokens of Used beyond a full bucket: requests have cost more than they
	// had reserved. The bucket holds no token again before these are paid.
	Owed int64
	// Above is the number of used tokens that a lowered limit has no room for. They are not part of
	// Used. A raised limit counts them again.
	Above int64
	// AdmitsAfter is the wait until a request of the ask's cost is admitted (of one token if the
	// cost is 0), if nothing else is used until then. A cost above the burst counts as the burst.
	AdmitsAfter quota.Span
	// FullAfter is the wait until the bucket is full if it is not used.
	FullAfter quota.Span
	// Doubt means that the bucket may lack tokens that were not used, because its store has lost
	// state. The store sets it.
	Doubt bool
	// Given is the number of tokens that a Change gave back.
	Given int64
}

// Adjust changes the bucket at now, under the ask's figures, and returns its tokens after that.
// Leased tokens stay used: level and leased tokens together never exceed the burst.
func (l Ledger) Adjust(now quota.Instant, ask Ask, c Change) (Ledger, Holding) {
	if l.Version > ask.Version && l.Params != ask.Params && l.Params.Den != 0 {
		return l, Holding{Stale: true}
	}
	if l.needsRestating(ask) { // Use the figures of the bucket's last caller.
		ask.Params = l.Params
		if ask.Most.SlowerThan(l.Params) {
			ask.Params = ask.Most
		}
	}
	// Give tokens back, but no leased tokens.
	l = l.bringTo(now, ask)
	p, before := l.Params, l.Debt
	least := toUnits(l.leasedTokens(), p.Den)
	if c.Reset {
		l.Debt, l.Over, l.Gone = min(l.Debt, least), 0, 0
	} else if c.Give > 0 {
		l.Debt = min(l.Debt, max(least, l.Debt-toUnits(c.Give, p.Den)))
	}
	if ask.Owing && l.Debt < before { // Settlements of older reservations give nothing back again.
		l.Since = l.Last + 1
	}
	out := l.leasedTokens()
	return l, Holding{
		Level: max(0, (p.Burst*p.Den-l.Debt)/p.Den), Used: max(ceilDiv(l.Debt, p.Den)-out, 0), Leased: out,
		FullAfter: quota.Span(max(l.Ready(p.Burst)-now, 0)), Given: ceilDiv(before, p.Den) - ceilDiv(l.Debt, p.Den),
		Owed: ceilDiv(max(l.Debt-p.Burst*p.Den, 0), p.Den), Above: l.Over,
		AdmitsAfter: quota.Span(max(l.Ready(min(max(ask.Cost, 1), p.Burst))-now, 0)),
	}
}

// Adjust is Ledger.Adjust for windows. It gives back the tokens that would count longest.
func (l WindowLedger) Adjust(now quota.Instant, ask Ask, c Change) (WindowLedger, Holding) {
	if l.isStale(ask) {
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
	if !w.Algorithm.Fixed() { // In fixed windows the leased tokens also count in the next window.
		used -= leased
	}
	ready := w.ReadyToLend(h, min(max(ask.Cost, 1), w.Quota), ask.Deadline)
	return l, Holding{
		Level: level, Used: used, Leased: leased, Owed: owed,
		FullAfter: w.ResetAfter(h, h.Last), Given: given, AdmitsAfter: quota.Span(max(ready-h.Last, 0)),
	}
}
