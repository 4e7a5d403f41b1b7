package lease_test

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/quota/quotatest"
)

const (
	ms  = quota.Instant(quota.Millisecond)
	sec = quota.Instant(quota.Second)
)

func TestLedgerTimeline(t *testing.T) {
	p := params(t, 100, quota.Minute, 100) // TTL 3 s: a token each 600 ms
	ledger := lease.Ledger{}
	for i, step := range []struct {
		at                                          quota.Instant
		waiting, keep, nodes                        int64
		wantWaiting, wantKeep, wantLevel, notBefore int64
	}{
		{at: 0, waiting: 1, keep: 0, nodes: 2, wantWaiting: 1, wantLevel: 99},
		// Plenty is left: the node gets all the tokens that it wants to keep.
		{at: 0, waiting: 1, keep: 7, nodes: 2, wantWaiting: 1, wantKeep: 7, wantLevel: 91},
		// It gets at most half of the tokens earned in 3 s, which is 2, and a sixteenth of 91.
		{at: 0, keep: 40, nodes: 2, wantKeep: 7, wantLevel: 84},
		// Two nodes asking for 43 would exhaust 84: that, which is less than a quarter of it.
		{at: 0, keep: 43, nodes: 2, wantKeep: 7, wantLevel: 77},
		// Waiting requests are served in full while there are tokens. They count as leased until
		// 100 ms, so the bucket refills from then on: one token at 700 ms.
		{at: 0, waiting: 80, keep: 5, nodes: 2, wantWaiting: 77, wantLevel: 0, notBefore: 700_000},
		// A half-earned token is none.
		{at: 400 * ms, waiting: 1, nodes: 2, notBefore: 300_000},
		{at: 700 * ms, waiting: 1, nodes: 2, wantWaiting: 1},
		// The clock steps back: time stands still, and the wait until 1300 ms counts from the
		// caller's now.
		{at: 100 * ms, waiting: 1, nodes: 2, notBefore: 1_200_000},
		// 9.3 s after 700 ms 15.5 tokens are earned.
		{at: 10_000 * ms, waiting: 20, nodes: 2, wantWaiting: 15, notBefore: 300_000},
	} {
		ask := lease.Ask{Params: p, Version: 1, Waiting: step.waiting, Cost: 1, Deadline: lease.Deadline,
			Keep: step.keep, Nodes: step.nodes}
		var g lease.Grant
		ledger, g = ledger.Grant(step.at, ask)
		if g.Waiting != step.wantWaiting || g.Keep != step.wantKeep || g.Level != step.wantLevel ||
			int64(g.NotBefore) != step.notBefore {
			t.Errorf("step %d: %+v, want %+v", i, g, step)
		}
	}
}

// Tokens out count against the burst: a hoard keeps the bucket from refilling until it expires, and
// then raises the cap only from that moment on.
func TestExpiryMakesRoomPieceByPiece(t *testing.T) {
	p := params(t, 100, quota.Second, 100) // TTL 200 ms, w = 100 ms: tokens granted at 0 end at 300 ms
	var ledger lease.Ledger
	ledger, g := ledger.Grant(0, lease.Ask{Params: p, Waiting: 0, Keep: 45, Nodes: 1, Version: 1})
	if g.Keep != 45 {
		t.Fatalf("keep %d of an idle bucket by its only node", g.Keep)
	}
	rest := lease.Ask{Params: p, Waiting: 55, Cost: 1, Deadline: lease.TTL(p), Nodes: 1, Version: 1}
	ledger, _ = ledger.Grant(0, rest)
	if _, g = ledger.Grant(299*ms, lease.Ask{Params: p, Waiting: 1, Cost: 1, Nodes: 1, Version: 1}); g.Waiting != 0 {
		t.Errorf("granted %d while the whole burst is out", g.Waiting)
	}
	// From 300 ms the tokens that were out are spent for the ledger: it earns from there, not from
	// 0.
	if _, g = ledger.Grant(350*ms, lease.Ask{Params: p, Waiting: 100, Cost: 1, Nodes: 1, Version: 1}); g.Waiting != 5 {
		t.Errorf("granted %d 50 ms after the hoard expired, want 5", g.Waiting)
	}
}

