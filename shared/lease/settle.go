package lease

import "github.com/weir-proxy/weir/shared/quota"

// Reservation returns the tokens that one waiting request has taken by an ask that was just
// granted.
func (l WindowLedger) Reservation(ask Ask) quota.Reservation {
	last := l.History.Last
	return quota.Reservation{From: last, At: last + quota.Instant(ask.Deadline), Tokens: max(ask.Cost, 1)}
}

// Counts returns until when a reservation can be settled: as long as it counts.
func (l WindowLedger) Counts(r quota.Reservation) quota.Instant { return l.Windows.Counts(r.At) }

// Settle changes a reservation to the actual cost of its request, by the figures of the ledger. It
// returns the parts of a token that it gave back; they are negative if it took more. See
// quota.Windows.Settle. An absent ledger counts nothing more, whatever the ask. After a clock was
// set back Settle gives back nothing, because marks have moved.
func (l WindowLedger) Settle(now quota.Instant, _ Ask, r quota.Reservation, actual int64) (WindowLedger, int64) {
	if l.Windows.Quota == 0 {
		return l, 0
	}
	l.History.Marks = append(make([]quota.Mark, 0, len(l.History.Marks)+1), l.History.Marks...)
	l.Windows.Advance(&l.History, now)
	if r.From > l.History.Last && actual < r.Tokens {
		return l, 0
	}
	back := l.Windows.Settle(&l.History, r, actual)
	return l, back * quota.Parts
}

// ReservedFor is the shortest time in which a reservation of tokens can be settled. Its tokens come
// back by themselves sooner, but a request may have cost more than it had reserved.
const ReservedFor = 15 * quota.Minute

// Reservation returns the tokens that one waiting request has taken by an ask that was just
// granted.
func (l Ledger) Reservation(ask Ask) quota.Reservation {
	return quota.Reservation{From: l.Last, At: l.leaseEnd(ask.Deadline, waitingPieces), Tokens: max(ask.Cost, 1)}
}

// Counts returns until when a reservation can be settled.
func (l Ledger) Counts(r quota.Reservation) quota.Instant {
	return r.From + quota.Instant(max(ReservedFor, l.Params.Window()))
}

// changedFrom records the time of a change of figures: tokens taken before have not come back at
// the same rate. It also records when an Owing bucket begins.
func (l Ledger) changedFrom(before quota.Params, ask Ask) Ledger {
	if before != l.Params && (ask.Owing || before.Den != 0 && !ask.Optimistic) {
		l.Since = l.Last
	}
	return l
}

// Settle changes a reservation to the actual cost of its request, by the figures of the ledger. It
// returns the parts of a token that it gave back; they are negative if it took more. An absent
// bucket was full and has the figures of ask. Tokens that still count as leased keep the debt up,
// so tokens that are given back also leave their lease, if it can be found. Settle gives back
// nothing after the figures have changed or a clock was set back.
func (l Ledger) Settle(now quota.Instant, ask Ask, r quota.Reservation, actual int64) (Ledger, int64) {
	if l.Params.Den == 0 {
		if actual <= r.Tokens {
			return l, 0
		}
		l = Ledger{Params: ask.Params, Version: ask.Version, Last: now, Since: now}
	}
	before := l
	l = l.bringTo(now, Ask{Params: l.Params, Version: l.Version})
	if actual < r.Tokens && (r.From > l.Last || r.From < l.Since || l.Last >= l.Counts(r)) {
		return before, 0
	}
	if back := r.Tokens - actual; back > 0 {
		for i, pair := range l.Pairs {
			if pair.End == r.At && pair.Tokens >= back {
				l.Pairs[i].Tokens -= back
			}
		}
	}
	owed := l.Debt
	r.From = min(r.At, l.Last) // While its tokens counted as leased, none of them came back by itself.
	s, back := l.Params.Settle(quota.State{Debt: owed, Last: l.Last}, l.Last, r, actual)
	if back == 0 {
		return before, 0
	}
	l.Debt = max(s.Debt, toUnits(l.leasedTokens(), l.Params.Den))
	return l, l.Params.PartsOf(owed - l.Debt)
}

// setFullAfter sets when the bucket is full, if that does not follow from the level: an Owing
// bucket can lack more than it holds, and its nodes learn of settlements from this time.
func (l Ledger) setFullAfter(now quota.Instant, ask Ask, g *Grant) {
	if ask.Owing && !ask.hasOwnFigures() {
		g.FullAfter, g.Delay = quota.Span(max(l.Ready(l.Params.Burst)-now, 0)), 0
	}
}
