package quota_test

import (
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

var settleGames = flag.Int("settlements", 20000, "random games of reservations against an exact ledger")

// A timeline: five failed log-ins in 15 minutes. A log-in that succeeds gives its entry back, the
// others stay where they were made.
func TestSettleALog(t *testing.T) {
	minute := quota.Instant(quota.Minute)
	w, err := quota.NewWindows(quota.SlidingLog, 5, 15*quota.Minute, 0)
	if err != nil {
		t.Fatal(err)
	}
	var h quota.History
	take := func(at quota.Instant, want bool) quota.Reservation {
		t.Helper()
		if got := w.Take(&h, at, 1); got.Allowed != want {
			t.Fatalf("at %d: allowed %v", at, got.Allowed)
		}
		return quota.Reservation{From: at, At: at, Tokens: 1}
	}
	var all []quota.Reservation
	for i := range quota.Instant(5) {
		all = append(all, take(i*minute, true))
	}
	take(5*minute, false)
	if back := w.Settle(&h, all[2], 0); back != 1 {
		t.Fatalf("%d came back", back)
	}
	take(5*minute, true)
	r := w.Take(&h, 6*minute, 1)
	if want := quota.Span(9 * minute); r.Allowed || r.RetryAfter != want {
		t.Errorf("allowed %v, retry after %d, want %d: when the first entry leaves", r.Allowed, r.RetryAfter, want)
	}
	w.Advance(&h, 16*minute)
	if back := w.Settle(&h, all[0], 0); back != 0 {
		t.Errorf("%d came back of an entry that counts no more", back)
	}
}

// A timeline of a bucket of 10 that earns one a second: what a request was too dear becomes debt,
// which the wait says honestly, and a reservation that has come back by itself is not given back.
func TestSettleTokens(t *testing.T) {
	p, err := quota.NewParams(1, quota.Second, 10)
	if err != nil {
		t.Fatal(err)
	}
	second := quota.Instant(quota.Second)
	s, r := p.TakeOwing(quota.State{}, 0, 4)
	if !r.Allowed {
		t.Fatal("refused")
	}
	s, back := p.Settle(s, second, quota.Reservation{Tokens: 4}, 25)
	if back != -21 {
		t.Fatalf("gave back %d, want to take 21", back)
	}
	if s, r = p.TakeOwing(s, second, 1); r.Allowed || r.RetryAfter != 15*quota.Second {
		t.Errorf("allowed %v after %d, want 15s: 14 of debt and one for the request", r.Allowed, r.RetryAfter)
	}
	if _, r = p.TakeOwing(s, 16*second, 1); !r.Allowed {
		t.Error("refused after the wait")
	}
	s = p.Empty(100 * second)
	if s, back = p.Settle(s, 103*second, quota.Reservation{From: 100 * second, Tokens: 5}, 0); back != 2 {
		t.Errorf("%d came back, want 2: three of five had come back by themselves", back)
	}
	if _, back = p.Settle(s, 120*second, quota.Reservation{From: 100 * second, Tokens: 5}, 0); back != 0 {
		t.Errorf("%d came back of what had come back", back)
	}
}

// request is one of a random game.
type request struct {
	taken  quota.Reservation
	actual int64
	end    quota.Instant
	over   bool
}

// Random requests reserve and cost something else. A bucket never holds more than one that knew all
// costs at once, whatever the order in which they become known; windows hold exactly as much once
// all are known.
func TestSettleNeverMints(t *testing.T) {
	seed := rand.Uint64()
	for game := range *settleGames {
		r := rand.New(rand.NewPCG(seed, uint64(game)))
		a := []quota.Algorithm{quota.TokenBucket, quota.FixedWindow, quota.SlidingWindow, quota.SlidingLog}[r.IntN(4)]
		if kept, most := settleGame(r, a, settleRight); kept > most {
			t.Fatalf("seed %d, game %d, %v: the bucket holds %d, and %d at most is right", seed, game, a, kept, most)
		}
	}
}

// The games find settlements that are wrong: twice, of what has come back by itself, of what counts
// no more, and out of the latest marks.
func TestSettleGamesFindBugs(t *testing.T) {
	seed := rand.Uint64()
	for name, bug := range map[string]settleAs{
		"twice": func(b *settleBucket, now quota.Instant, one *request) {
			settleRight(b, now, one)
			if one.actual < one.taken.Tokens {
				settleRight(b, now, one)
			}
		},
		"all of it, at any time": func(b *settleBucket, now quota.Instant, one *request) {
			one.taken.From, one.taken.At = now, now
			settleRight(b, now, one)
		},
		"what was too little is forgotten": func(b *settleBucket, now quota.Instant, one *request) {
			one.actual = min(one.actual, one.taken.Tokens)
			settleRight(b, now, one)
		},
	} {
		for _, a := range []quota.Algorithm{quota.TokenBucket, quota.SlidingLog} {
			found := false
			for game := range *settleGames {
				kept, most := settleGame(rand.New(rand.NewPCG(seed, uint64(game))), a, bug)
				if found = kept > most; found {
					break
				}
			}
			if !found {
				t.Errorf("seed %d: %d games of %v have not found: %s", seed, *settleGames, a, name)
			}
		}
	}
}

// settleBucket is a bucket of one of the two kinds.
type settleBucket struct {
	a quota.Algorithm
	p quota.Params
	w quota.Windows
	s quota.State
	h quota.History
}

func newSettleBucket(r *rand.Rand, a quota.Algorithm) *settleBucket {
	b := &settleBucket{a: a}
	b.p, _ = quota.NewParams(60, quota.Minute, 30)
	if a.Windowed() {
		b.w, _ = quota.NewWindows(a, 30, quota.Minute, 6)
		b.w = b.w.At(r.Uint64())
	}
	return b
}

func (b *settleBucket) take(now quota.Instant, n int64) (quota.Reservation, bool) {
	var result quota.Result
	if b.a.Windowed() {
		result = b.w.Take(&b.h, now, n)
	} else {
		b.s, result = b.p.TakeOwing(b.s, now, n)
	}
	return quota.Reservation{From: now, At: now, Tokens: n}, result.Allowed
}

// charge counts what one has cost, allowed or not.
func (b *settleBucket) charge(now quota.Instant, n int64) {
	if b.a.Windowed() {
		b.w.Advance(&b.h, now)
		if n > 0 {
			b.w.Add(&b.h, now, n)
		}
		return
	}
	b.s = b.p.Drain(b.s, now)
	b.s.Debt += n * b.p.Den
}

// missing is what the bucket lacks, in units.
func (b *settleBucket) missing(now quota.Instant) (n int64) {
	if !b.a.Windowed() {
		return b.p.Drain(b.s, now).Debt
	}
	b.w.Advance(&b.h, now)
	for _, m := range b.h.Marks {
		n += m.Count
	}
	return n
}

type settleAs func(b *settleBucket, now quota.Instant, one *request)

func settleRight(b *settleBucket, now quota.Instant, one *request) {
	if b.a.Windowed() {
		b.w.Advance(&b.h, now)
		b.w.Settle(&b.h, one.taken, one.actual)
		return
	}
	b.s, _ = b.p.Settle(b.s, now, one.taken, one.actual)
}

// settleGame plays one game and returns what the bucket holds at the end beyond the exact ledger's,
// as units that are not missing: more than most is wrong.
func settleGame(r *rand.Rand, a quota.Algorithm, settle settleAs) (kept, most int64) {
	b := newSettleBucket(r, a)
	exact := &settleBucket{a: a, p: b.p, w: b.w}
	var all []*request
	now := quota.Instant(quota.Hour)
	for range 60 {
		now += quota.Instant(r.Int64N(int64(3 * quota.Second)))
		for _, one := range all {
			if !one.over && now >= one.end {
				one.over = true
				settle(b, now, one)
			}
		}
		taken, ok := b.take(now, 1+r.Int64N(12))
		if ok {
			lasts := r.Int64N(int64([...]quota.Span{3 * quota.Second, 40 * quota.Second}[r.IntN(2)]))
			all = append(all, &request{taken: taken, actual: r.Int64N(20), end: now + quota.Instant(lasts)})
		}
	}
	now += quota.Instant(r.Int64N(int64(20 * quota.Second)))
	for _, one := range all {
		at, cost := one.taken.From, one.actual
		if !one.over {
			settle(b, max(now, one.end), one)
		}
		exact.charge(at, cost)
		now = max(now, one.end)
	}
	return -b.missing(now), -exact.missing(now)
}
