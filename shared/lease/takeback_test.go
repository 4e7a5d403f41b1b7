package lease_test

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// planted is a fault in how returns are taken.
type planted int

const (
	sound planted = iota
	takenTwice
	takenAfterItsEnd
	stillUsed
	notUsedYet
)

// loan is a number of tokens that a node may use until an instant, its used tokens, and their term.
type loan struct {
	tokens, used int64
	until        quota.Instant
	name         lease.Term
}

// giver is a game of nodes that use their tokens when it hurts most, join terms, and give tokens
// back by messages that are lost and delayed.
type giver[L lease.Counted[L]] struct {
	r       *rand.Rand
	planted planted
	now     quota.Instant
	ledger  L
	ask     lease.Ask
	held    []loan
	// under are the returns on their way; until is when one arrives.
	under []loan
	// count notes a use, and reports whether it is within the limit.
	count func(now quota.Instant, n int64) bool
	// late takes a return of tokens that have ended, as the fault does.
	late func(l L, now quota.Instant, n int64) L

	granted, back, told, over int64
	// tardy means that tokens go back only after their end. returnedLate is the number of these
	// tokens.
	tardy        bool
	returnedLate int64
}

// play plays a game and reports whether all uses were within the limit.
func (g *giver[L]) play(steps int) bool {
	for range steps {
		g.now += quota.Instant(g.pause())
		ask := g.ask
		ask.Waiting, ask.Cost = []int64{0, 0, 1, 3, 200}[g.r.IntN(5)], 1+g.r.Int64N(2)
		ask.Keep, ask.Nodes = g.r.Int64N(200)*g.r.Int64N(2), 1+g.r.Int64N(2)
		if g.r.IntN(2) == 0 {
			ask.Deadline = lease.Soon
		}
		var grant lease.Grant
		g.ledger, grant = g.ledger.Grant(g.now, ask)
		sent := g.now - quota.Instant([]int64{0, 1, 1000, 49_000}[g.r.IntN(4)])
		if grant.Keep > 0 {
			g.granted += grant.Keep
			g.hold(loan{tokens: grant.Keep, until: lease.Expiry(sent, ask.TTL()), name: grant.Term})
		}
		if grant.Waiting > 0 {
			one := loan{tokens: grant.Waiting * ask.Cost, until: lease.Expiry(sent, ask.Deadline), name: grant.Term}
			if grant.Keep > 0 {
				one.name = 0
			}
			g.hold(one)
		}
		g.giveBack()
		g.arrive()
		if !g.use() {
			return false
		}
	}
	return true
}

func (g *giver[L]) pause() int64 {
	ttl := int64(g.ask.TTL())
	if g.tardy {
		window := int64(g.ask.Params.Window())
		return []int64{0, 1, 15_000, 50_000, ttl, ttl + g.r.Int64N(100_000), 2 * window}[g.r.IntN(7)]
	}
	return []int64{0, 0, 0, 1, 15_000, 50_000, ttl / 2, 1 + g.r.Int64N(2*ttl), 1 + g.r.Int64N(10*ttl)}[g.r.IntN(9)]
}

// hold adds tokens, sometimes to other tokens: with the earlier end and the earlier name, as
// lease.Credit does.
func (g *giver[L]) hold(one loan) {
	if len(g.held) > 0 && g.r.IntN(3) == 0 {
		with := &g.held[g.r.IntN(len(g.held))]
		switch {
		case one.name == 0 || with.name == 0:
			with.name = 0
		case int32(one.name-with.name) < 0:
			with.name = one.name
		}
		with.until = min(with.until, one.until)
		with.tokens += one.tokens
		return
	}
	g.held = append(g.held, one)
}

// giveBack sends some of the tokens in hand, and says which have been used.
func (g *giver[L]) giveBack() {
	if len(g.held) == 0 || g.r.IntN(2) == 0 {
		return
	}
	from := &g.held[g.r.IntN(len(g.held))]
	n, used := from.tokens-g.r.Int64N(from.tokens+1), from.used
	if n+used == 0 || from.name == 0 || g.tardy && from.name.End(g.now) > g.now {
		return
	}
	switch {
	case g.planted == notUsedYet:
		n, used = 0, n+used
		from.used = 0
	case g.planted == stillUsed:
		from.used = 0
	default:
		from.tokens, from.used = from.tokens-n, 0
	}
	way := []int64{0, 0, 0, 20_000, int64(g.ask.TTL()), 4 * int64(g.ask.TTL())}[g.r.IntN(6)]
	if g.tardy {
		way = 0
	}
	if g.r.IntN(5) > 0 { // The others are lost.
		g.under = append(g.under, loan{tokens: n, used: used, until: g.now + quota.Instant(way), name: from.name})
	}
}

