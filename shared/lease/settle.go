package lease

import "github.com/weir-proxy/weir/shared/quota"

// Reservation is what one waiting request has taken by an ask that was just granted.
func (l WindowLedger) Reservation(ask Ask) quota.Reservation {
	last := l.History.Last
	return quota.Reservation{From: last, At: last + quota.Instant(ask.Deadline), Tokens: max(ask.Cost, 1)}
}

// Counts is until when a reservation can be settled: as long as it counts.
func (l WindowLedger) Counts(r quota.Reservation) quota.Instant { return l.Windows.Counts(r.At) }

// Settle makes a reservation cost what its request has cost, by the figures of the ledger, and
// returns the tokens that it gave back, below 0 those that it took. See quota.Windows.Settle. After
// a clock was set back it gives back nothing, because marks have moved.
func (l WindowLedger) Settle(now quota.Instant, r quota.Reservation, actual int64) (WindowLedger, int64) {
	if l.Windows.Quota == 0 {
		return l, 0
	}
	l.History.Marks = append(make([]quota.Mark, 0, len(l.History.Marks)+1), l.History.Marks...)
	l.Windows.Advance(&l.History, now)
	if r.From > l.History.Last && actual < r.Tokens {
		return l, 0
	}
	back := l.Windows.Settle(&l.History, r, actual)
	return l, back
}
