package lease_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/quota/quotatest"
)

func windows(
	t interface{ Fatal(...any) }, a quota.Algorithm, q int64, length quota.Span, k int,
) (quota.Windows, quota.Params) {
	w, err := quota.NewWindows(a, q, length, k)
	if err != nil {
		t.Fatal(err)
	}
	p, err := quota.NewParams(q, length, q)
	if err != nil {
		t.Fatal(err)
	}
	return w, p
}

// The golden vectors hold for central decisions whose tokens count as used at once.
func TestGoldenWindows(t *testing.T) {
	quotatest.RunWindows(t, func(_ *testing.T, w quota.Windows) quotatest.Decide {
		var ledger lease.WindowLedger
		return func(at quota.Instant, cost int64) (allowed bool, left int64, retry quota.Span) {
			ask := lease.Ask{Params: quota.Params{Num: 1, Den: 1, Burst: 1}, Windows: w, Version: 1,
				Waiting: min(cost, 1), Cost: cost, Nodes: 1}
			var g lease.Grant
			if ledger, g = ledger.Grant(at, ask); cost == 0 {
				g.NotBefore = 0 // It is the wait for a token.
			}
			return g.Waiting == ask.Waiting, g.Level, g.NotBefore
		}
	})
}

// A strict leaky bucket gives out turns: the delay is the time for the debt before the request.
func TestGoldenQueue(t *testing.T) {
	quotatest.RunQueue(t, func(_ *testing.T, p quota.Params) quotatest.Enqueue {
		var ledger lease.Ledger
		return func(at quota.Instant) (accepted bool, delay, retry quota.Span) {
			var g lease.Grant
			ledger, g = ledger.Grant(at, lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 1, Nodes: 1})
			return g.Waiting == 1, g.Delay, g.NotBefore
		}
	})
}

// A fixed window's lease that may be used in the next one as well counts in both.
func TestFixedWindowLedgerTimeline(t *testing.T) {
	w, p := windows(t, quota.FixedWindow, 100, quota.Minute, 0) // TTL 3 s
	var ledger lease.WindowLedger
	for i, step := range []struct {
		at                                          quota.Instant
		waiting, keep                               int64
		wantWaiting, wantKeep, wantLevel, notBefore int64
	}{
		{at: 10 * sec, waiting: 40, wantWaiting: 40, wantLevel: 60},
		// It gets at most the tokens earned in 3 s, which are 5, and a quarter of 60.
		{at: 58 * sec, keep: 50, wantKeep: 20, wantLevel: 40},
		// 60.001 is in the next window too, which holds 20.
		{at: 59_951 * ms, waiting: 1, wantWaiting: 1, wantLevel: 39},
		{at: 60 * sec, waiting: 90, wantWaiting: 79, wantLevel: 0, notBefore: 60_000_000},
		{at: 119_960 * ms, waiting: 1, wantLevel: 0, notBefore: 40_000},
		{at: 120 * sec, waiting: 1, keep: 1, wantWaiting: 1, wantKeep: 1, wantLevel: 98},
	} {
		var g lease.Grant
		ledger, g = ledger.Grant(step.at, lease.Ask{
			Params: p, Windows: w, Version: 1, Waiting: step.waiting, Cost: 1, Deadline: lease.Deadline,
			Keep: step.keep, Nodes: 1,
		})
		if g.Waiting != step.wantWaiting || g.Keep != step.wantKeep || g.Level != step.wantLevel ||
			int64(g.NotBefore) != step.notBefore {
			t.Errorf("step %d: %+v, want %+v", i, g, step)
		}
	}
}

// worstWindow is the most that can be used in a window that ends at end: every lease that can be
// used within it is.
func worstWindow(w quota.Windows, leases []lent, end quota.Instant) (uses int64) {
	begin := end - quota.Instant(w.Length)
	if w.Algorithm == quota.FixedWindow {
		begin, end = end-1, end+quota.Instant(w.Length)-1 // end is the grid's line.
	}
	for _, l := range leases {
		if l.granted <= end && l.expiry-1 > begin {
			uses += l.tokens
		}
	}
	return uses
}