func (g *giver[L]) arrive() {
	rest := g.under[:0]
	for _, one := range g.under {
		if one.until > g.now {
			rest = append(rest, one)
			continue
		}
		g.take(one)
		if g.planted == takenTwice && g.r.IntN(2) == 0 {
			g.take(one)
		}
	}
	g.under = rest
}

func (g *giver[L]) take(one loan) {
	if one.name.End(g.now) <= g.now {
		g.over++
		if g.planted == takenAfterItsEnd {
			g.ledger = g.late(g.ledger, g.now, one.tokens)
			return
		}
	}
	var done lease.Back
	g.ledger, done = g.ledger.TakeBack(g.now, one.name, lease.Back{Unused: one.tokens, Used: one.used})
	g.back += done.Unused
	if one.name.End(g.now) <= g.now {
		g.returnedLate += done.Unused
	}
	g.told += done.Used
}

// use uses tokens: at times all at once, else these or those.
func (g *giver[L]) use() bool {
	kept, all := g.held[:0], g.r.IntN(5) == 0
	for _, one := range g.held {
		switch {
		case one.until <= g.now-quota.Instant(lease.Late) || one.tokens+one.used == 0:
			continue
		case one.until <= g.now: // It goes back, if it does.
		case all || g.r.IntN(20) == 0:
			if !g.count(g.now, one.tokens) {
				return false
			}
			one.tokens, one.used = 0, one.used+one.tokens
		}
		kept = append(kept, one)
	}
	g.held = kept
	return true
}

// tokenGame is a game with a bucket of tokens. The used tokens are compared with a bucket that
// decides at once.
func tokenGame(t *testing.T, r *rand.Rand, p planted) *giver[lease.Ledger] {
	window := []quota.Span{quota.Second, 10 * quota.Second, quota.Minute, quota.Day}[r.IntN(4)]
	limit := 1 + r.Int64N(200)
	figures := params(t, limit, window, 1+r.Int64N(limit))
	if lease.TTL(figures) == 0 {
		figures = params(t, limit, window, limit)
	}
	var bound quota.State
	return &giver[lease.Ledger]{
		r: r, planted: p, now: 1 << 50,
		ask: lease.Ask{Params: figures, Version: 1, Deadline: lease.Deadline},
		count: func(now quota.Instant, n int64) bool {
			var result quota.Result
			for ; n > 0; n-- {
				if bound, result = figures.Take(bound, now, 1); !result.Allowed {
					return false
				}
			}
			return true
		},
		late: func(l lease.Ledger, now quota.Instant, n int64) lease.Ledger {
			l = l.At(now, lease.Ask{Params: l.Params, Version: l.Version})
			l.Debt = max(l.Debt-n*l.Params.Den, 0)
			return l
		},
	}
}

// windowGame is a game with a bucket of windows. The used tokens are compared with a log of all
// uses.
func windowGame(t *testing.T, r *rand.Rand, fault planted) *giver[lease.WindowLedger] {
	a := []quota.Algorithm{quota.FixedWindow, quota.SlidingWindow, quota.SlidingLog}[r.IntN(3)]
	length := []quota.Span{quota.Second, 10 * quota.Second, quota.Minute}[r.IntN(3)]
	w, p := windows(t, a, 1+r.Int64N(200), length, 1+r.IntN(60))
	if a == quota.FixedWindow {
		w = w.At(r.Uint64())
	}
	var log []lent
	return &giver[lease.WindowLedger]{
		r: r, planted: fault, now: 1 << 50,
		ask: lease.Ask{Params: p, Windows: w, Version: 1, Deadline: lease.Deadline},
		count: func(now quota.Instant, n int64) bool {
			begin := now - quota.Instant(length)
			if a == quota.FixedWindow {
				begin = now - (now-quota.Instant(w.Offset))%quota.Instant(length) - 1
			}
			for len(log) > 0 && log[0].granted <= begin {
				log = log[1:]
			}
			log = append(log, lent{tokens: n, granted: now})
			for _, one := range log[:len(log)-1] {
				n += one.tokens
			}
			return n <= w.Quota
		},
		late: func(l lease.WindowLedger, now quota.Instant, n int64) lease.WindowLedger {
			l = l.At(now, lease.Ask{Windows: l.Windows, Version: l.Version})
			for i := range l.History.Marks {
				m := &l.History.Marks[i]
				part := min(m.Count, n)
				m.Count, n = m.Count-part, n-part
			}
			return l
		},
	}
}

