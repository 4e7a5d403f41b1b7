package storetest

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// leasedItem returns an item of a bucket whose tokens two nodes lease.
func leasedItem(t *testing.T, a quota.Algorithm, units int64, length quota.Span) leases.Item {
	it := reservingItem(t, a, units, 0, 1, 0)
	it.Bucket = keyhash.Key{9, byte(a)}
	it.Ask.Owing, it.Ask.Nodes = false, 2
	it.Ask.Params = params(t, units, length, units)
	if a.Windowed() {
		it.Ask.Windows = must[quota.Windows](t)(quota.NewWindows(a, units, length, 10))
	}
	return it
}

// takeBack takes tokens back, and returns how many the store took back.
func (s *Instance) takeBack(t *testing.T, it leases.Item, one leases.Return) int64 {
	t.Helper()
	it.Ask.Waiting, it.Ask.Keep, it.Twin, it.Draft = 0, 0, nil, false
	it.Kind, it.Returns = wire.KindReturn, one
	return s.one(t, it).Keep
}

// testReturns plays returns of each algorithm, with and without a rollout, and many at once.
func testReturns(t *testing.T, s *Instance) {
	testReturnedOnce(t, s)
	var back, late int64
	count := func(n [2]int64) { back, late = back+n[0], late+n[1] }
	for i, twin := range []bool{false, true} {
		count(playReturns(t, s, quota.TokenBucket, twin, i, lease.Twins[lease.Ledger]{}))
		for _, a := range []quota.Algorithm{quota.FixedWindow, quota.SlidingWindow, quota.SlidingLog} {
			count(playReturns(t, s, a, twin, i, lease.Twins[lease.WindowLedger]{}))
		}
	}
	t.Logf("%d tokens taken back, %d after their end", back, late)
	if back < int64(s.some(200)) || late < int64(s.some(20)) {
		t.Error("the games are too tame")
	}
}

// returning is a game of grants and returns of one bucket, in a store and in ledgers in Go.
type returning[L lease.Counted[L]] struct {
	*testing.T
	store *Instance
	seed  uint64
	r     *rand.Rand
	now   quota.Instant
	main  leases.Item
	draft lease.Ask
	twin  bool

	ledgers lease.Twins[L]
	held    []leases.Return
	gone    []leases.Return
	// back are the tokens that went back; late are the tokens among them whose lease had ended.
	back, late int64
}

// playReturns plays random grants and returns, some of them doubled, too large or late, and
// compares each answer with the ledgers. It returns how many tokens were taken back, and how many
// of these after their end.
func playReturns[L lease.Counted[L]](
	t *testing.T, s *Instance, a quota.Algorithm, twin bool, salt int, ledgers lease.Twins[L],
) (back [2]int64) {
	g := &returning[L]{T: t, store: s, seed: rand.Uint64(), twin: twin, ledgers: ledgers}
	g.r = rand.New(rand.NewPCG(g.seed, 1))
	length := []quota.Span{quota.Minute, quota.Hour}[g.r.IntN(2)]
	g.main = leasedItem(t, a, 20+g.r.Int64N(200), length)
	g.draft = leasedItem(t, a, 20+g.r.Int64N(200), length).Ask
	g.main.Bucket[2] = byte(salt + 1)
	g.main.Ask.Version, g.draft.Version = 1<<lease.EpochBits, 2<<lease.EpochBits
	g.now = Base + quota.Instant(8*salt+int(a))*quota.Instant(quota.Day)
	ttl := int64(g.main.Ask.TTL())
	for range s.some(1000) {
		g.now += quota.Instant([]int64{0, 0, 1, 50_000, ttl / 8, ttl / 4, g.r.Int64N(2 * ttl)}[g.r.IntN(7)])
		if len(g.held) > 0 && g.r.IntN(4) == 0 { // About when tokens end.
			end := g.held[len(g.held)-1].Term.End(g.now)
			g.now = max(g.now, end+quota.Instant(g.r.Int64N(int64(lease.Late)+10_000)))
		}
		s.SetClock(g.now)
		switch n := g.r.IntN(10); {
		case n < 5:
			g.grant()
		case n < 9 && len(g.held) > 0:
			g.giveBack()
		case len(g.gone) > 0:
			again := g.gone[len(g.gone)-1-g.r.IntN(min(len(g.gone), 3))]
			if got := s.takeBack(t, g.main, again); got != 0 {
				t.Fatalf("seed %d, %v: %d taken twice", g.seed, a, got)
			}
		}
	}
	return [2]int64{g.back, g.late}
}