func TestTTL(t *testing.T) {
	for _, c := range []struct {
		quota  int64
		window quota.Span
		burst  int64
		want   quota.Span
	}{
		{1000, quota.Second, 1000, 200 * quota.Millisecond},
		{1000, quota.Second, 999, 0}, // refills within a second: no leases
		{100, quota.Minute, 100, 3 * quota.Second},
		{100, quota.Hour, 100, 30 * quota.Second},
	} {
		if got := lease.TTL(params(t, c.quota, c.window, c.burst)); got != c.want {
			t.Errorf("%d per %d, burst %d: TTL %d, want %d", c.quota, c.window, c.burst, got, c.want)
		}
	}
}

func TestChangeOfLimitKeepsConsumption(t *testing.T) {
	old, larger := params(t, 100, quota.Minute, 100), params(t, 200, quota.Minute, 200)
	ledger, _ := lease.Ledger{}.Grant(0, lease.Ask{Params: old, Version: 1, Waiting: 40, Cost: 1, Nodes: 1})
	grown, g := ledger.Grant(0, lease.Ask{Params: larger, Version: 2, Waiting: 1, Cost: 1, Nodes: 1})
	if g.Level != 159 || !g.Changed {
		t.Errorf("40 used, limit raised to 200: level %d (changed %v) after one more, want 159", g.Level, g.Changed)
	}
	if _, g = grown.Grant(0, lease.Ask{Params: old, Version: 1, Waiting: 1, Cost: 1, Nodes: 1}); !g.Stale {
		t.Errorf("an older version converted the ledger back: %+v", g)
	}
	if _, g = grown.Grant(0, lease.Ask{Params: larger, Version: 1, Waiting: 1, Cost: 1, Nodes: 1}); g.Stale {
		t.Error("an older version with the same figures was refused")
	}
}

// The golden vectors hold for central decisions whose tokens count as used at once.
func TestGoldenVectors(t *testing.T) {
	quotatest.RunTokenBucket(t, func(t *testing.T, p quota.Params) quotatest.Decide {
		var ledger lease.Ledger
		return func(at quota.Instant, cost int64) (allowed bool, left int64, retry quota.Span) {
			ask := lease.Ask{Params: p, Version: 1, Waiting: min(cost, 1), Cost: cost, Nodes: 1}
			var g lease.Grant
			if ledger, g = ledger.Grant(at, ask); cost == 0 {
				g.NotBefore = 0 // It is the wait for a token.
			}
			return g.Waiting == ask.Waiting, g.Level, g.NotBefore
		}
	})
}

// lent is the use that one grant allows a node: from its grant until its expiry in real time.
type lent struct {
	tokens          int64
	granted, expiry quota.Instant
}

// checkIntervals verifies that no interval (s, t] can hold more uses than burst + rate·(t-s),
// whichever node hoards: every lease that is alive within the interval is used inside it. The worst
// starts are just before an expiry or a grant, the worst ends are grants.
func checkIntervals(t *rapid.T, leases []lent, p quota.Params) {
	var starts []quota.Instant
	for _, l := range leases {
		starts = append(starts, l.expiry-2, l.granted-1)
	}
	for _, s := range starts {
		for _, last := range leases {
			end := last.granted
			if end <= s {
				continue
			}
			var uses int64
			for _, l := range leases {
				if l.granted <= end && l.expiry-1 > s {
					uses += l.tokens
				}
			}
			bound := new(big.Rat).Add(big.NewRat(p.Burst, 1), new(big.Rat).SetFrac(
				new(big.Int).Mul(big.NewInt(int64(end-s)), big.NewInt(p.Num)), big.NewInt(p.Den)))
			if new(big.Rat).SetInt64(uses).Cmp(bound) > 0 {
				t.Fatalf("uses in (%d, %d] can reach %d, the bound is %s", s, end, uses, bound.FloatString(3))
			}
		}
	}
}

