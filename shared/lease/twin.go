package lease

import "github.com/weir-proxy/weir/shared/quota"

// While a draft of a policy set is rolled out to some nodes, a limit that differs in it has two
// ledgers for each bucket: the main ledger with the figures in force, and the draft's ledger with
// the figures of the draft. The ledger of a node's version decides, and its grants count in both
// ledgers. So a request is admitted only if its version's limit allows it after all requests that
// both versions admitted, and over all nodes at most
//
//	max(burst, burst') + max(rate, rate')·t
//
// is admitted in any interval t; for a window algorithm of unchanged length max(quota, quota') in
// any window, and the sum of both limits where the lengths differ. The proof: a bucket with the
// larger of both figures that is charged for everything never holds less than either ledger, so it
// always has the tokens that either ledger grants. This holds because a twin charges a ledger at
// most down to nothing. Tokens beyond that are kept apart, as after a change of the limit, so
// drafts that are begun and cancelled give no tokens twice.
//
// Tokens that a node gives back leave both ledgers. A ledger that was charged down to nothing for
// them gets back no more than the larger bucket does, so it still never holds more than that
// bucket.
//
// A draft's ledger that is absent, or left from an earlier draft, starts with the used tokens of
// the main ledger. A store keeps it as long as the main ledger. If the draft is promoted, its
// ledger becomes the main ledger, so that no use is lost.

// EpochBits is the number of low bits of a ledger's version that may change while a draft stays the
// same. The other bits are the number of the policy set.
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
	chargeGrant(now quota.Instant, ask, granted Ask, g Grant) L
	// Touched returns when the ledger was last brought up to date.
	Touched() quota.Instant
	Doubted(now quota.Instant, ask Ask, percent int64) L
	isKnown() bool
	seedDraft() L
	// policySet returns the number of the policy set that brought the ledger's figures.
	// hasFiguresOf reports whether the ledger has the figures of ask.
	policySet() uint64
	hasFiguresOf(ask Ask) bool
}

// Twins are the two ledgers of a bucket; an absent ledger is the zero value.
type Twins[L Counted[L]] struct{ Main, Draft L }

