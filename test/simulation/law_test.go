package simulation

import (
	"math/bits"

	"github.com/weir-proxy/weir/shared/quota"
)

// law is the promise of a token bucket over all who draw on it: in every interval (s, t] at most
//
//	burst + rate·(t-s) + what events in between or shortly before s allow
//
// tokens are used. The debt is the greatest of used - rate·(t-s) - allowances over all s so far, in
// units; it is exact.
type law struct {
	params quota.Params
	// always is allowed on top in every interval, in tokens.
	always int64
	debt   int64
	last   quota.Instant
	graces []grace
	// zero is when nothing was last owed: the interval that owes most begins then or later.
	zero quota.Instant
	// lent is until when leases by figures of before may be used.
	lent quota.Instant
	// lost is true if the ledger was lost, so a change of figures does not go on from the used
	// tokens.
	lost bool

	// own: callers bring figures of their own, of which params are the largest.
	own bool

	generation uint64 // of a node's own bucket: the policy set that brought the figures
	used       int64
	// share is the greatest part of the bound that was ever reached, plain the same of burst +
	// rate·t alone while nothing had allowed more.
	share, plain float64
	disturbed    bool
}

// grace is an allowance for intervals that begin before until.
type grace struct {
	until  quota.Instant
	tokens int64
}

// advance brings the law to now: time earns, and graces that are over have helped only intervals
// that began before.
func (l *law) advance(now quota.Instant) {
	for len(l.graces) > 0 {
		first := 0
		for i, g := range l.graces {
			if g.until < l.graces[first].until {
				first = i
			}
		}
		g := l.graces[first]
		if g.until > now {
			break
		}
		l.earn(g.until)
		l.debt = max(0, l.debt-g.tokens*l.params.Den)
		l.graces = append(l.graces[:first], l.graces[first+1:]...)
	}
	l.earn(now)
}

func (l *law) earn(now quota.Instant) {
	if now <= l.last {
		return
	}
	if span := int64(now - l.last); span > l.debt/l.params.Num {
		l.debt = 0
	} else {
		l.debt -= span * l.params.Num
	}
	if l.last = now; l.debt == 0 {
		l.zero = now
	}
}

// allow lets intervals that begin before now + span have tokens more.
func (l *law) allow(now quota.Instant, tokens int64, span quota.Span) {
	if tokens > 0 {
		l.advance(now)
		l.disturbed = true
		l.graces = append(l.graces, grace{now + quota.Instant(span), tokens})
	}
}

// change goes on with other figures. Leases from before may be used for span. If the burst is
// lowered, use beyond the new burst is forgotten: a burst raised again within the time of a refill
// has room for more. An interval with both limits in it may earn by the faster: who counts a bucket
// does not know when its limit was changed.
func (l *law) change(now quota.Instant, next quota.Params, span quota.Span) {
	l.advance(now)
	if l.params.SlowerThan(next) {
		perUnit := float64(next.Num)/float64(next.Den)*float64(l.params.Den) - float64(l.params.Num)
		l.debt -= int64(min(float64(now-l.zero)*perUnit+1, float64(l.debt)))
	}
	high, low := bits.Mul64(uint64(l.debt), uint64(next.Den))
	debt, _ := bits.Div64(high, low, uint64(l.params.Den))
	less := l.params.Burst - next.Burst
	l.debt, l.params = int64(debt), next
	l.lent = max(l.lent, now+quota.Instant(span)) // Leases of earlier figures may live longer.
	l.allow(now, less, quota.Span(l.lent-now))
}

// follow goes on with the figures of a node's own bucket from a newer policy set.
func (l *law) follow(now quota.Instant, generation uint64, next quota.Params) {
	l.generation = generation
	if next != l.params {
		l.change(now, next, 0)
	}
}

// older reports whether figures belong to an earlier policy set. A caller's own figures are never
// above the largest.
func (l *law) older(p quota.Params) bool {
	if l.own {
		return l.params.SlowerThan(p) || p.Burst > l.params.Burst
	}
	return p != l.params
}

// use notes n tokens used at now, and reports whether the law still holds.
func (l *law) use(now quota.Instant, n int64) bool {
	l.advance(now)
	l.used += n
	l.debt += n * l.params.Den
	most := l.params.Burst + l.always
	for _, g := range l.graces {
		most += g.tokens
	}
	l.share = max(l.share, float64(l.debt)/float64(most*l.params.Den))
	if !l.disturbed {
		l.plain = max(l.plain, float64(l.debt)/float64(l.params.Burst*l.params.Den))
	}
	return l.debt <= most*l.params.Den
}

// windowLaw is the promise of a window algorithm: at most the quota in any window, of a fixed one
// in any of its grid.
type windowLaw struct {
	windows    quota.Windows
	own        bool
	generation uint64
	log        []grace // tokens by the time of their use
	graces     []grace // tokens that events allow, each until no window can reach into its time
	share      float64
}

// reach returns the time for which an event matters: two windows, and a second more than a lease.
func (l *windowLaw) reach() quota.Span { return 2*l.windows.Length + 31*quota.Second }

func (l *windowLaw) allow(now quota.Instant, tokens int64) {
	l.graces = append(l.graces, grace{now + quota.Instant(l.reach()), tokens})
}

// change goes on with other figures. If the quota is lowered, use beyond the new quota is
// forgotten, so a quota raised again has room for more.
func (l *windowLaw) change(now quota.Instant, next quota.Windows) {
	l.allow(now, max(0, l.windows.Quota-next.Quota))
	l.windows = next
}

// follow goes on with the figures of a node's own bucket from a newer policy set.
func (l *windowLaw) follow(now quota.Instant, generation uint64, next quota.Windows) {
	l.generation = generation
	l.change(now, next)
}

// use notes n tokens used at now; it reports whether the law still holds. It forgets entries of the
// log that no window reaches.
func (l *windowLaw) use(now quota.Instant, n int64) bool {
	w := l.windows
	l.log = append(l.log, grace{now, n})
	for len(l.log) > 0 && l.log[0].until <= now-quota.Instant(w.Length) {
		l.log = l.log[1:]
	}
	most, sum := w.Quota, int64(0)
	if w.Algorithm == quota.SlidingWindowCounter {
		most = 2*most - 1
	}
	for _, g := range l.graces {
		if g.until > now {
			most += g.tokens
		}
	}
	for _, use := range l.log {
		if w.Algorithm != quota.FixedWindow || w.Counts(use.until) == w.Counts(now) {
			sum += use.tokens
		}
	}
	l.share = max(l.share, float64(sum)/float64(most))
	return sum <= most
}
