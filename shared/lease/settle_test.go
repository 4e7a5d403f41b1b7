package lease_test

import (
	"flag"
	"math/rand/v2"
	"strings"
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

// A settlement within the deadline of its own grant gives back all tokens that did not come back by
// themselves, though the tokens count as leased. If the request cost more, the rest is owed, and
// paid before other requests get tokens.
func TestSettleTokensOfALedger(t *testing.T) {
	second := quota.Instant(quota.Second)
	ask := settling(t)
	ask.Waiting, ask.Cost, ask.Deadline, ask.Reserved = 1, 20, lease.Deadline, 1
	l, g := lease.Ledger{}.Grant(second, ask)
	if g.Waiting != 1 || g.Level != 0 {
		t.Fatalf("%+v", g)
	}
	taken := l.Reservation(ask)
	if next, back := l.Settle(second+10, ask, taken, 2); back != 18*quota.Parts {
		t.Errorf("%d parts came back, want 18 tokens", back)
	} else if _, g := next.Look(second+10, ask); g.Level != 18 {
		t.Errorf("%d tokens are left, want 18", g.Level)
	}
	l, back := l.Settle(second, ask, taken, 50)
	if back != -30*quota.Parts {
		t.Fatalf("%d parts came back, want 30 tokens to be taken", back)
	}
	one := ask
	one.Cost = 1
	if _, g := l.Grant(2*second, one); g.Waiting != 0 || g.NotBefore != 30*quota.Second {
		t.Errorf("%+v, want a wait of 30s: 29 of debt beyond the burst and 1 for the request", g)
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
	if _, g := full.Look(second, ask); back != -4*quota.Parts || g.Level != 16 {
		t.Errorf("an absent bucket took %d parts and has %d, want 4 tokens and 16", -back, g.Level)
	}
}

// held is a reservation that is to be settled.
type held struct {
	taken quota.Reservation
	// cost is the request's real cost, actual the cost in its settlement.
	cost, actual int64
}

// settlement is how a game settles.
type settlement func(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger

func settleRight(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger {
	l, _ = l.Settle(now, ask, one.taken, one.actual)
	return l
}

// play makes requests reserve, keeps leases, brings figures of callers in some games, and delivers
// settlements late, out of order or never. It returns whether the bucket then holds more or less
// than a bucket that knew all costs at once. It may hold less only by the tokens that came back by
// themselves while costs were unknown, and if each cost is settled under the figures of its
// reservation.
func play(t testing.TB, r *rand.Rand, settle settlement) (wrong string) {
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
	if r.IntN(2) == 0 {
		pace = int64(20 * quota.Millisecond)
	}
	meanwhile, lent := int64(0), false
	settles := func(one held) {
		l = settle(l, now, ask, one)
		from := one.taken.From
		if one.cost < one.taken.Tokens {
			from = one.taken.At // While its tokens counted as leased none came back by itself.
		}
		most := max(one.taken.Tokens, one.cost) * ask.Params.Den
		meanwhile += min(max(int64(now-from), 0)*ask.Params.Num, most)
	}
	for range 60 {
		now += quota.Instant(r.Int64N(pace))
		if r.IntN(2) == 0 && len(open) > 0 {
			i := r.IntN(len(open))
			settles(open[i])
			open = append(open[:i], open[i+1:]...)
			continue
		}
		a := ask
		a.Params = figures[r.IntN(len(figures))]
		a.Waiting, a.Cost, a.Reserved = 1+r.Int64N(2), 1+r.Int64N(8), r.Uint64()|1
		a.Deadline, a.Keep = lease.Deadline*quota.Span(r.IntN(3)), r.Int64N(2)*r.Int64N(5)
		var g lease.Grant
		l, g = l.Grant(now, a)
		lent = lent || g.Keep > 0
		reserves := a
		a.Params, ask.Params = l.Params, l.Params // Both buckets count by the same figures.
		exact = lease.Charge(exact, now, a, lease.Grant{Keep: g.Keep})
		for range g.Waiting {
			cost := r.Int64N(a.Cost + 3)
			open = append(open, held{taken: l.Reservation(reserves), cost: cost, actual: cost})
			knew := a
			knew.Cost = min(a.Cost, cost)
			exact = lease.Charge(exact, now, knew, lease.Grant{Waiting: 1})
			knew.Cost, knew.Deadline = cost-knew.Cost, 0
			exact = lease.Charge(exact, now, knew, lease.Grant{Waiting: 1})
		}
	}
	all := r.IntN(2) == 0
	for _, one := range open {
		if all || one.cost > one.taken.Tokens || r.IntN(2) == 0 {
			settles(one)
		}
	}
	has, right := l.At(now, ask).Debt, exact.At(now, ask).Debt
	switch {
	case has < right:
		return "more"
	case all && !lent && len(figures) == 1 && has > right+meanwhile:
		return "less"
	}
	return ""
}

// However late and in whatever order settlements come, none mints a token or keeps a token.
func TestSettledTokensNeverMint(t *testing.T) {
	seed := rand.Uint64()
	for game := range *games {
		if wrong := play(t, rand.New(rand.NewPCG(seed, uint64(game))), settleRight); wrong != "" {
			t.Fatalf("seed %d, game %d: the bucket holds %s than a bucket that knew all costs", seed, game, wrong)
		}
	}
}

// The games find wrong settlements.
func TestSettlementGamesFindBugs(t *testing.T) {
	seed := rand.Uint64()
	for name, bug := range map[string]settlement{
		"more: twice": func(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger {
			l = settleRight(l, now, ask, one)
			if one.actual < one.taken.Tokens {
				l = settleRight(l, now, ask, one)
			}
			return l
		},
		"more: tokens that came back": func(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger {
			one.taken.From, one.taken.At = now, now
			return settleRight(l, now, ask, one)
		},
		"more: too little is forgotten": func(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger {
			one.actual = min(one.actual, one.taken.Tokens)
			return settleRight(l, now, ask, one)
		},
		"more: figures are forgotten": func(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger {
			since := l.Since
			l.Since = 0
			l = settleRight(l, now, ask, one)
			l.Since = since
			return l
		},
		"less: a token is kept": func(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger {
			if one.actual < one.taken.Tokens {
				one.actual++
			}
			return settleRight(l, now, ask, one)
		},
		"less: a fraction is dropped": func(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger {
			before := l.At(now, ask)
			l = settleRight(l, now, ask, one)
			if given := before.Debt - l.Debt; given > 0 {
				l.Debt += given % l.Params.Den
			}
			return l
		},
		"more: debt ends at the burst": func(l lease.Ledger, now quota.Instant, ask lease.Ask, one held) lease.Ledger {
			ask.Owing = false
			return settleRight(l, now, ask, one).At(now, ask)
		},
	} {
		found := false
		for game := range 8 * *games {
			wrong := play(t, rand.New(rand.NewPCG(seed, uint64(game))), bug)
			if found = wrong != "" && strings.HasPrefix(name, wrong); found {
				break
			}
		}
		if !found {
			t.Errorf("seed %d: %d games have not found: %s", seed, 8**games, name)
		}
	}
}

// follows plays requests that reserve, and a node that does not learn of settlements. The node must
// know when the bucket is full, except for the time of an answer and the difference of clocks.
// Without settlements that time never steps back.
func follows[L lease.Counted[L]](t *testing.T, r *rand.Rand, ledger L, ask lease.Ask, settled bool) {
	t.Helper()
	var c lease.Credit
	var open []held
	now, before := quota.Instant(quota.Hour), quota.Instant(0)
	for step := range 200 {
		now += quota.Instant(r.Int64N(int64(300 * quota.Millisecond)))
		if settled && len(open) > 0 && r.IntN(3) == 0 {
			one := open[0]
			open = open[1:]
			ledger, _ = ledger.Settle(now, ask, one.taken, r.Int64N(one.taken.Tokens+1))
			continue
		}
		a := ask
		a.Waiting, a.Cost, a.Reserved = 1, 1+r.Int64N(4), 1
		var g lease.Grant
		ledger, g = ledger.Grant(now, a)
		if g.Waiting > 0 {
			open = append(open, held{taken: ledger.Reservation(a)})
		}
		late := quota.Instant(r.Int64N(int64(20 * quota.Millisecond))) // The answer is on its way.
		c = c.Learn(now+late, a, g, 0, 0)
		full := c.FullAt
		if full < before && !settled {
			t.Fatalf("step %d: full at %d, and %d before: it stepped back without a settlement", step, full, before)
		}
		before = full
		right := now + quota.Instant(g.FullAfter)
		if off := full - right; g.NotBefore == 0 && (off < 0 || off > 111*quota.Instant(quota.Millisecond)) {
			t.Fatalf("step %d: full at %d, want %d: it does not follow settlements", step, full, right)
		}
	}
}

// The time at which a bucket is full follows the tokens that settlements give back, and steps back
// only because of them.
func TestResetFollowsSettlements(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ask := settling(t)
	ask.Deadline = lease.Deadline
	for game := range uint64(200) {
		follows(t, rand.New(rand.NewPCG(seed, game)), lease.Ledger{}, ask, game%2 == 0)
		for _, a := range []quota.Algorithm{quota.FixedWindow, quota.SlidingWindow, quota.SlidingLog} {
			counted := ask
			counted.Windows, _ = quota.NewWindows(a, 20, 20*quota.Second, 10)
			follows(t, rand.New(rand.NewPCG(seed, game)), lease.WindowLedger{}, counted, game%2 == 0)
		}
	}
}

// adjusted plays requests that reserve while an operator resets the bucket and gives tokens back,
// and settlements that come late and out of order. It returns the tokens that count in the end, and
// the tokens that count in a bucket that knew each cost at once.
func adjusted(t testing.TB, r *rand.Rand, a quota.Algorithm, settle settlesWindows) (has, right int64) {
	ask := settling(t)
	var err error
	if ask.Windows, err = quota.NewWindows(a, 40, 20*quota.Second, 5); err != nil {
		t.Fatal(err)
	}
	ask.Windows = ask.Windows.At(r.Uint64())
	ask.Deadline = lease.Deadline * quota.Span(r.IntN(2))
	var l, exact WindowLedger
	var open []held
	now := quota.Instant(quota.Minute)
	for range 40 {
		now += quota.Instant(r.Int64N(int64(quota.Second)))
		switch n := r.IntN(10); {
		case n == 0:
			c := lease.Change{Reset: r.IntN(2) == 0, Give: 1 + r.Int64N(30)}
			l, _ = l.Adjust(now, ask, c)
			exact, _ = exact.Adjust(now, ask, c)
		case n < 5 && len(open) > 0:
			i := r.IntN(len(open))
			l = settle(l, now, ask, open[i])
			open = append(open[:i], open[i+1:]...)
		default:
			ask.Waiting, ask.Cost, ask.Reserved = 1, 1+r.Int64N(12), 1
			var g lease.Grant
			if l, g = l.Grant(now, ask); g.Waiting == 0 {
				continue
			}
			cost := r.Int64N(ask.Cost + 1)
			open = append(open, held{taken: l.Reservation(ask), cost: cost, actual: cost})
			knew := ask
			knew.Cost = cost
			if exact = exact.At(now, ask); cost > 0 {
				ask.Windows.Lend(&exact.History, now+quota.Instant(ask.Deadline), cost)
			}
		}
	}
	for _, one := range open {
		l = settle(l, now, ask, one)
	}
	for _, m := range l.At(now, ask).History.Marks {
		has += m.Count
	}
	for _, m := range exact.At(now, ask).History.Marks {
		right += m.Count
	}
	return has, right
}

// WindowLedger is the package's WindowLedger.
type WindowLedger = lease.WindowLedger

// settlesWindows is how a game settles in windows.
type settlesWindows func(WindowLedger, quota.Instant, lease.Ask, held) WindowLedger

// Whatever an operator gives back while requests are under way, a settlement gives no token back
// again. Nor does it keep any, but of a window in which others were given back.
func TestSettlementsAfterAResetNeverMint(t *testing.T) {
	seed, same, all := rand.Uint64(), 0, 0
	right := func(l WindowLedger, now quota.Instant, ask lease.Ask, one held) WindowLedger {
		l, _ = l.Settle(now, ask, one.taken, one.actual)
		return l
	}
	forgets := func(l WindowLedger, now quota.Instant, ask lease.Ask, one held) WindowLedger {
		l.History.Since, l.History.Released = 0, 0
		return right(l, now, ask, one)
	}
	for _, a := range []quota.Algorithm{quota.FixedWindow, quota.SlidingWindow, quota.SlidingLog} {
		found := false
		for game := range *games {
			r := func() *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(game))) }
			has, most := adjusted(t, r(), a, right)
			if has < most {
				t.Fatalf("seed %d, game %d, %v: %d tokens count, and %d were used", seed, game, a, has, most)
			}
			all++
			if has == most {
				same++
			}
			has, most = adjusted(t, r(), a, forgets)
			found = found || has < most
		}
		if !found && a != quota.SlidingLog { // A log has a mark for each microsecond.
			t.Errorf("seed %d, %v: a reset that is forgotten is not found", seed, a)
		}
	}
	t.Logf("%d of %d games end like a bucket that knew all costs", same, all)
	if same < all*9/10 {
		t.Errorf("seed %d: only %d of %d games end like a bucket that knew all costs", seed, same, all)
	}
}