// However nodes hoard, join, return and lose tokens, all of them together use no more than the
// limit, in any interval; and each fault in how returns are taken is found.
func TestReturnsHoldTheBound(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for fault, name := range []string{"sound", "taken twice", "taken after its end", "still used", "not used yet"} {
		var broken, granted, back, told, over, late int64
		const games = 3000
		for game := range uint64(games) {
			r := rand.New(rand.NewPCG(seed, game))
			tokens := tokenGame(t, r, planted(fault))
			windows := windowGame(t, r, planted(fault))
			tokens.tardy = game%3 == 0
			windows.tardy = tokens.tardy
			fine := tokens.play(120)
			if !fine {
				broken++
			}
			if finest := windows.play(120); !finest {
				broken++
				fine = false
			}
			if !fine && planted(fault) == sound {
				t.Fatalf("game %d (seed %d): %+v or %+v passed its limit", game, seed, tokens.ask, windows.ask)
			}
			granted += tokens.granted + windows.granted
			back += tokens.back + windows.back
			told += tokens.told + windows.told
			over += tokens.over + windows.over
			late += tokens.returnedLate + windows.returnedLate
		}
		t.Logf("%s: %d of %d games passed the limit; %d tokens kept, %d taken back, %d known as used, "+
			"%d returns late, of %d tokens", name, broken, 2*games, granted, back, told, over, late)
		if planted(fault) != sound && broken < games/500 {
			t.Errorf("%s: found in %d games only", name, broken)
		}
		if back < granted/20 && planted(fault) != notUsedYet || told < granted/40 || over == 0 ||
			planted(fault) == sound && late < back/50 {
			t.Errorf("%s: the games are too tame", name)
		}
	}
}

// A return leaves the ledger as if the tokens had not been granted, whatever happened meanwhile.
func TestTakenBackIsNeverGranted(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for game := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, game))
		tokens, windows := tokenGame(t, r, sound), windowGame(t, r, sound)
		if got, want := lendAndTakeBack(r, lease.Ledger{}, tokens.ask); got.Debt != want.Debt {
			t.Fatalf("game %d (seed %d): %+v owes %d, %d if nothing had been lent", game, seed, tokens.ask, got.Debt,
				want.Debt)
		}
		got, want := lendAndTakeBack(r, lease.WindowLedger{}, windows.ask)
		if _, g := got.Grant(got.History.Last, windows.ask); g != looked(want, windows.ask) {
			t.Fatalf("game %d (seed %d): %+v has %+v, %+v if nothing had been lent", game, seed, windows.ask, g,
				looked(want, windows.ask))
		}
	}
}

func looked(l lease.WindowLedger, ask lease.Ask) lease.Grant {
	_, g := l.Grant(l.History.Last, ask)
	return g
}

// lendAndTakeBack has two ledgers serve the same requests. One lends tokens as well and takes them
// back before they end.
func lendAndTakeBack[L lease.Counted[L]](r *rand.Rand, l L, ask lease.Ask) (lent, plain L) {
	now := quota.Instant(1 << 50)
	serve := func() {
		now += quota.Instant(r.Int64N(int64(ask.TTL())))
		one := ask
		one.Waiting, one.Cost, one.Nodes = r.Int64N(3), 1, 1
		l, _ = l.Grant(now, one)
	}
	for range r.IntN(30) {
		serve()
	}
	keeps := ask
	keeps.Keep, keeps.Nodes = 1+r.Int64N(50), 1+r.Int64N(3)
	lent, g := l.Grant(now, keeps)
	plain, _ = l.Grant(now, ask)
	now += quota.Instant(r.Int64N(int64(ask.TTL())))
	lent, _ = lent.TakeBack(now, g.Term, lease.Back{Unused: g.Keep})
	lent, _ = lent.Grant(now, ask)
	plain, _ = plain.Grant(now, ask)
	return lent, plain
}