// An adversary that delays, hoards and uses leases as late as allowed never gets more than the
// quota into any window.
func TestHoarderNeverExceedsTheQuota(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SampledFrom([]quota.Algorithm{quota.FixedWindow, quota.SlidingWindow,
			quota.SlidingLog}).Draw(t, "algorithm")
		length := rapid.SampledFrom([]quota.Span{quota.Second, 3 * quota.Second, quota.Minute}).Draw(t, "length")
		w, p := windows(t, a, rapid.Int64Range(1, 40).Draw(t, "quota"), length,
			rapid.IntRange(1, 60).Draw(t, "subwindows"))
		if a == quota.FixedWindow {
			w = w.At(rapid.Uint64().Draw(t, "offset"))
		}
		ttl, ledger, now := lease.TTL(p), lease.WindowLedger{}, quota.Instant(rapid.Int64Range(1<<37, 1<<40).Draw(t,
			"epoch"))
		forgets := rapid.Bool().Draw(t, "forgets")
		var leases []lent
		for range rapid.IntRange(1, 40).Draw(t, "asks") {
			edge := int64(w.Length) - int64(now-quota.Instant(w.Offset))%int64(w.Length)
			now += quota.Instant(rapid.OneOf(rapid.Just(anyPause(t, ttl)),
				rapid.Int64Range(max(0, edge-100_000), edge+1),
				rapid.Just(int64(w.Length)), rapid.Int64Range(0, int64(w.Length))).Draw(t, "pass"))
			sent := now - quota.Instant(rapid.SampledFrom([]int64{0, 1, 1000, 49_000}).Draw(t, "delay"))
			ask := lease.Ask{
				Params: p, Windows: w, Version: 1, Cost: rapid.Int64Range(1, 2).Draw(t, "cost"),
				Deadline: lease.Deadline,
				Nodes:    rapid.Int64Range(1, 3).Draw(t, "nodes"),
				Waiting:  rapid.Int64Range(0, w.Quota).Draw(t, "waiting"),
				Keep:     rapid.Int64Range(0, 2*w.Quota).Draw(t, "keep"),
			}
			var g lease.Grant
			ledger, g = ledger.Grant(now, ask)
			for _, l := range []lent{{g.Keep, now, lease.Expiry(sent, ttl)},
				{g.Waiting * ask.Cost, now, lease.Expiry(sent, lease.Deadline)}} {
				if l.tokens > 0 && l.expiry > l.granted {
					leases = append(leases, l)
				}
			}
			if len(ledger.History.Marks) > quota.MaxMarks {
				t.Fatalf("%d marks", len(ledger.History.Marks))
			}
			if forgets && now >= ledger.Forgettable() {
				ledger = lease.WindowLedger{}
			}
		}
		for _, l := range leases {
			for _, end := range []quota.Instant{l.granted, l.expiry - 1, l.expiry - 2 + quota.Instant(w.Length),
				l.granted - 1 + quota.Instant(w.Length)} {
				if a == quota.FixedWindow {
					end -= (end - quota.Instant(w.Offset)) % quota.Instant(w.Length)
				}
				if uses := worstWindow(w, leases, end); uses > w.Quota {
					t.Fatalf("uses in the window at %d can reach %d of %d", end, uses, w.Quota)
				}
			}
		}
	})
}

// NotBefore is exact, Look agrees with Grant, and from Forgettable on a ledger answers like an
// absent ledger.
func TestWindowLedgerWaits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SampledFrom([]quota.Algorithm{quota.FixedWindow, quota.SlidingWindow, quota.SlidingWindowCounter,
			quota.SlidingLog}).Draw(t, "algorithm")
		w, p := windows(t, a, rapid.Int64Range(1, 20).Draw(t, "quota"), 2*quota.Second,
			rapid.IntRange(1, 12).Draw(t, "subwindows"))
		ledger, now := lease.WindowLedger{}, quota.Instant(1<<40)
		for range rapid.IntRange(1, 10).Draw(t, "asks") {
			now += quota.Instant(rapid.Int64Range(0, 700_000).Draw(t, "pause"))
			ledger, _ = ledger.Grant(now, lease.Ask{
				Params: p, Windows: w, Version: 1, Cost: 1, Deadline: lease.Deadline, Nodes: 1,
				Waiting: rapid.Int64Range(0, w.Quota/2).Draw(t, "waiting"),
				Keep:    rapid.Int64Range(0, 3).Draw(t, "keep"),
			})
		}
		ask := lease.Ask{Params: p, Windows: w, Version: 1, Waiting: 1,
			Cost: rapid.Int64Range(1, w.Quota).Draw(t, "cost"), Deadline: lease.Deadline, Nodes: 1}
		_, g := ledger.Grant(now, ask)
		if _, look := ledger.Look(now, ask); look.NotBefore != g.NotBefore || look.Waiting+look.Keep > 0 {
			t.Fatalf("granted %+v, looked at %+v", g, look)
		}
		if g.Waiting == 0 {
			if _, early := ledger.Grant(now+quota.Instant(g.NotBefore)-1, ask); early.Waiting > 0 {
				t.Fatalf("granted a microsecond before NotBefore %d", g.NotBefore)
			}
			if _, late := ledger.Grant(now+quota.Instant(g.NotBefore), ask); late.Waiting == 0 {
				t.Fatalf("nothing at NotBefore %d", g.NotBefore)
			}
		}
		at := max(now, ledger.Forgettable())
		ask.Waiting, ask.Cost = w.Quota, 1
		_, kept := ledger.Grant(at, ask)
		_, absent := lease.WindowLedger{}.Grant(at, ask)
		if kept != absent {
			t.Fatalf("kept %+v, absent %+v", kept, absent)
		}
	})
}

