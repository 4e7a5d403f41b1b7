package lease_test

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/quota/quotatest"
)

// changingLimit is one limit that an operator changes: at once, or as a draft for some nodes, which
// is then promoted or cancelled.
type changingLimit[L lease.Counted[L]] struct {
	pair lease.Twins[L]
	// main and draft are the asks of nodes; drafted means that both are in force.
	main, draft lease.Ask
	drafted     bool
	number      uint64
}

func (c *changingLimit[L]) next(a lease.Ask) lease.Ask {
	c.number++
	a.Version = c.number << lease.EpochBits
	return a
}

// change goes one step on, and returns the figures in force.
func (c *changingLimit[L]) change(r *rand.Rand, drawn lease.Ask) []quota.Params {
	switch {
	case c.number == 0 || !c.drafted && r.IntN(2) == 0:
		c.main = c.next(drawn)
	case !c.drafted:
		c.draft, c.drafted = c.next(drawn), true
	case r.IntN(3) == 0: // It is promoted.
		c.main, c.drafted = c.draft, false
	default: // It is cancelled.
		c.drafted = false
	}
	if c.drafted {
		return []quota.Params{c.main.Params, c.draft.Params}
	}
	return []quota.Params{c.main.Params}
}

func (c *changingLimit[L]) ask(r *rand.Rand, now quota.Instant, waiting, cost, keep int64, look bool) lease.Grant {
	ask, other, draft := c.main, c.draft, c.drafted && r.IntN(2) == 0
	if draft {
		ask, other = c.draft, c.main
	}
	ask.Waiting, ask.Cost, ask.Keep, ask.Nodes = waiting, cost, keep, 1
	var g lease.Grant
	switch {
	case !c.drafted:
		ledger := c.pair.Promoted(ask)
		if look {
			ledger, g = ledger.Look(now, ask)
		} else {
			ledger, g = ledger.Grant(now, ask)
		}
		if g.Changed {
			c.pair.Main = ledger
		}
	case look:
		c.pair, g = c.pair.Look(now, draft, ask)
	default:
		c.pair, g, _ = c.pair.Grant(now, draft, ask, other)
	}
	return g
}

// allowed is the limit that may be used of those in force: the largest burst and the largest rate,
// or, of a window algorithm whose versions have windows of two lengths, the sum of both limits.
func (c *changingLimit[L]) allowed(t *testing.T, inForce []quota.Params, onGrid bool) (law quota.Params) {
	t.Helper()
	for i := range inForce {
		if onGrid {
			inForce[i].Burst *= 2
		}
	}
	if first, second := c.main.Windows, c.draft.Windows; c.drafted && first.Length != second.Length {
		sum, err := quota.NewParams(first.Quota*int64(quota.Hour/first.Length)+
			second.Quota*int64(quota.Hour/second.Length), quota.Hour, inForce[0].Burst+inForce[1].Burst)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	law = inForce[0]
	for _, p := range inForce[1:] {
		if law.SlowerThan(p) {
			law.Num, law.Den = p.Num, p.Den
		}
		law.Burst = max(law.Burst, p.Burst)
	}
	return law
}

// However often a limit is changed, drafted, promoted and cancelled, in any interval no more is
// granted than the largest limit in force in it allows, and the sum of both where a draft has
// windows of another length; and a caller who waits for a window of the limit that is left finds it
// whole.
func TestChangesOfLedgersMintNothingAndTakeNothing(t *testing.T) {
	spans := []quota.Span{quota.Second, 10 * quota.Second, quota.Minute, quota.Hour}
	draw := func(r *rand.Rand, a quota.Algorithm) (ask lease.Ask, burst int64) {
		for {
			units, span := 1+r.Int64N(200), spans[r.IntN(4)]
			p, err := quota.NewParams(units, span, units)
			if err != nil {
				continue
			}
			if !a.Windowed() {
				p.Burst = 1 + r.Int64N(200)
				return lease.Ask{Params: p, Deadline: 0}, p.Burst
			}
			if w, err := quota.NewWindows(a, units, span, 1+r.IntN(20)); err == nil {
				burst = units
				if a.OnGrid() {
					burst *= 2
				}
				return lease.Ask{Params: p, Windows: w.At(1 << 41)}, burst
			}
		}
	}
	for name, a := range map[string]quota.Algorithm{"tokens": quota.TokenBucket, "queue": quota.LeakyBucket,
		"fixed": quota.FixedWindow, "sliding": quota.SlidingWindow, "log": quota.SlidingLog,
		"counter": quota.SlidingWindowCounter} {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			for game := range uint64(1000) {
				r := rand.New(rand.NewPCG(seed, game))
				if a.Windowed() {
					playLedger[lease.WindowLedger](t, r, game, a, draw)
				} else {
					playLedger[lease.Ledger](t, r, game, a, draw)
				}
			}
		})
	}
}

func playLedger[L lease.Counted[L]](
	t *testing.T, r *rand.Rand, game uint64, a quota.Algorithm,
	draw func(*rand.Rand, quota.Algorithm) (lease.Ask, int64),
) {
	t.Helper()
	var c changingLimit[L]
	var law quotatest.Eras
	now := quota.Instant(1e15)
	var inForce []quota.Params
	leases := r.IntN(2) == 0 && !a.Queues()
	for step := range 200 {
		if step == 0 || r.IntN(8) == 0 {
			drawn, _ := draw(r, a)
			for c.number > 0 && r.IntN(2) == 0 && drawn.Windows.Length != c.main.Windows.Length {
				drawn, _ = draw(r, a)
			}
			inForce = c.change(r, drawn)
			law.Change(now, c.allowed(t, inForce, a.OnGrid()), 0)
			if !c.drafted && r.IntN(3) == 0 {
				now += windowOf(c.main, leases)
				if g := c.ask(r, now, 0, 1, 0, true); g.Level != c.main.Params.Burst {
					t.Fatalf("game %d: a window after a change %d of %+v are left: %+v", game, g.Level, c.main, c.pair)
				}
				continue
			}
		}
		now += quota.Instant([]int64{0, 0, 1, 1000, 1 + r.Int64N(2_000_000),
			r.Int64N(int64(c.main.Params.Window())) / 4}[r.IntN(6)])
		cost := 1 + r.Int64N(c.main.Params.Burst)/int64(1+r.IntN(20))
		keep := int64(0)
		if leases {
			keep = r.Int64N(100)
		}
		g := c.ask(r, now, r.Int64N(4), cost, keep, r.IntN(4) == 0)
		if used := g.Waiting*cost + g.Keep; used > 0 {
			if over := law.Use(now, used); over > 0 {
				t.Fatalf("game %d: %.3f too many were granted by %+v: %+v", game, over, c.main, c.pair)
			}
		}
	}
}

// windowOf is how long a caller waits until a bucket is full again: a window of it, and as long as
// tokens may be leased by any limit.
func windowOf(ask lease.Ask, leases bool) (wait quota.Instant) {
	if leases {
		wait = quota.Instant(46 * quota.Second)
	}
	switch w := ask.Windows; {
	case w.Quota == 0:
		return wait + quota.Instant(ask.Params.Window())
	case w.Algorithm == quota.SlidingWindowCounter:
		return wait + quota.Instant(2*w.Length)
	default:
		return wait + quota.Instant(w.Length+w.Grain)
	}
}