// Tokens that go back after their end leave a bucket no fuller than if they had not been granted,
// whatever was granted meanwhile. They lack at most the tokens that the bucket has earned since.
// Windows lack nothing. A bucket that took all of them back would sometimes hold too much.
func TestTakenBackLateIsNoMoreThanNeverGranted(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	tooMuch, back := 0, 0
	const games = 4000
	for game := range uint64(games) {
		r := rand.New(rand.NewPCG(seed, game))
		ask := tokenGame(t, r, sound).ask
		now := quota.Instant(1 << 50)
		l := serveSome(r, lease.Ledger{}, ask, &now)
		lent, plain, term, n := lendAlone(r, l, ask, &now)
		whole := max(lent.Debt-n*lent.Params.Den, 0)
		got, done := lent.TakeBack(now, term, lease.Back{Unused: n})
		slack := int64(now-term.End(now)) * lent.Params.Num
		if got.Debt < plain.Debt || got.Debt > max(plain.Debt+slack, units(got)) {
			t.Fatalf("game %d (seed %d): %+v owes %d, %d if nothing had been lent, %+v of %d taken", game, seed, ask,
				got.Debt, plain.Debt, done, n)
		}
		if whole < plain.Debt {
			tooMuch++
		}
		back += int(done.Unused)

		ask = windowGame(t, r, sound).ask
		now = 1 << 50
		w := serveSome(r, lease.WindowLedger{}, ask, &now)
		wLent, wPlain, term, n := lendAlone(r, w, ask, &now)
		wGot, _ := wLent.TakeBack(now, term, lease.Back{Unused: n})
		if looked(wGot, ask) != looked(wPlain, ask) {
			t.Fatalf("game %d (seed %d): %+v has %+v, %+v if nothing had been lent", game, seed, ask,
				looked(wGot, ask), looked(wPlain, ask))
		}
	}
	if t.Logf("%d tokens back, too many in %d games if whole", back, tooMuch); tooMuch < games/50 || back < games/2 {
		t.Error("the games are too tame")
	}
}

// units returns the least debt of a ledger: the tokens that count as leased.
func units(l lease.Ledger) (n int64) {
	for _, pair := range l.Pairs {
		n += pair.Tokens
	}
	return n * l.Params.Den
}

func serveSome[L lease.Counted[L]](r *rand.Rand, l L, ask lease.Ask, now *quota.Instant) L {
	for range r.IntN(20) {
		*now += quota.Instant(r.Int64N(int64(ask.TTL())))
		one := ask
		one.Waiting, one.Cost, one.Nodes = r.Int64N(3), 1, 1
		l, _ = l.Grant(*now, one)
	}
	return l
}

// lendAlone makes one of two equal ledgers lend tokens. Both serve the same requests until after
// their end, while the first ledger has tokens for them. Then now is within Late of it.
func lendAlone[L lease.Counted[L]](
	r *rand.Rand, l L, ask lease.Ask, now *quota.Instant,
) (lent, plain L, term lease.Term, n int64) {
	lends := ask
	if lends.Nodes = 1; r.IntN(2) == 0 {
		lends.Keep = 1 + r.Int64N(50)
	} else {
		lends.Waiting, lends.Cost, lends.Deadline = 1+r.Int64N(5), 1, lease.Soon
	}
	lent, g := l.Grant(*now, lends)
	plain, _ = l.Grant(*now, ask)
	end := g.Term.End(*now)
	if g.Term == 0 { // It had none.
		end = *now
	}
	for range r.IntN(4) {
		*now += quota.Instant(r.Int64N(int64(end-*now) + int64(lease.Late)/4))
		one := ask
		_, left := lent.Grant(*now, ask)
		one.Waiting, one.Cost, one.Nodes = r.Int64N(left.Level+1), 1, 1
		lent, _ = lent.Grant(*now, one)
		plain, _ = plain.Grant(*now, one)
	}
	*now = max(*now, end) + quota.Instant(r.Int64N(int64(end+quota.Instant(lease.Late)-max(*now, end))))
	lent, _ = lent.Grant(*now, ask)
	plain, _ = plain.Grant(*now, ask)
	return lent, plain, g.Term, g.Keep + g.Waiting
}

// Tokens come back after their end only if the figures of the bucket are the same, since a change
// may have rounded the rest of them away, and not long after it.
func TestTakenBackTooLate(t *testing.T) {
	p := params(t, 100, quota.Second, 100)
	ask := lease.Ask{Params: p, Version: 1, Waiting: 50, Cost: 1, Deadline: lease.Soon}
	l, g := lease.Ledger{}.Grant(1<<50, ask)
	end, late := g.Term.End(1<<50), quota.Instant(lease.Late)
	other := lease.Ask{Params: params(t, 90, quota.Second, 90), Version: 2}
	changed, _ := l.Grant(end, other)
	for name, c := range map[string]struct {
		ledger lease.Ledger
		at     quota.Instant
		want   int64
	}{
		"at its end":                {l, end, 50},
		"after a while":             {l, end + late - 1, 50},
		"too late":                  {l, end + late, 0},
		"after a change of figures": {changed, end + 1, 0},
	} {
		if _, done := c.ledger.TakeBack(c.at, g.Term, lease.Back{Unused: 50}); done.Unused != c.want {
			t.Errorf("%s %d go back, want %d", name, done.Unused, c.want)
		}
	}
}