// An adversary that delays, hoards and aims at slot edges never gets more than burst + rate·t in
// any interval.
func TestHoarderNeverExceedsTheBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.SampledFrom([]quota.Span{quota.Second, 3 * quota.Second, quota.Minute}).Draw(t, "window")
		burst := rapid.Int64Range(1, 40).Draw(t, "burst")
		q := rapid.Int64Range(1, 40).Draw(t, "quota")
		p, err := quota.NewParams(q, window, burst)
		if err != nil {
			t.Fatal(err)
		}
		ttl := lease.TTL(p)
		ledger, now := lease.Ledger{}, quota.Instant(rapid.Int64Range(0, 1<<40).Draw(t, "epoch"))
		var leases []lent
		// The control plane's clock may step back, but never runs ahead of real time. After a step
		// back, a forgotten bucket earns the tokens of that time twice. So here either the clock
		// steps back or the store forgets.
		steps := []int64{0, 0, 0, 1, 1_000_000}
		var behind quota.Instant
		forgets := rapid.Bool().Draw(t, "forgets")
		if forgets {
			steps = []int64{0}
		}
		for range rapid.IntRange(1, 40).Draw(t, "asks") {
			now += quota.Instant(anyPause(t, ttl))
			delay := quota.Instant(rapid.SampledFrom([]int64{0, 1, 1000, 49_000}).Draw(t, "delay"))
			behind += quota.Instant(rapid.SampledFrom(steps).Draw(t, "step back"))
			ask := lease.Ask{
				Params: p, Version: 1, Cost: 1, Deadline: lease.Deadline,
				Nodes:   rapid.Int64Range(1, 3).Draw(t, "nodes"),
				Waiting: rapid.Int64Range(0, burst).Draw(t, "waiting"),
				Keep:    rapid.Int64Range(0, 2*burst).Draw(t, "keep"),
			}
			var g lease.Grant
			ledger, g = ledger.Grant(now-behind, ask)
			sent := now - delay
			if g.Keep > 0 {
				leases = append(leases, lent{g.Keep, now, lease.Expiry(sent, ttl)})
			}
			if g.Waiting > 0 {
				leases = append(leases, lent{g.Waiting, now, lease.Expiry(sent, lease.Deadline)})
			}
			if ledger.Debt > p.Burst*p.Den {
				t.Fatalf("debt %d above the burst", ledger.Debt)
			}
			if forgets && rapid.IntRange(0, 9).Draw(t, "idle") == 0 {
				now = max(now, ledger.Forgettable())
				ledger = lease.Ledger{}
			}
		}
		live := leases[:0]
		for _, l := range leases {
			if l.expiry > l.granted {
				live = append(live, l)
			}
		}
		checkIntervals(t, live, p)
	})
}

// anyPause draws the time to the next ask, with the slot edges of both kinds of leases
// over-represented.
func anyPause(t *rapid.T, ttl quota.Span) int64 {
	return rapid.OneOf(
		rapid.SampledFrom([]int64{0, 1, 50_000, 49_999, 100_000, int64(ttl), int64(ttl)/2 - 1,
			int64(ttl) + int64(ttl)/2}),
		rapid.Int64Range(0, 3*int64(ttl)+100_000),
		rapid.Int64Range(0, 2000),
	).Draw(t, "pause")
}

// Ready is honest: at Ready(n) n tokens can be had, a microsecond earlier they cannot.
func TestReadyIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		burst := rapid.Int64Range(1, 20).Draw(t, "burst")
		p, err := quota.NewParams(rapid.Int64Range(1, 30).Draw(t, "quota"), 2*quota.Second, burst)
		if err != nil {
			t.Fatal(err)
		}
		ledger, now := lease.Ledger{}, quota.Instant(1_000_000)
		for range rapid.IntRange(1, 8).Draw(t, "asks") {
			now += quota.Instant(anyPause(t, lease.TTL(p)))
			ledger, _ = ledger.Grant(now, lease.Ask{
				Params: p, Version: 1, Cost: 1, Deadline: lease.Deadline, Nodes: 1,
				Waiting: rapid.Int64Range(0, burst).Draw(t, "waiting"),
				Keep:    rapid.Int64Range(0, burst).Draw(t, "keep"),
			})
		}
		n := rapid.Int64Range(1, burst).Draw(t, "n")
		ready := ledger.Ready(n)
		if _, g := ledger.Grant(ready, lease.Ask{Params: p, Version: 1, Cost: n, Waiting: 1, Nodes: 1}); g.Waiting < 1 {
			t.Fatalf("at Ready(%d) only %d can be had", n, g.Waiting)
		}
		if ready <= ledger.Last {
			return
		}
		if _, g := ledger.Grant(ready-1,
			lease.Ask{Params: p, Version: 1, Cost: n, Waiting: 1, Nodes: 1}); g.Waiting >= 1 {
			t.Fatalf("%d could be had a microsecond before Ready", n)
		}
	})
}