func TestWindowLedgerChangeOfLimit(t *testing.T) {
	old, p := windows(t, quota.SlidingWindow, 100, quota.Minute, 6)
	larger, q := windows(t, quota.SlidingLog, 200, quota.Minute, 0)
	ledger, _ := lease.WindowLedger{}.Grant(sec,
		lease.Ask{Params: p, Windows: old, Version: 1, Waiting: 40, Cost: 1, Nodes: 1})
	grown, g := ledger.Grant(2*sec, lease.Ask{Params: q, Windows: larger, Version: 2, Waiting: 1, Cost: 1, Nodes: 1})
	if g.Level != 159 || !g.Changed {
		t.Errorf("40 used, 200 now: %+v after one more, want 159 left", g)
	}
	if _, g = grown.Grant(2*sec,
		lease.Ask{Params: p, Windows: old, Version: 1, Waiting: 1, Cost: 1, Nodes: 1}); !g.Stale {
		t.Errorf("an older version converted the ledger back: %+v", g)
	}
	if len(ledger.History.Marks) != 1 {
		t.Error("a grant has changed the ledger it was given")
	}
	half := lease.FreshWindows(lease.Ask{Windows: old, Version: 1}, sec, 50)
	if _, g = half.Grant(sec, lease.Ask{Params: p, Windows: old, Version: 1, Waiting: 60, Cost: 1,
		Nodes: 1}); g.Waiting != 50 {
		t.Errorf("a ledger with half its quota: %+v", g)
	}
}

// A grant tells when the bucket is full: a fixed window at its end, also where tokens are lent into
// the next; others when the last token has left the window, which one counts as late as it may be
// used.
func TestWindowsTellWhenTheyAreFull(t *testing.T) {
	const ms = quota.Instant(quota.Millisecond)
	late := quota.Span(lease.Deadline)
	for _, c := range []struct {
		algorithm quota.Algorithm
		at        []quota.Instant
		want      []quota.Span
	}{
		{quota.FixedWindow, []quota.Instant{37_000 * ms, 50_000 * ms, 59_980 * ms, 60_000 * ms},
			[]quota.Span{23 * quota.Second, 10 * quota.Second, 20 * quota.Millisecond, quota.Minute}},
		{quota.SlidingLog, []quota.Instant{1000 * ms, 31_000 * ms},
			[]quota.Span{quota.Minute + late, quota.Minute + late}},
		{quota.SlidingWindowCounter, []quota.Instant{37_000 * ms, 61_000 * ms},
			[]quota.Span{83 * quota.Second, 119 * quota.Second}},
	} {
		w, p := windows(t, c.algorithm, 100, quota.Minute, 10)
		var ledger lease.WindowLedger
		for i, at := range c.at {
			ask := lease.Ask{Params: p, Windows: w, Version: 1, Waiting: 1, Cost: 1, Nodes: 1, Deadline: lease.Deadline}
			if _, g := ledger.Look(at, lease.Ask{Params: p, Windows: w, Version: 1, Cost: 1, Nodes: 1}); i == 0 &&
				g.FullAfter != 0 {
				t.Errorf("%v, untouched: full after %d", c.algorithm, g.FullAfter)
			}
			var g lease.Grant
			if ledger, g = ledger.Grant(at, ask); g.Waiting != 1 || g.FullAfter != c.want[i] {
				t.Errorf("%v at %d: %+v, want full after %d", c.algorithm, at, g, c.want[i])
			}
			if _, look := ledger.Look(at, ask); look.FullAfter != g.FullAfter {
				t.Errorf("%v at %d: a look says full after %d, the grant %d", c.algorithm, at, look.FullAfter,
					g.FullAfter)
			}
		}
	}
}
