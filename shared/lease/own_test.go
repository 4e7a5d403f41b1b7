package lease_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// figuresOf returns a limit of most a minute, and the ask of a caller with a quota of its own.
func figuresOf(t testing.TB, most, own int64) (policy.Limit, lease.Ask) {
	t.Helper()
	l, err := policy.NewLimit(policy.Counting{}, most, quota.Minute, 0)
	if err != nil {
		t.Fatal(err)
	}
	return l, lease.Ask{Params: l.For(own, 0).Params, Most: l.Params, Version: 1, Cost: 1, Deadline: lease.Deadline,
		Nodes: 2}
}

// One ledger counts the use of callers with figures of their own, for any figures.
func TestALedgerOfCallersOwnFigures(t *testing.T) {
	type step struct {
		at, own, waiting, want int64
		notBefore              quota.Span
	}
	for name, steps := range map[string][]step{
		"less than before waits at the rate of before": {
			{0, 600, 600, 600, 0}, {0, 60, 1, 0, 54_100_000}, {54_099_999, 60, 1, 0, 1}, {54_100_000, 60, 1, 1, 0},
			{54_100_000, 60, 1, 0, quota.Second},
		},
		"more than before counts the used tokens": {
			{0, 60, 60, 60, 0}, {0, 60, 1, 0, quota.Second}, {0, 600, 541, 540, 100_000},
		},
		"a refusal of less does not change the bucket": {
			{0, 600, 600, 600, 0}, {0, 1, 1, 0, 60 * quota.Second}, {100_000, 600, 1, 1, 0},
		},
	} {
		var l lease.Ledger
		for i, s := range steps {
			_, ask := figuresOf(t, 600, s.own)
			ask.Waiting, ask.Deadline = s.waiting, 0
			now := quota.Instant(quota.Hour) + quota.Instant(s.at)
			looked, look := l.Look(now, ask)
			next, g := l.Grant(now, ask)
			if g.Waiting != s.want || g.NotBefore != s.notBefore || look.Waiting != 0 ||
				(look.NotBefore > 0) != (g.NotBefore > 0) {
				t.Errorf("%s: step %d: %+v, looked %+v, want %d and %d", name, i, g, look, s.want, s.notBefore)
			}
			if g.Changed {
				l = next
			} else if look.Changed {
				l = looked
			}
		}
	}
}

// However callers mix their figures, their asks and their reports, all that a ledger grants would
// have passed one bucket of the largest figures. A caller that waits as long as the answer says is
// granted.
func TestFiguresOfCallersMintNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		units := rapid.Int64Range(1, 5000).Draw(rt, "most")
		most, err := policy.NewLimit(policy.Counting{}, units,
			quota.Span(rapid.Int64Range(1, 600).Draw(rt, "window"))*quota.Second, rapid.Int64Range(1, 5000).Draw(rt,
				"burst"))
		if err != nil {
			rt.Fatal(err)
		}
		p := most.Params
		now := quota.Instant(quota.Hour)
		var l lease.Ledger
		var all quota.State
		for range rapid.IntRange(1, 60).Draw(rt, "asks") {
			now += quota.Instant(rapid.Int64Range(0, int64(most.Window)/4).Draw(rt, "later"))
			own := most.For(rapid.Int64Range(1, units).Draw(rt, "quota"),
				rapid.Int64Range(0, p.Burst).Draw(rt, "own burst"))
			ask := lease.Ask{
				Params: own.Params, Most: p, Version: 1, Cost: rapid.Int64Range(1, own.Params.Burst).Draw(rt, "cost"),
				Nodes:   2,
				Waiting: rapid.Int64Range(0, 5).Draw(rt, "waiting"), Deadline: lease.Deadline,
				Keep: rapid.Int64Range(0, own.Params.Burst).Draw(rt, "keep"),
			}
			if rapid.IntRange(0, 4).Draw(rt, "kind") == 0 {
				ask.Used = rapid.Int64Range(1, p.Burst).Draw(rt, "used")
			}
			next, g := l.Grant(now, ask)
			all = p.Drain(all, now)
			all.Debt += (g.Waiting*ask.Cost + g.Keep + ask.Used) * p.Den
			if ask.Used == 0 && g.Waiting+g.Keep > 0 && all.Debt > p.Burst*p.Den {
				rt.Fatalf("%+v was granted %+v, and a bucket of %+v has not got as much", ask, g, p)
			}
			if ask.Used > 0 && all.Debt > g.Debt {
				rt.Fatalf("a debt of %d, and the answer to %+v is %d", all.Debt, own.Params, g.Debt)
			}
			if g.Changed {
				l = next
			}
			if ask.Used == 0 && ask.Waiting > g.Waiting {
				ask.Waiting, ask.Keep = 1, 0
				if _, again := l.Grant(now+quota.Instant(g.NotBefore), ask); again.Waiting != 1 {
					rt.Fatalf("%+v waited %d and got %+v", ask, g.NotBefore, again)
				}
			}
		}
	})
}