func (g *returning[L]) grant() {
	it := g.main
	if g.twin {
		it.Twin = &g.draft
		if it.Draft = g.r.IntN(2) == 0; it.Draft {
			it.Ask, it.Twin = g.draft, &g.main.Ask
		}
	}
	it.Ask.Waiting, it.Ask.Cost, it.Ask.Keep = g.r.Int64N(3), 1+g.r.Int64N(3), g.r.Int64N(60)
	it.Ask.Nodes = 1 + g.r.Int64N(3)
	got := g.store.one(g.T, it)
	var want lease.Grant
	if g.twin {
		var next lease.Twins[L]
		var booked bool
		next, want, booked = g.ledgers.Grant(g.now, it.Draft, it.Ask, *it.Twin)
		if want.Changed && !it.Draft || booked && it.Draft {
			g.ledgers.Main = next.Main
		}
		if want.Changed && it.Draft || booked && !it.Draft {
			g.ledgers.Draft = next.Draft
		}
	} else {
		g.ledgers.Main, want = g.ledgers.Main.Grant(g.now, it.Ask)
	}
	got.Changed, want.Changed = false, false
	if got != want {
		g.Fatalf("seed %d, %v: %+v, want %+v", g.seed, it.Ask.Windows.Algorithm, got, want)
	}
	if got.Term != 0 {
		n := got.Keep
		if n == 0 {
			n = got.Waiting * it.Ask.Cost
		}
		back := lease.Back{Unused: g.r.Int64N(n + 2), Used: g.r.Int64N(n + 1)}
		g.held = append(g.held, leases.Return{Name: g.r.Uint64() | 1, Term: got.Term, Back: back})
	}
}

func (g *returning[L]) giveBack() {
	i := len(g.held) - 1 - g.r.IntN(min(len(g.held), 3))
	one := g.held[i]
	g.held = append(g.held[:i], g.held[i+1:]...)
	g.gone = append(g.gone, one)
	var of [2]lease.Back
	g.ledgers.Main, of[0] = g.ledgers.Main.TakeBack(g.now, one.Term, one.Back)
	g.ledgers.Draft, of[1] = g.ledgers.Draft.TakeBack(g.now, one.Term, one.Back)
	want := max(of[0].Unused, of[1].Unused)
	if g.back += want; one.Term.End(g.now) <= g.now {
		g.late += want
	}
	if got := g.store.takeBack(g.T, g.main, one); got != want {
		a := g.main.Ask.Windows.Algorithm
		g.Fatalf("seed %d, %v: %d tokens taken back, want the larger of %+v", g.seed, a, got, of)
	}
}

// testReturnedOnce gives the same tokens back from many goroutines at once.
func testReturnedOnce(t *testing.T, s *Instance) {
	for _, a := range []quota.Algorithm{quota.TokenBucket, quota.SlidingWindow} {
		it := leasedItem(t, a, 100, quota.Hour)
		it.Ask.Keep, it.Ask.Nodes = 20, 1
		g := s.one(t, it)
		if g.Keep != 20 || g.Term == 0 {
			t.Fatalf("%v: %+v", a, g)
		}
		var wait sync.WaitGroup
		var mu sync.Mutex
		back := int64(0)
		for range 8 {
			wait.Go(func() {
				for name := range uint64(4) {
					one := it
					one.Ask.Keep, one.Kind = 0, wire.KindReturn
					one.Returns = leases.Return{Name: 7 + name, Term: g.Term, Back: lease.Back{Unused: 3, Used: 1}}
					g, err := s.Grant(testContext(t), []leases.Item{one})
					if err != nil {
						t.Error(err)
						continue
					}
					mu.Lock()
					back += g[0].Keep
					mu.Unlock()
				}
			})
		}
		wait.Wait()
		it.Ask.Keep = 0
		if g := s.one(t, it); back != 12 || g.Level != 92 {
			t.Errorf("%v: %d taken back of four returns of three, %+v is left", a, back, g)
		}
	}
}
