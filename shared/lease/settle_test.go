package lease_test

import (
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

var games = flag.Int("games", 5000, "random games of settlements of tokens against an exact ledger")

// settling is a bucket of 20 tokens that earns one a second.
func settling(t testing.TB) lease.Ask {
	t.Helper()
	p, err := quota.NewParams(20, 20*quota.Second, 20)
	if err != nil {
		t.Fatal(err)
	}
	return lease.Ask{Params: p, Version: 1, Nodes: 1, Owing: true}
}

// A settlement within the deadline of its own grant gives all back that did not come back by
// itself, though the tokens count as leased; one that cost more is owed, and paid before others
// get any.
func TestSettleTokensOfALedger(t *testing.T) {
	second := quota.Instant(quota.Second)
	ask := settling(t)
	ask.Waiting, ask.Cost, ask.Deadline, ask.Reserved = 1, 20, lease.Deadline, 1
	l, g := lease.Ledger{}.Grant(second, ask)
	if g.Waiting != 1 || g.Level != 0 {
		t.Fatalf("%+v", g)
	}
	taken := l.Reservation(ask)
	if next, back := l.Settle(second+10, ask, taken, 2); back != 18 {
		t.Errorf("%d came back, want 18", back)
	} else if _, g := next.Look(second+10, ask); g.Level != 18 {
		t.Errorf("%d tokens are left, want 18", g.Level)
	}
	l, back := l.Settle(second, ask, taken, 50)
	if back != -30 {
		t.Fatalf("%d came back, want 30 to be taken", back)
	}
	one := ask
	one.Cost = 1
	if _, g := l.Grant(2*second, one); g.Waiting != 0 || g.NotBefore != 30*quota.Second {
		t.Errorf("%+v, want a wait of 30s: 29 of debt beyond the burst and one for the request", g)
	}
	if _, g := l.Grant(32*second, one); g.Waiting != 1 {
		t.Errorf("%+v after the wait", g)
	}
	_, held := l.Adjust(2*second, one, lease.Change{})
	if held.Level != 0 || held.Used != 49 || held.Owed != 29 || held.AdmitsAfter != 30*quota.Second {
		t.Errorf("an operator sees %+v, want 29 owed and 30s to wait", held)
	}
	one.Cost = 50 // It counts as the burst.
	if _, held := l.Adjust(2*second, one, lease.Change{}); held.AdmitsAfter != 49*quota.Second {
		t.Errorf("a full bucket after %+v, want 49s", held)
	}
	full, back := lease.Ledger{}.Settle(second, ask, quota.Reservation{Tokens: 5}, 9)
	if _, g := full.Look(second, ask); back != -4 || g.Level != 16 {
		t.Errorf("an absent bucket took %d and has %d, want 4 and 16", -back, g.Level)
	}
}

// held is a reservation that is to be settled.
type held struct {
	taken  quota.Reservation
	actual int64
}

// settlement is how a game settles.
type settlement func(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger

func settleRight(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger {
	l, _ = l.Settle(now, ask, one.taken, one.actual)
	return l
}

// play has requests reserve, leases be kept, callers bring figures of their own in some games, and
// settlements arrive late, out of order or never, and reports whether the bucket lacks less in the
// end than one that knew all costs at once.
func play(t testing.TB, r *rand.Rand, settle settlement) (minted bool) {
	ask := settling(t)
	figures := []quota.Params{ask.Params}
	if r.IntN(2) == 0 {
		ask.Most = ask.Params
		slow, err := quota.NewParams(10, 50*quota.Second, 18)
		if err != nil {
			t.Fatal(err)
		}
		figures = append(figures, slow)
	}
	var l, exact lease.Ledger
	var open []held
	now, pace := quota.Instant(quota.Minute), int64(600*quota.Millisecond)<<(2*r.IntN(3))
	for range 60 {
		now += quota.Instant(r.Int64N(pace))
		if r.IntN(2) == 0 && len(open) > 0 {
			i := r.IntN(len(open))
			l = settle(l, now, ask, open[i])
			open = append(open[:i], open[i+1:]...)
			continue
		}
		a := ask
		a.Params = figures[r.IntN(len(figures))]
		a.Waiting, a.Cost, a.Reserved = 1+r.Int64N(2), 1+r.Int64N(8), r.Uint64()|1
		a.Deadline, a.Keep = lease.Deadline*quota.Span(r.IntN(3)), r.Int64N(2)*r.Int64N(5)
		var g lease.Grant
		l, g = l.Grant(now, a)
		reserves := a
		a.Params, ask.Params = l.Params, l.Params // Both buckets count by the same figures.
		exact = lease.Charge(exact, now, a, lease.Grant{Keep: g.Keep})
		for range g.Waiting {
			one := held{taken: l.Reservation(reserves), actual: r.Int64N(a.Cost + 3)}
			open = append(open, one)
			knew := a
			knew.Cost = min(a.Cost, one.actual)
			exact = lease.Charge(exact, now, knew, lease.Grant{Waiting: 1})
			knew.Cost, knew.Deadline = one.actual-knew.Cost, 0
			exact = lease.Charge(exact, now, knew, lease.Grant{Waiting: 1})
		}
	}
	all := r.IntN(2) == 0
	for _, one := range open {
		if all || one.actual > one.taken.Tokens || r.IntN(2) == 0 {
			l = settle(l, now, ask, one)
		}
	}
	return l.At(now, ask).Debt < exact.At(now, ask).Debt
}

// However late and in whatever order, no settlement mints a token.
func TestSettledTokensNeverMint(t *testing.T) {
	seed := rand.Uint64()
	for game := range *games {
		if play(t, rand.New(rand.NewPCG(seed, uint64(game))), settleRight) {
			t.Fatalf("seed %d, game %d: the bucket holds more than one that knew all costs", seed, game)
		}
	}
}

// The games find what settles wrongly.
func TestSettlementGamesFindBugs(t *testing.T) {
	seed := rand.Uint64()
	for name, bug := range map[string]settlement{
		"twice": func(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger {
			l = settleRight(l, now, ask, one)
			if one.actual < one.taken.Tokens {
				l = settleRight(l, now, ask, one)
			}
			return l
		},
		"what has come back by itself": func(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger {
			one.taken.From = now
			return settleRight(l, now, ask, one)
		},
		"too little is forgotten": func(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger {
			one.actual = min(one.actual, one.taken.Tokens)
			return settleRight(l, now, ask, one)
		},
		"other figures are forgotten": func(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger {
			since := l.Since
			l.Since = 0
			l = settleRight(l, now, ask, one)
			l.Since = since
			return l
		},
		"debt ends at the burst": func(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger {
			ask.Owing = false
			return settleRight(l, now, ask, one).At(now, ask)
		},
	} {
		found := false
		for game := range *games {
			if found = play(t, rand.New(rand.NewPCG(seed, uint64(game))), bug); found {
				break
			}
		}
		if !found {
			t.Errorf("seed %d: %d games have not found: %s", seed, *games, name)
		}
	}
}
