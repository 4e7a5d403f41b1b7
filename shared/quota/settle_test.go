package quota_test

import (
	"flag"
	"math/rand/v2"
	"slices"
	"strings"
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

// A timeline of a bucket of 10 that earns one a second: a cost beyond the reservation becomes debt,
// which the wait includes, and a reservation that has come back by itself is not given back.
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
	if back != -21*p.Den {
		t.Fatalf("gave back %d units, want to take 21 tokens", back)
	}
	if s, r = p.TakeOwing(s, second, 1); r.Allowed || r.RetryAfter != 15*quota.Second {
		t.Errorf("allowed %v after %d, want 15s: 14 of debt and 1 for the request", r.Allowed, r.RetryAfter)
	}
	if _, r = p.TakeOwing(s, 16*second, 1); !r.Allowed {
		t.Error("refused after the wait")
	}
	s = p.Empty(100 * second)
	if s, back = p.Settle(s, 103*second, quota.Reservation{From: 100 * second, Tokens: 5}, 0); back != 2*p.Den {
		t.Errorf("%d units came back, want 2 tokens: three of five had come back by themselves", back)
	}
	if _, back = p.Settle(s, 120*second, quota.Reservation{From: 100 * second, Tokens: 5}, 0); back != 0 {
		t.Errorf("%d came back of tokens that had come back", back)
	}
}

// request is one of a random game.
type request struct {
	taken quota.Reservation
	// cost is the real cost, actual the cost in the settlement.
	cost, actual int64
	end          quota.Instant
}

// Random requests reserve and have another cost. A bucket never holds more than a bucket that knew
// all costs at once, in whatever order the costs become known. It never holds less, except for the
// tokens that came back by themselves while requests were under way. Windows hold exactly the same
// once all costs are known.
func TestSettledBucketsHoldWhatIsRight(t *testing.T) {
	seed := rand.Uint64()
	for game := range *settleGames {
		r := rand.New(rand.NewPCG(seed, uint64(game)))
		a := []quota.Algorithm{quota.TokenBucket, quota.FixedWindow, quota.SlidingWindow, quota.SlidingLog}[r.IntN(4)]
		if g := settleGame(r, a, settleRight); g.wrong() != "" {
			t.Fatalf("seed %d, game %d, %v: %s: %+v", seed, game, a, g.wrong(), g)
		}
	}
}

// The games find wrong settlements: settlements that come twice, that give back tokens which have
// come back by themselves or count no more, or that give back too little.
func TestSettleGamesFindBugs(t *testing.T) {
	seed := rand.Uint64()
	whole := func(b *settleBucket, now quota.Instant, one *request) {
		before := *b
		settleRight(b, now, one)
		if given := before.p.Drain(before.s, now).Debt - b.s.Debt; given > 0 && !b.a.Windowed() {
			b.s.Debt += given % b.p.Den // A fraction of a token is dropped.
		}
	}
	for name, bug := range map[string]settleAs{
		"holds more: twice": func(b *settleBucket, now quota.Instant, one *request) {
			settleRight(b, now, one)
			if one.actual < one.taken.Tokens {
				settleRight(b, now, one)
			}
		},
		"holds more: all of it, at any time": func(b *settleBucket, now quota.Instant, one *request) {
			one.taken.From, one.taken.At = now, now
			settleRight(b, now, one)
		},
		"holds more: a missing part is forgotten": func(b *settleBucket, now quota.Instant, one *request) {
			one.actual = min(one.actual, one.taken.Tokens)
			settleRight(b, now, one)
		},
		"holds less: nothing comes back": func(b *settleBucket, now quota.Instant, one *request) {
			one.actual = max(one.actual, one.taken.Tokens)
			settleRight(b, now, one)
		},
		"holds less: a token is kept": func(b *settleBucket, now quota.Instant, one *request) {
			if one.actual < one.taken.Tokens {
				one.actual++
			}
			settleRight(b, now, one)
		},
		"holds less: a fraction is dropped": whole,
	} {
		for _, a := range []quota.Algorithm{quota.TokenBucket, quota.SlidingLog} {
			found := name == "holds less: a fraction is dropped" && a.Windowed()
			for game := 0; game < *settleGames && !found; game++ {
				g := settleGame(rand.New(rand.NewPCG(seed, uint64(game))), a, bug)
				found = g.wrong() != "" && strings.HasPrefix(name, g.wrong())
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

// charge counts the cost of a request, allowed or not.
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

// missing returns the units that the bucket lacks.
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

// settled is the end of a game, in units of the bucket, or in tokens of a window.
type settled struct {
	// missing is the number of units that the bucket lacks, exact the number that a bucket lacks
	// that knew all costs at once.
	missing, exact int64
	// back is the number of units that came back by themselves while costs were unknown.
	back int64
}

func (g settled) wrong() string {
	switch {
	case g.missing < g.exact:
		return "holds more"
	case g.missing > g.exact+g.back:
		return "holds less"
	}
	return ""
}

// settleGame plays one game. All requests are settled at its end.
func settleGame(r *rand.Rand, a quota.Algorithm, settle settleAs) (g settled) {
	b := newSettleBucket(r, a)
	var all, exact []*request
	now := quota.Instant(quota.Hour)
	lasts := []quota.Span{10 * quota.Millisecond, 3 * quota.Second, 40 * quota.Second}[r.IntN(3)]
	endUntil := func(until quota.Instant) {
		slices.SortFunc(all, func(a, b *request) int { return int(a.end - b.end) })
		for len(all) > 0 && all[0].end <= until {
			one := all[0]
			all = all[1:]
			settle(b, one.end, one)
			if !a.Windowed() {
				g.back += min(int64(one.end-one.taken.From)*b.p.Num, max(one.taken.Tokens, one.cost)*b.p.Den)
			}
			exact = append(exact, one)
		}
	}
	for range 60 {
		now += quota.Instant(r.Int64N(int64(3 * quota.Second)))
		endUntil(now)
		if taken, ok := b.take(now, 1+r.Int64N(12)); ok {
			cost := r.Int64N(20)
			until := now + quota.Instant(r.Int64N(int64(lasts)))
			all = append(all, &request{taken: taken, cost: cost, actual: cost, end: until})
		}
	}
	endUntil(now + quota.Instant(lasts))
	now += quota.Instant(lasts)
	now += quota.Instant(r.Int64N(int64(3 * quota.Second)))
	slices.SortFunc(exact, func(a, b *request) int { return int(a.taken.From - b.taken.From) })
	knew := &settleBucket{a: a, p: b.p, w: b.w}
	for _, one := range exact {
		knew.charge(one.taken.From, one.cost)
	}
	g.missing, g.exact = b.missing(now), knew.missing(now)
	return g
}