// Grant answers ask with the ledger of the draft, or with the main ledger, and counts the grant in
// the other ledger too, which has the figures of other. The answer's Changed is about the ledger
// that was asked; booked means that the other ledger has changed.
func (t Twins[L]) Grant(now quota.Instant, draft bool, ask, other Ask) (next Twins[L], g Grant, booked bool) {
	next = t
	if !draft {
		next.Main, g = t.Promoted(ask).Grant(now, ask)
		booked = takesTokens(ask, g) && t.HasDraft(other)
		if booked {
			next.Draft = t.Draft.chargeGrant(now, other, ask, g)
		}
		return next, g, booked
	}
	next.Draft, g = t.Started(ask).Grant(now, ask)
	booked = takesTokens(ask, g)
	if booked {
		next.Main = t.Main.chargeGrant(now, other, ask, g)
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
	return t.Draft.isKnown() && t.Draft.policySet() >= policySet(ask.Version)
}

// Started returns the draft's ledger, which begins as a copy of the main ledger.
func (t Twins[L]) Started(ask Ask) L {
	if t.HasDraft(ask) {
		return t.Draft
	}
	return t.Main.seedDraft()
}

// Promoted returns the ledger for an ask after a draft has ended. It is the main ledger, except for
// the first ask with the figures of the draft: then it is the draft's ledger, which has counted
// everything with these figures.
func (t Twins[L]) Promoted(ask Ask) L {
	asks := policySet(ask.Version)
	first := t.Main.isKnown() && t.Main.policySet() < asks && t.Draft.policySet() == asks
	// Where callers bring figures, the figures of a token ledger do not show which draft they
	// belong to.
	own := ask.hasOwnFigures() && ask.Windows.Quota == 0
	if first && (own || !t.Main.hasFiguresOf(ask) && t.Draft.hasFiguresOf(ask)) {
		return t.Draft
	}
	return t.Main
}

// takesTokens reports whether a grant to ask takes tokens from its bucket.
func takesTokens(ask Ask, g Grant) bool {
	return g.Waiting > 0 || g.Keep > 0 || ask.Used > 0 && !g.Stale
}

func (l Ledger) isKnown() bool { return l.Params.Den != 0 }

// seedDraft returns the ledger in the form in which each ask converts it.
func (l Ledger) seedDraft() Ledger {
	l.Version = 0
	return l
}

func (l Ledger) policySet() uint64 { return policySet(l.Version) }

func (l Ledger) hasFiguresOf(ask Ask) bool { return l.Params == ask.Params }

// chargeGrant counts in this ledger a grant that the twin has made to the ask granted, and the
// tokens that this ask reports as used. The ledger takes the figures of ask unless it has newer
// figures.
func (l Ledger) chargeGrant(now quota.Instant, ask, granted Ask, g Grant) Ledger {
	if l.isKnown() && l.Version > ask.Version {
		ask.Params, ask.Version = l.Params, l.Version
	}
	waiting := g.Waiting * max(granted.Cost, 1)
	tokens := waiting + g.Keep + granted.Used
	l = l.bringTo(now, ask)
	l = l.withRoomFor(tokens, ask).changedFrom(l.Params, ask)
	p, before := l.Params, l.Debt
	// Nodes may still spend the granted tokens, so they count as leased here too.
	most := max(p.Burst, ask.Most.Burst)
	l.holdTokens(min(waiting, most), granted.Deadline, waitingPieces)
	l.holdTokens(min(g.Keep, most), granted.TTL(), pieces)
	l.trimLeases(most)
	full := before + toUnits(tokens, p.Den)
	l.Debt = max(before, min(full, toUnits(most, p.Den)), toUnits(l.leasedTokens(), p.Den))
	if over := ceilDiv(full-l.Debt, p.Den); over > 0 { // Go on as if the twin's limit had been lowered.
		by := granted.Params
		used := quota.State{Debt: toUnits(p.TokensIn(full)+l.Over, by.Den), Last: l.Last, Over: l.Over, Gone: l.Gone}
		l.Over = min(l.Over+over, maxUnits)
		l.Gone = by.GoneAfter(used, p, l.Over)
	}
	return l
}

func (l WindowLedger) isKnown() bool { return l.Windows.Quota != 0 }

func (l WindowLedger) seedDraft() WindowLedger {
	l.Version = 0
	return l
}

func (l WindowLedger) policySet() uint64 { return policySet(l.Version) }

func (l WindowLedger) hasFiguresOf(ask Ask) bool { return l.Windows == ask.Windows }

// chargeGrant counts in this ledger a grant that the twin has made to the ask granted, also beyond
// the quota. The tokens count as leased tokens do; see quota.Windows.Lend. The ledger takes the
// figures of ask unless it has newer figures.
func (l WindowLedger) chargeGrant(now quota.Instant, ask, granted Ask, g Grant) WindowLedger {
	if l.isKnown() && l.Version > ask.Version {
		ask.Windows, ask.Version = l.Windows, l.Version
	}
	l = l.At(now, ask)
	w, h := l.Windows, &l.History
	if n := g.Waiting * max(granted.Cost, 1); n > 0 {
		w.Lend(h, h.Last+quota.Instant(granted.Deadline), n)
	}
	if g.Keep > 0 { // Not further ahead than the ledger's own leases.
		w.Lend(h, h.Last+quota.Instant(min(granted.TTL(), TTL(ask.Params))), g.Keep)
	}
	// The twin may have the longer window: keep the marks for as long as its window counts them.
	w.Keep(h, granted.Windows.Reach())
	w.Saturate(h)
	w.Advance(h, h.Last)
	return l
}