// A bucket of windows has the largest quota, and each caller is decided with its own quota.
func TestWindowsOfCallersOwnQuotas(t *testing.T) {
	for name, a := range map[string]quota.Algorithm{"fixed": quota.FixedWindow, "sliding": quota.SlidingWindow,
		"counter": quota.SlidingWindowCounter} {
		most, err := policy.NewLimit(policy.Counting{Algorithm: a, Subwindows: 10}, 600, quota.Minute, 0)
		if err != nil {
			t.Fatal(err)
		}
		var l lease.WindowLedger
		for i, s := range []struct {
			own, waiting, want, level int64
		}{{5, 9, 5, 0}, {60, 100, 55, 0}, {600, 1, 1, 539}, {5, 1, 0, 0}, {600, 600, 539, 0}} {
			ask := lease.Ask{Params: most.For(s.own, 0).Params, Most: most.Params,
				Windows: most.WindowsOf(keyhash.Key{}), Version: 1, Waiting: s.waiting, Cost: 1, Nodes: 1}
			_, look := l.Look(quota.Instant(quota.Hour), ask)
			var g lease.Grant
			l, g = l.Grant(quota.Instant(quota.Hour), ask)
			if g.Waiting != s.want || g.Level != s.level || (look.NotBefore > 0) != (g.NotBefore > 0) ||
				(g.NotBefore > 0) != (s.want < s.waiting) {
				t.Errorf("%s, step %d: %+v, looked %+v, want %d", name, i, g, look, s.want)
			}
		}
	}
}

// Where the largest figures of a limit are lowered, nothing earns by the old ones from the next ask
// on, also if that is refused; and no more counts as used than the new burst.
func TestALoweredLimitOfCallersOwnFigures(t *testing.T) {
	_, before := figuresOf(t, 600, 600)
	_, after := figuresOf(t, 6, 6)
	before.Deadline, after.Deadline, after.Version = 0, 0, 2
	var l lease.Ledger
	for i, s := range []struct {
		at            quota.Span
		ask           lease.Ask
		waiting, want int64
		notBefore     quota.Span
	}{
		{0, before, 600, 600, 0}, {0, after, 1, 0, 10 * quota.Second}, {9 * quota.Second, after, 1, 0, quota.Second},
		{10 * quota.Second, after, 6, 1, 10 * quota.Second}, {30 * quota.Second, after, 6, 2, 10 * quota.Second},
	} {
		s.ask.Waiting = s.waiting
		next, g := l.Grant(quota.Instant(quota.Hour)+quota.Instant(s.at), s.ask)
		if g.Waiting != s.want || g.NotBefore != s.notBefore {
			t.Errorf("step %d: %+v, want %d and %d", i, g, s.want, s.notBefore)
		}
		if g.Changed {
			l = next
		}
	}
}