// A node never gets back more than is leased, and a term of an unknown bucket is ignored.
func TestTakeBackTimeline(t *testing.T) {
	p := params(t, 100, quota.Minute, 100) // TTL 3 s: kept tokens end up to 4.5 s later
	ask := lease.Ask{Params: p, Version: 1, Keep: 10, Nodes: 1, Cost: 1, Deadline: lease.Deadline}
	l, first := lease.Ledger{}.Grant(0, ask)
	l, second := l.Grant(2*sec, ask)
	if first.Keep != 10 || second.Keep != 10 || first.Term == second.Term || first.Term == 0 {
		t.Fatalf("%+v and %+v", first, second)
	}
	if _, taken := (lease.Ledger{}).TakeBack(0, first.Term, lease.Back{Unused: 3}); taken.Unused != 0 {
		t.Errorf("%+v of an unknown bucket", taken)
	}
	for _, c := range []struct {
		at   quota.Instant
		term lease.Term
		n    int64
		want int64
	}{
		{2 * sec, 0, 5, 0},
		{2 * sec, first.Term, 0, 0},
		{2 * sec, first.Term, -1, 0},
		{2 * sec, first.Term, 4, 4},
		{first.Term.End(0) - 1, first.Term, 6, 6},
		{first.Term.End(0), first.Term, 1, 0},
		{second.Term.End(0) - 1, second.Term, 100, 10},
		{second.Term.End(0) - 1, second.Term, 1, 0},
	} {
		var done lease.Back
		if l, done = l.TakeBack(c.at, c.term, lease.Back{Unused: c.n}); done.Unused != c.want {
			t.Errorf("%d at %d: %+v taken, want %d", c.n, c.at, done, c.want)
		}
	}
	if _, g := l.Grant(second.Term.End(0), ask); g.Level+g.Keep != 100 {
		t.Errorf("%+v is left of a bucket that got everything back", g)
	}
}

// Tokens that are known to be used hold up no refill, and count in a window from when that is
// known.
func TestUsedTokensAreLeasedNoMore(t *testing.T) {
	p := params(t, 100, quota.Minute, 100)
	ask := lease.Ask{Params: p, Version: 1, Keep: 20, Nodes: 1, Cost: 1}
	l, g := lease.Ledger{}.Grant(0, ask)
	told, done := l.TakeBack(sec, g.Term, lease.Back{Used: 20})
	if again, _ := told.TakeBack(sec, g.Term, lease.Back{Used: 20}); done.Used != 20 || len(again.Pairs) > 0 {
		t.Errorf("%+v of 20 are used, and %+v is leased", done, again.Pairs)
	}
	for at, want := range map[quota.Instant][2]int64{sec: {80, 80}, 3 * sec: {80, 83}, 12 * sec: {92, 98}} {
		_, before := l.Look(at, ask)
		_, after := told.Look(at, ask)
		if [2]int64{before.Level, after.Level} != want {
			t.Errorf("after %d s %d are left, %d where it is known, want %d", at/sec, before.Level, after.Level, want)
		}
	}
	for _, a := range []quota.Algorithm{quota.FixedWindow, quota.SlidingWindow, quota.SlidingLog} {
		w, p := windows(t, a, 100, quota.Minute, 60)
		ask := lease.Ask{Params: p, Windows: w, Version: 1, Keep: 20, Nodes: 1, Cost: 1}
		at := 10*60*sec - sec // A second before a window ends.
		l, g := lease.WindowLedger{}.Grant(at, ask)
		told, done := l.TakeBack(at+1000, g.Term, lease.Back{Used: 20})
		later := at + 2*sec
		if a != quota.FixedWindow {
			later = at + 61*sec
		}
		_, before := l.Look(later, ask)
		_, after := told.Look(later, ask)
		if done.Used != 20 || before.Level != 80 || after.Level != 100 {
			t.Errorf("%v: %+v, then %d are left, and %d where it is known", a, done, before.Level, after.Level)
		}
	}
}
