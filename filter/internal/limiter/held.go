package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// A worker keeps what it knows of a busy bucket, so that it need not go to the shared data for each request: tokens that it has
// taken in advance, a lot, and refusals that still hold. Both are good for some milliseconds, in which all workers have promised to tell
// clients the same of when the bucket will be full.

const (
	places = 128
	// A lot is at most 1/lotsInBurst of the burst; a bucket of which it would be too small, or that is more than half empty, is charged
	// request by request. At most 1/lentInBurst of a burst is lent.
	lotsInBurst = 64
	lentInBurst = 8
)

// held is what a worker knows of one bucket by itself. The zero value knows nothing.
type held struct {
	key    match.Key
	kind   bucketstore.Kind
	until  quota.Instant
	params quota.Params
	// tokens are left of the lot.
	tokens, lot int64
	// fullAt is what clients are told.
	fullAt quota.Instant

	// Of a bucket of this node's own. state is what the bucket would be if each request were charged when it comes, wrote what the
	// shared data was left with, and floor the units that other workers had taken in advance.
	state, wrote quota.State
	floor        int64
	epoch        uint32

	// Of a central bucket: requests of denyCost or more are refused until notBefore.
	denyCost  int64
	notBefore quota.Instant
	level     int64
}

// place is where a worker keeps what it knows of a bucket; nil if it holds tokens of another there.
func (l *Limiter) place(kind bucketstore.Kind, key *match.Key, now quota.Instant) *held {
	h := &l.held[key[10]%places]
	if (h.kind != kind || h.key != *key) && h.tokens > 0 && now < h.until {
		return nil
	}
	return h
}

// is says whether h knows something of a bucket at now.
func (h *held) is(kind bucketstore.Kind, key *match.Key, p quota.Params, now quota.Instant) bool {
	return now < h.until && h.kind == kind && h.key == *key && h.params == p
}

// decide decides t by what is held, and reports false if that does not do.
func (h *held) decide(t *localTake, key *match.Key) bool {
	if !h.is(bucketstore.Local, key, t.params, t.now) {
		return false
	}
	s := h.refilled(t.now)
	charged, result := h.params.Take(s, t.now, t.cost)
	if result.Allowed && t.cost > h.tokens {
		return false
	}
	if t.result = result; result.Allowed && t.commit {
		s = charged
		h.state, h.tokens = s, h.tokens-t.cost
	}
	t.remaining, t.fullAt = h.params.Remaining(s), h.fullAt
	return true
}

// lotOf says whether h has, or had, a lot of e that it has not given back.
func (h *held) lotOf(e *bucketstore.Entry) bool {
	return h != nil && h.lot > 0 && !e.New && h.kind == bucketstore.Local && h.key == e.Key && h.params == e.Params
}

func (h *held) refilled(now quota.Instant) quota.State {
	s := h.params.Refill(h.state, now)
	s.Debt = max(s.Debt, h.floor)
	return s
}

// settle is the bucket at now, and what others have taken of it in advance, after this worker's lot is given back: what it has
// not spent was never used. If nobody else has changed the bucket since, it is as this worker knows it.
func (h *held) settle(e *bucketstore.Entry, now quota.Instant) (quota.State, bucketstore.Lent) {
	lent := e.Lent.At(bucketstore.Epoch(now))
	s, all := e.State, lent.Tokens()
	if !h.lotOf(e) {
		if all > 0 {
			s = e.Params.Refill(s, now)
			s.Debt = max(s.Debt, e.Params.UnitsFor(all))
		}
		return s, lent
	}
	lent = lent.Return(h.lot, h.epoch)
	switch {
	case s == h.wrote:
		s = h.refilled(now)
	case all > 0:
		s = e.Params.Refill(s, now)
		if s.Debt = max(s.Debt, e.Params.UnitsFor(all)); bucketstore.StillLent(h.epoch, now) {
			s.Debt -= e.Params.UnitsFor(h.tokens)
		}
	}
	return s, lent
}

// lotFor is how many tokens to take in advance of a bucket in the state behind t, after the request's own: 0 if it is not busy, or not
// full enough.
func (h *held) lotFor(t *localTake, e *bucketstore.Entry, lent bucketstore.Lent) int64 {
	p, s := t.params, t.after
	usedUp := h.lotOf(e) && t.now < h.until
	n := min(p.Burst/lotsInBurst, bucketstore.MaxLot)
	if n < bucketstore.MinLot || n < t.cost || !usedUp && t.now-e.State.Last > quota.Instant(bucketstore.Busy) ||
		lent.Tokens()+n > p.Burst/lentInBurst || s.Debt+p.UnitsFor(n) > p.UnitsFor(p.Burst)/2 {
		return 0
	}
	return n
}

// learn keeps what t has found out in the shared data.
func (h *held) learn(t *localTake, key match.Key) {
	switch {
	case t.holdUntil > 0:
		*h = held{
			kind: bucketstore.Local, key: key, params: t.params, until: t.holdUntil, tokens: t.lot, lot: t.lot, fullAt: t.fullAt,
			state: t.after, wrote: t.wrote, floor: t.floor, epoch: bucketstore.Epoch(t.now),
		}
	case t.wrote != (quota.State{}) && h.kind == bucketstore.Local && h.key == key:
		*h = held{} // A lot has been given back.
	}
}

// spend decides s by what is held of a central bucket, and reports false if that does not do.
func (h *held) spend(s *leasing.Spend, key *match.Key) bool {
	switch {
	case !h.is(bucketstore.Leased, key, s.Params, s.Now) || s.Strict || s.Cost == 0:
		return false
	case s.Cost <= h.tokens:
		if s.State = leasing.Ready; s.Commit {
			h.tokens -= s.Cost
			h.level = max(0, h.level-s.Cost)
		}
	case s.Now < h.notBefore && s.Cost >= h.denyCost:
		s.State, s.Until = leasing.Exhausted, h.notBefore
	default:
		return false
	}
	s.Level, s.FullAt = h.level, h.fullAt
	return true
}

// remember keeps what s has found out of a central bucket, and says how many tokens nobody can use any more for that.
func (h *held) remember(s *leasing.Spend, key match.Key) (lapsed int64) {
	var left, lost int64
	if h.kind == bucketstore.Leased {
		if left = h.tokens; !h.is(bucketstore.Leased, &key, s.Params, s.Now) {
			left, lost = 0, left
		}
	}
	next := held{kind: bucketstore.Leased, key: key, params: s.Params, until: s.HoldUntil, fullAt: s.FullAt}
	switch {
	case s.HoldUntil == 0:
		return 0
	case s.Lot > 0:
		if next.tokens, next.level = s.Lot+left, s.Level; left > 0 {
			next.until = min(next.until, h.until)
		}
	case left == 0:
		next.denyCost, next.notBefore = s.Cost, s.Until
	default:
		return 0
	}
	*h = next
	return lost
}