// From Forgettable on, the ledger answers like an absent ledger.
func TestForgettableEqualsAbsent(t *testing.T) {
	p := params(t, 7, 3*quota.Second, 5)
	rapid.Check(t, func(t *rapid.T) {
		ledger, now := lease.Ledger{}, quota.Instant(1)
		for range rapid.IntRange(1, 8).Draw(t, "asks") {
			now += quota.Instant(anyPause(t, lease.TTL(p)))
			ledger, _ = ledger.Grant(now,
				lease.Ask{Params: p, Version: 1, Cost: 1, Deadline: lease.Deadline, Nodes: 1,
					Waiting: rapid.Int64Range(0, 5).Draw(t, "waiting"), Keep: 2})
		}
		at := max(ledger.Forgettable(), now)
		ask := lease.Ask{Params: p, Version: 1, Cost: 1, Waiting: 5, Nodes: 1}
		_, kept := ledger.Grant(at, ask)
		_, absent := lease.Ledger{}.Grant(at, ask)
		if kept.Waiting != absent.Waiting || kept.Level != absent.Level {
			t.Fatalf("kept %+v, absent %+v", kept, absent)
		}
	})
}

func params(t *testing.T, q int64, window quota.Span, burst int64) quota.Params {
	t.Helper()
	p, err := quota.NewParams(q, window, burst)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Nodes that know a whole limit hold tokens of a part of it for as long as the whole says.
func TestHold(t *testing.T) {
	whole, err := quota.NewParams(60, quota.Minute, 60)
	if err != nil {
		t.Fatal(err)
	}
	brief, err := quota.NewParams(100, quota.Second, 10)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		ask  lease.Ask
		want quota.Span
	}{
		"its own":             {lease.Ask{Params: whole}, 3 * quota.Second},
		"longer":              {lease.Ask{Params: whole, Hold: 5 * quota.Second}, 5 * quota.Second},
		"never shorter":       {lease.Ask{Params: whole, Hold: quota.Second}, 3 * quota.Second},
		"nothing is kept":     {lease.Ask{Params: brief}, 0},
		"still not with Hold": {lease.Ask{Params: brief, Hold: quota.Second}, 0},
	} {
		if got := c.ask.TTL(); got != c.want {
			t.Errorf("%s: %d µs, want %d", name, got, c.want)
		}
	}
	_, g := lease.Ledger{}.Grant(0, lease.Ask{Params: whole, Hold: 6 * quota.Second, Keep: 10, Nodes: 1, Version: 1})
	l, _ := lease.Ledger{}.Grant(0, lease.Ask{Params: whole, Hold: 6 * quota.Second, Keep: 10, Nodes: 1, Version: 1})
	if g.Keep != 10 || len(l.Pairs) != 1 || l.Pairs[0].End < quota.Instant(6*quota.Second) {
		t.Errorf("granted %d, out until %+v", g.Keep, l.Pairs)
	}
}

// A bucket whose state is lost starts with its fill, rounded up: none that may hold something is
// empty.
func TestFill(t *testing.T) {
	for _, c := range [][3]int64{{1, 50, 1}, {1, 1, 1}, {1, 0, 0}, {3, 50, 2}, {100, 50, 50}, {100, 100, 100},
		{7, 100, 7}, {10, 1, 1}} {
		if got := lease.Fill(c[0], c[1]); got != c[2] {
			t.Errorf("%d %% of %d are %d, want %d", c[1], c[0], got, c[2])
		}
	}
}
