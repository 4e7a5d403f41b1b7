package lease

import "github.com/weir-proxy/weir/shared/quota"

// While a draft of a policy set is rolled out to some nodes, a limit that differs in it has two
// ledgers for each bucket: the main one with the figures in force, the draft's with those of the
// draft. The ledger of a node's version decides, and what it grants counts in both. So a request is
// admitted only if its version's limit allows it after all that both versions admitted, and over
// all nodes at most
//
//	max(burst, burst') + max(rate, rate')·t
//
// is admitted in any interval t; for a window algorithm of unchanged length max(quota, quota') in
// any window, and the sum of both limits where the lengths differ. The proof: a bucket with the
// larger of both figures that is charged for everything never holds less than either ledger, so it
// always has what either grants. This holds because a twin charges a ledger at most down to
// nothing. What there is no room for is kept apart, as after a change of the limit, so that drafts
// that are begun and cancelled give nothing again.
//
// Tokens that a node gives back leave both ledgers. One that was charged down to nothing for them
// gets back no more than the larger bucket does, so it still never holds more than that.
//
// A draft's ledger that is absent, or left from an earlier draft, starts with what the main one has
// used. A store keeps it as long as the main one. If the draft is promoted, its ledger becomes the
// main one, so that no use is lost.

// EpochBits is how many low bits of a ledger's version may change while a draft stays the same; the
// others are the number of the policy set.
const EpochBits = 24

func policySet(version uint64) uint64 { return version >> EpochBits }

// Counted is a ledger of either kind.
type Counted[L any] interface {
	Grant(now quota.Instant, ask Ask) (L, Grant)
	Look(now quota.Instant, ask Ask) (L, Grant)
	Forgettable() quota.Instant
	Reservation(ask Ask) quota.Reservation
	Counts(r quota.Reservation) quota.Instant
	Settle(now quota.Instant, ask Ask, r quota.Reservation, actual int64) (L, int64)
	TakeBack(now quota.Instant, term Term, b Back) (L, Back)
	charge(now quota.Instant, ask, spent Ask, g Grant) L
	// Touched is when the ledger was last brought to the time.
	Touched() quota.Instant
	Doubted(now quota.Instant, ask Ask, percent int64) L
	known() bool
	seed() L
	// policySet is the number of the policy set that brought the ledger's figures; with reports
	// whether they are those of ask.
	policySet() uint64
	with(ask Ask) bool
}

// Twins are the two ledgers of a bucket; an absent one is the zero value.
type Twins[L Counted[L]] struct{ Main, Draft L }

// Grant answers ask by the ledger of the draft, or by the main one, and counts the grant in the
// other ledger too, which has the figures of other. The answer's Changed is about the ledger that
// was asked; booked means that the other has changed.
func (t Twins[L]) Grant(now quota.Instant, draft bool, ask, other Ask) (next Twins[L], g Grant, booked bool) {
	next = t
	if !draft {
		next.Main, g = t.Promoted(ask).Grant(now, ask)
		booked = spends(ask, g) && t.HasDraft(other)
		if booked {
			next.Draft = t.Draft.charge(now, other, ask, g)
		}
		return next, g, booked
	}
	next.Draft, g = t.Started(ask).Grant(now, ask)
	booked = spends(ask, g)
	if booked {
		next.Main = t.Main.charge(now, other, ask, g)
	}
	return next, g, booked
}

// Look is Grant without a charge.
func (t Twins[L]) Look(now quota.Instant, draft bool, ask Ask) (next Twins[L], g Grant) {
	next = t
	if draft {
		next.Draft, g = t.Started(ask).Look(now, ask)
	} else {
		next.Main, g = t.Promoted(ask).Look(now, ask)
	}
	return next, g
}

// HasDraft reports whether there is a ledger of the draft that ask is about.
func (t Twins[L]) HasDraft(ask Ask) bool {
	return t.Draft.known() && t.Draft.policySet() >= policySet(ask.Version)
}

