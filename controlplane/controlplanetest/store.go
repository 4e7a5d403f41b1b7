package controlplanetest

import (
	"context"
	"errors"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// LostFill is the share of its burst, in percent, with which a bucket starts whose state the store
// has lost.
const LostFill = leases.LostFill

// Store has the ledgers in memory. It uses the arithmetic of the real stores, and has a journal of
// changes so that an earlier state can come back. The zero value with a Now is an empty store. It
// is for one goroutine.
type Store struct {
	// Now is the clock of the machine that the store runs on. It may step back; the store's own
	// time never does.
	Now func() quota.Instant
	// Down is true while the store does not answer.
	Down bool
	// Asked, if set, is called after each item that was granted, counted or looked at, with its
	// ask: the ledger has the figures of this ask from then on.
	Asked func(bucket keyhash.Key, ask lease.Ask)
	// Before, if set, may change a ledger before each grant: a fault that a test plants. Fill, if
	// not 0, is the share with which buckets start after a loss in place of LostFill.
	Before func(l *lease.Ledger, now quota.Instant, ask lease.Ask)
	Fill   int64
	// Sure is a fault that a test plants: after a loss the store lends permits as if it knew all
	// holders.
	Sure bool
	// TakesAgain and TakesUsed are two more faults. If TakesAgain is true, the store takes each
	// return a second time under another name; if TakesUsed is true, it takes used tokens back.
	TakesAgain, TakesUsed bool
	// Back is the number of tokens that were taken back.
	Back int64

	last    quota.Instant
	lost    quota.Instant
	tokens  map[keyhash.Key]lease.Ledger
	windows map[keyhash.Key]lease.WindowLedger
	permits map[keyhash.Key]inflight.Ledger
	// lent has the store's answers to control planes about permits. given is the time of the loss
	// after which the control planes have claimed their permits again.
	lent  leases.Lent
	given quota.Instant
	// draftTokens and draftWindows are the ledgers of a rollout's version.
	draftTokens  map[keyhash.Key]lease.Ledger
	draftWindows map[keyhash.Key]lease.WindowLedger
	// returned are the names of the returns that were taken.
	returned map[uint64]bool
	journal  []change
}

// change has the ledger before one grant, and the granted tokens.
type change struct {
	at       quota.Instant
	bucket   keyhash.Key
	windowed bool
	known    bool
	tokens   lease.Ledger
	windows  lease.WindowLedger
	granted  int64
	// claimed is true if permits were claimed, and permits is the ledger before that.
	claimed bool
	permits inflight.Ledger
	// returned is the name of a return.
	returned uint64
}

var errDown = errors.New("the store is down")

// Time returns the store's own time: the time of its machine, except that it never steps back.
func (s *Store) Time() quota.Instant {
	s.last = max(s.last, s.Now())
	return s.last
}

// Grant implements leases.Store.
func (s *Store) Grant(_ context.Context, items []leases.Item) ([]lease.Grant, error) {
	if s.Down {
		return nil, errDown
	}
	if s.tokens == nil {
		s.tokens, s.windows = map[keyhash.Key]lease.Ledger{}, map[keyhash.Key]lease.WindowLedger{}
	}
	var grants []lease.Grant
	for len(items) > 0 {
		n := leases.Leading(items)
		grants = append(grants, s.grantTogether(items[:n])...)
		items = items[n:]
	}
	return grants, nil
}

// grantTogether grants all items of a group, or none.
func (s *Store) grantTogether(group []leases.Item) []lease.Grant {
	now, whole := s.Time(), true
	grants := make([]lease.Grant, len(group))
	if len(group) > 1 {
		for i, it := range group {
			grants[i] = s.grant(now, it, true)
			whole = whole && !grants[i].Stale && grants[i].NotBefore == 0
		}
	}
	for i := 0; i < len(group) && whole; i++ {
		grants[i] = s.grant(now, group[i], false)
	}
	return grants
}

// grant answers an item, without a charge if look is true.
func (s *Store) grant(now quota.Instant, it leases.Item, look bool) (g lease.Grant) {
	switch it.Kind {
	case wire.KindClaim:
		return s.claim(now, it.Bucket, it.Claim)
	case wire.KindSettle: // This store keeps no reservations: reserved tokens stay charged.
		return lease.Grant{}
	case wire.KindReturn:
		return s.takeBack(now, it)
	}
	c := change{at: now, bucket: it.Bucket, windowed: it.Ask.Windows.Quota != 0}
	var stored bool
	if c.windowed {
		c.windows, c.known = s.windows[it.Bucket]
		g, stored = s.grantWindows(now, it, look, c)
	} else {
		c.tokens, c.known = s.tokens[it.Bucket]
		g, stored = s.grantTokens(now, it, look, c)
	}
	g.Doubt = g.Tells() && leases.InDoubt(s.lost, now, s.lostFill(), it.Ask)
	c.granted = g.Waiting*max(it.Ask.Cost, 1) + g.Keep + it.Ask.Used
	if stored {
		s.journal = append(s.journal, c)
	}
	if s.Asked != nil && !g.Stale {
		s.Asked(it.Bucket, it.Ask)
	}
	return g
}

// lostFill returns the share of its burst, in percent, with which a lost bucket starts.
func (s *Store) lostFill() int64 {
	if s.Fill != 0 {
		return s.Fill
	}
	return LostFill
}

// startsInDoubt reports whether the bucket of a change has no ledger, and may have been in use
// before the last loss.
func (s *Store) startsInDoubt(c change, ask lease.Ask) bool {
	return !c.known && c.at < leases.DoubtfulUntil(s.lost, ask)
}

// grantTokens answers an item by the token ledgers of its bucket, without a charge if look is true.
// before has the ledger before. stored is true if the store keeps another ledger afterwards.
func (s *Store) grantTokens(now quota.Instant, it leases.Item, look bool, before change) (g lease.Grant, stored bool) {
	l, doubtful := before.tokens, s.startsInDoubt(before, it.Ask)
	if doubtful {
		l = lease.Fresh(it.Ask.Params, it.Ask.Version, now, s.lostFill())
	}
	if s.Before != nil && before.known {
		s.Before(&l, now, it.Ask)
	}
	decide := lease.Ledger.Grant
	if look {
		decide = lease.Ledger.Look
	}
	l, g = decideTwins(now, it, look, l, &s.draftTokens, decide)
	if stored = g.Changed || doubtful; stored {
		s.tokens[it.Bucket] = l
	}
	return g, stored
}

// grantWindows is grantTokens for a bucket of a window algorithm.
func (s *Store) grantWindows(now quota.Instant, it leases.Item, look bool, before change) (g lease.Grant, stored bool) {
	l, doubtful := before.windows, s.startsInDoubt(before, it.Ask)
	if doubtful {
		l = lease.FreshWindows(it.Ask, now, s.lostFill())
	}
	decide := lease.WindowLedger.Grant
	if look {
		decide = lease.WindowLedger.Look
	}
	l, g = decideTwins(now, it, look, l, &s.draftWindows, decide)
	if stored = g.Changed || doubtful; stored {
		s.windows[it.Bucket] = l
	}
	return g, stored
}

// Lose forgets every ledger, like a store that restarts without its data and notices the loss.
func (s *Store) Lose() {
	clear(s.tokens)
	clear(s.windows)
	clear(s.draftTokens)
	clear(s.draftWindows)
	clear(s.permits)
	clear(s.returned)
	s.journal, s.lost = nil, s.Time()
}

// Fail brings back the store's state of a lag ago, as at a failover to a replica that lags; the
// store notices the failover. It returns, for each bucket, the tokens whose grants are lost.
func (s *Store) Fail(lag quota.Span) map[keyhash.Key]int64 {
	lost, now := map[keyhash.Key]int64{}, s.Time()
	for len(s.journal) > 0 {
		c := s.journal[len(s.journal)-1]
		if c.at <= now-quota.Instant(lag) {
			break
		}
		s.journal = s.journal[:len(s.journal)-1]
		lost[c.bucket] += c.granted
		switch {
		case c.returned != 0:
			delete(s.returned, c.returned)
			s.undoReturn(c)
		case c.claimed:
			s.permits[c.bucket] = c.permits
		case c.windowed && c.known:
			s.windows[c.bucket] = c.windows
		case c.windowed:
			delete(s.windows, c.bucket)
		case c.known:
			s.tokens[c.bucket] = c.tokens
		default:
			delete(s.tokens, c.bucket)
		}
	}
	s.lost = now
	return lost
}

// Figures returns the parameters of a token bucket; known is false if the store has no such bucket.
func (s *Store) Figures(bucket keyhash.Key) (p quota.Params, known bool) {
	l, known := s.tokens[bucket]
	return l.Params, known
}

// Holds returns the whole tokens that a token bucket holds now: below 0 if it owes more than a
// burst, and the burst if the bucket is not known.
func (s *Store) Holds(bucket keyhash.Key, burst int64) int64 {
	l, known := s.tokens[bucket]
	if !known {
		return burst
	}
	ask := lease.Ask{Params: l.Params, Version: l.Version, Optimistic: true}
	l = l.At(s.Time(), ask)
	return l.Params.Burst - l.Params.TokensIn(l.Debt)
}

// Sweep forgets ledgers that equal an absent ledger.
func (s *Store) Sweep() {
	now := s.Time()
	for key, l := range s.tokens {
		if l.Forgettable() <= now {
			delete(s.tokens, key)
		}
	}
	for key, l := range s.windows {
		if l.Forgettable() <= now {
			delete(s.windows, key)
		}
	}
}
