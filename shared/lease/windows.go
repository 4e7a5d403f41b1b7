package lease

import (
	"slices"

	"github.com/weir-proxy/weir/shared/quota"
)

// WindowLedger is the control plane's record of one bucket of a window algorithm: the recent
// admissions and leases, its figures, and the policy set version that brought them. The zero value
// is a bucket that was never used.
//
// A leased token counts at its latest possible use. So even if nodes hoard tokens, all nodes
// together never use more than the quota in any window; see quota.Windows.Lend. A
// sliding_window_counter is not leased: it only answers waiting requests.
type WindowLedger struct {
	Windows quota.Windows
	Version uint64
	History quota.History
}

// FreshWindows returns the ledger of an unknown bucket, with percent of the quota of its caller
// left.
func FreshWindows(ask Ask, now quota.Instant, percent int64) WindowLedger {
	w := ask.Windows
	l := WindowLedger{Windows: w, Version: ask.Version, History: quota.History{Last: now}}
	if used := LostWindows(ask, percent); used > 0 {
		w.Add(&l.History, now, used)
	}
	if ask.Owing { // Its tokens belong to no reservation.
		l.History.Since = now
	}
	return l
}

// Touched returns when the ledger was last brought up to date.
func (l WindowLedger) Touched() quota.Instant { return l.History.Last }

// Doubted returns the ledger of a bucket whose store may have lost its last changes, with percent
// of the quota of the ask's caller left at most.
func (l WindowLedger) Doubted(now quota.Instant, ask Ask, percent int64) WindowLedger {
	if !l.isKnown() {
		return l
	}
	l = l.At(now, Ask{Windows: l.Windows, Version: l.Version})
	w := ask.quotaOf(l.Windows)
	more := w.Quota - Fill(w.Quota, percent) - (w.Quota - w.Remaining(&l.History))
	if more > 0 {
		l.Windows.Add(&l.History, now, more)
	}
	return l
}

// LostWindows returns how many tokens count as used in such a ledger.
func LostWindows(ask Ask, percent int64) int64 {
	whole := ask.quotaOf(ask.Windows).Quota
	return whole - Fill(whole, percent)
}

// Grant answers ask at now, as Ledger.Grant does. The caller stores the returned ledger if the
// grant says Changed, until it is Forgettable.
func (l WindowLedger) Grant(now quota.Instant, ask Ask) (WindowLedger, Grant) {
	if l.isStale(ask) {
		return l, Grant{Stale: true}
	}
	before := l.Windows
	l = l.At(now, ask)
	w, h := ask.quotaOf(l.Windows), &l.History
	cost, late := max(ask.Cost, 1), h.Last+quota.Instant(ask.Deadline)
	g := Grant{Waiting: min(max(ask.Waiting, 0), w.Room(h, late)/cost)}
	if g.Waiting > 0 {
		w.Lend(h, late, g.Waiting*cost)
	}
	if g.Waiting > 0 && late > h.Last {
		g.Term = termOf(late)
	}
	if w.Algorithm.Lends() && g.Waiting >= ask.Waiting {
		until := h.Last + quota.Instant(ask.TTL())
		g.Keep = keepShare(ask, w.Room(h, until))
		if g.Keep > 0 {
			w.Lend(h, until, g.Keep)
			g.Term = termOf(until)
		}
	}
	g.Level, g.FullAfter = w.Remaining(h), w.FullAfter(h, now)
	g.Changed = g.Waiting > 0 || g.Keep > 0 || before.Quota != 0 && before != l.Windows
	if g.Waiting < ask.Waiting || ask.looksOnly() && w.Room(h, late) < cost {
		g.NotBefore = l.waitFor(now, ask)
	}
	return l, g
}

// Look is Grant without a charge: NotBefore is 0 if all waiting requests can have their cost.
func (l WindowLedger) Look(now quota.Instant, ask Ask) (WindowLedger, Grant) {
	if l.isStale(ask) {
		return l, Grant{Stale: true}
	}
	before := l.Windows
	l = l.At(now, ask)
	w := ask.quotaOf(l.Windows)
	g := Grant{
		Level: w.Remaining(&l.History), FullAfter: w.FullAfter(&l.History, now),
		Changed: before.Quota != 0 && before != l.Windows,
	}
	if w.Room(&l.History, l.History.Last+quota.Instant(ask.Deadline))/max(ask.Cost, 1) < ask.Waiting {
		g.NotBefore = l.waitFor(now, ask)
	}
	return l, g
}

func (l WindowLedger) isStale(ask Ask) bool {
	return l.Version > ask.Version && l.Windows != ask.Windows && l.Windows.Quota != 0
}

func (l WindowLedger) waitFor(now quota.Instant, ask Ask) quota.Span {
	cost, w := max(ask.Cost, 1), ask.quotaOf(l.Windows)
	if cost > w.Quota {
		return quota.Never
	}
	return max(1, quota.Span(w.ReadyToLend(&l.History, cost, ask.Deadline)-now))
}

// At brings the ledger to now and to the ask's figures. Time never runs backwards in it.
func (l WindowLedger) At(now quota.Instant, ask Ask) WindowLedger {
	l.History.Marks = slices.Clone(l.History.Marks)
	l.Version = max(l.Version, ask.Version)
	if l.Windows.Quota == 0 || l.Windows == ask.Windows {
		begins := l.Windows.Quota == 0
		l.Windows = ask.Windows
		l.Windows.Advance(&l.History, now)
		if begins && ask.Owing { // Older reservations do not count any more.
			l.History.Since = l.History.Last
		}
		return l
	}
	l.Windows.Convert(&l.History, now, ask.Windows)
	l.Windows = ask.Windows
	return l
}

// Forgettable returns the instant from which the ledger equals an absent ledger. A ledger that gave
// tokens back is kept while older reservations count: they may have cost more.
func (l WindowLedger) Forgettable() quota.Instant {
	at := l.Windows.Forgettable(&l.History)
	if l.History.Released > 0 {
		at = max(at, l.Windows.Counts(l.History.Released+quota.Instant(2*Deadline)))
	}
	return at
}