// Started is the draft's ledger, which begins as the main one.
func (t Twins[L]) Started(ask Ask) L {
	if t.HasDraft(ask) {
		return t.Draft
	}
	return t.Main.seed()
}

// Promoted is the ledger for an ask after a draft has ended. It is the main one, except for the
// first ask with the figures of the draft: then it is the draft's, which has counted everything
// with these figures.
func (t Twins[L]) Promoted(ask Ask) L {
	asks := policySet(ask.Version)
	first := t.Main.known() && t.Main.policySet() < asks && t.Draft.policySet() == asks
	// Where callers bring figures, those of a ledger of tokens do not tell whose it is.
	own := ask.own() && ask.Windows.Quota == 0
	if first && (own || !t.Main.with(ask) && t.Draft.with(ask)) {
		return t.Draft
	}
	return t.Main
}

func spends(ask Ask, g Grant) bool { return g.Waiting > 0 || g.Keep > 0 || ask.Used > 0 && !g.Stale }

func (l Ledger) known() bool { return l.Params.Den != 0 }

// seed is the ledger in the form in which each ask converts it.
func (l Ledger) seed() Ledger {
	l.Version = 0
	return l
}

func (l Ledger) policySet() uint64 { return policySet(l.Version) }

func (l Ledger) with(ask Ask) bool { return l.Params == ask.Params }

// charge counts what the twin granted to spent. The ledger takes the figures of ask unless it has
// newer ones.
func (l Ledger) charge(now quota.Instant, ask, spent Ask, g Grant) Ledger {
	if l.known() && l.Version > ask.Version {
		ask.Params, ask.Version = l.Params, l.Version
	}
	waiting := g.Waiting * max(spent.Cost, 1)
	tokens := waiting + g.Keep + spent.Used
	l = l.bring(now, ask)
	l = l.expressing(tokens, ask).changedFrom(l.Params, ask)
	p, before := l.Params, l.Debt
	// Nodes may still spend the granted tokens, so they count as leased here too.
	most := max(p.Burst, ask.Most.Burst)
	l.hold(min(waiting, most), spent.Deadline, waitingPieces)
	l.hold(min(g.Keep, most), spent.TTL(), pieces)
	l.trim(most)
	full := before + units(tokens, p.Den)
	l.Debt = max(before, min(full, units(most, p.Den)), units(l.out(), p.Den))
	if over := ceilDiv(full-l.Debt, p.Den); over > 0 { // It goes as if the twin's limit had been lowered.
		by := spent.Params
		used := quota.State{Debt: units(p.TokensIn(full)+l.Over, by.Den), Last: l.Last, Over: l.Over, Gone: l.Gone}
		l.Over = min(l.Over+over, maxUnits)
		l.Gone = by.GoneAfter(used, p, l.Over)
	}
	return l
}

func (l WindowLedger) known() bool { return l.Windows.Quota != 0 }

func (l WindowLedger) seed() WindowLedger {
	l.Version = 0
	return l
}

func (l WindowLedger) policySet() uint64 { return policySet(l.Version) }

func (l WindowLedger) with(ask Ask) bool { return l.Windows == ask.Windows }

// charge counts what the twin granted to spent at its latest possible use, even beyond the quota.
func (l WindowLedger) charge(now quota.Instant, ask, spent Ask, g Grant) WindowLedger {
	if l.known() && l.Version > ask.Version {
		ask.Windows, ask.Version = l.Windows, l.Version
	}
	l = l.At(now, ask)
	w, h := l.Windows, &l.History
	if n := g.Waiting * max(spent.Cost, 1); n > 0 {
		w.Lend(h, h.Last+quota.Instant(spent.Deadline), n)
	}
	if g.Keep > 0 { // Not further ahead than the ledger's own leases.
		w.Lend(h, h.Last+quota.Instant(min(spent.TTL(), TTL(ask.Params))), g.Keep)
	}
	w.Keep(h, spent.Windows.Reach())
	w.Saturate(h)
	w.Advance(h, h.Last)
	return l
}
