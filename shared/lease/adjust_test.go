package lease_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// A bucket of 100 in a minute, of which 30 are used, 20 leased until later, and 10 given back.
func TestAdjust(t *testing.T) {
	p, err := quota.NewParams(100, quota.Minute, 100)
	if err != nil {
		t.Fatal(err)
	}
	const now = quota.Instant(1_000_000_000_000)
	ask := lease.Ask{Params: p, Version: 1, Nodes: 1}
	used, kept := ask, ask
	used.Waiting, used.Cost = 30, 1
	kept.Keep = 20
	l, _ := lease.Ledger{}.Grant(now, used)
	l, _ = l.Grant(now, kept)
	for _, c := range []struct {
		name   string
		change lease.Change
		want   lease.Holding
	}{
		{"a look", lease.Change{}, lease.Holding{Level: 50, Used: 30, Leased: 20}},
		{"a grant", lease.Change{Give: 10}, lease.Holding{Level: 60, Used: 20, Leased: 20, Given: 10}},
		{"more than was used", lease.Change{Give: 1000}, lease.Holding{Level: 80, Used: 0, Leased: 20, Given: 30}},
		{"a reset", lease.Change{Reset: true}, lease.Holding{Level: 80, Used: 0, Leased: 20, Given: 30}},
	} {
		_, got := l.Adjust(now, ask, c.change)
		if got.FullAfter <= 0 || got.FullAfter > 2*quota.Minute {
			t.Errorf("%s: full after %d", c.name, got.FullAfter)
		}
		if got.FullAfter = 0; got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	// A token of which a part has come back is given back as the token that was used.
	later := now + quota.Instant(quota.Second)
	if _, h := l.Adjust(later, ask, lease.Change{Reset: true}); h.Given != 50-1-20 || h.Used != 0 {
		t.Errorf("a second later a reset gave back %+v", h)
	}
	// The leased tokens end, and none is missing any more.
	reset, _ := l.Adjust(now, ask, lease.Change{Reset: true})
	if _, h := reset.Adjust(now+quota.Instant(quota.Minute), ask, lease.Change{}); h != (lease.Holding{Level: 100}) {
		t.Errorf("in the end %+v", h)
	}
	old := ask
	old.Version, old.Params.Burst = 0, 50
	if _, h := l.Adjust(now, old, lease.Change{Reset: true}); !h.Stale {
		t.Errorf("by an older limit: %+v", h)
	}
}

// After any grants and changes, level and leased tokens are never more than the burst. A change
// gives back the tokens that it reports, and no more than were used. Looking changes nothing.
func TestAdjustKeepsTheBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ask := lease.Ask{Version: 1, Nodes: 2, Cost: 1, Deadline: lease.Deadline}
		burst := rapid.Int64Range(1, 200).Draw(t, "burst")
		window := rapid.Int64Range(int64(quota.Second), int64(quota.Hour)).Draw(t, "window") / 1000 * 1000
		var err error
		windowed := rapid.Bool().Draw(t, "windowed")
		if ask.Params, err = quota.NewParams(burst, quota.Span(window), burst); err != nil {
			t.Fatal(err)
		}
		if windowed {
			algorithm := rapid.SampledFrom([]quota.Algorithm{quota.FixedWindow, quota.SlidingWindow,
				quota.SlidingWindowCounter, quota.SlidingLog}).Draw(t, "algorithm")
			if ask.Windows, err = quota.NewWindows(algorithm, burst, quota.Span(window), 10); err != nil {
				t.Fatal(err)
			}
		}
		var tokens lease.Ledger
		var windows lease.WindowLedger
		now := quota.Instant(1_000_000_000_000)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now += quota.Instant(rapid.Int64Range(0, int64(quota.Minute)).Draw(t, "pass"))
			a := ask
			a.Waiting, a.Keep = rapid.Int64Range(0, 20).Draw(t, "waiting"), rapid.Int64Range(0, 50).Draw(t, "keep")
			c := lease.Change{Reset: rapid.Bool().Draw(t, "reset"), Give: rapid.Int64Range(0, 50).Draw(t, "give")}
			var before, after, again lease.Holding
			if windowed {
				windows, _ = windows.Grant(now, a)
				_, before = windows.Adjust(now, ask, lease.Change{})
				windows, after = windows.Adjust(now, ask, c)
				_, again = windows.Adjust(now, ask, lease.Change{})
			} else {
				tokens, _ = tokens.Grant(now, a)
				_, before = tokens.Adjust(now, ask, lease.Change{})
				tokens, after = tokens.Adjust(now, ask, c)
				_, again = tokens.Adjust(now, ask, lease.Change{})
			}
			given := after.Given
			if after.Given = 0; after != again {
				t.Fatalf("%+v, and then %+v", after, again)
			}
			switch {
			case before.Given != 0 || after.Leased != before.Leased || after.Level < before.Level ||
				after.Used > before.Used:
				t.Fatalf("%+v became %+v", before, after)
			case !windowed && after.Level+after.Leased > burst:
				t.Fatalf("more than the burst of %d: %+v", burst, after)
			case !c.Reset && given > c.Give:
				t.Fatalf("%d were given of %d", given, c.Give)
			case !windowed && after.Level-before.Level-given > 1:
				t.Fatalf("%d were given: %+v became %+v", given, before, after)
			}
		}
	})
}

// Used tokens above a lowered limit are shown beside the bucket's missing tokens. A reset forgets
// them, and a raised limit counts them as used.
func TestWhatLiesAboveALoweredLimitIsShown(t *testing.T) {
	ask := func(units int64, version uint64) lease.Ask {
		p, err := quota.NewParams(units, quota.Hour, units)
		if err != nil {
			t.Fatal(err)
		}
		return lease.Ask{Params: p, Version: version, Waiting: 80, Cost: 1, Nodes: 1}
	}
	l, g := lease.Ledger{}.Grant(1e9, ask(100, 1))
	if g.Waiting != 80 {
		t.Fatal(g)
	}
	lowered, h := l.Adjust(1e9, ask(50, 2), lease.Change{})
	if h.Level != 0 || h.Used != 50 || h.Above != 30 {
		t.Errorf("lowered: %+v", h)
	}
	if _, h := lowered.Adjust(1e9, ask(90, 3), lease.Change{}); h.Used != 80 || h.Above != 0 || h.Level != 10 {
		t.Errorf("raised again: %+v", h)
	}
	_, h = lowered.Adjust(1e9, ask(50, 3), lease.Change{Reset: true})
	if h.Used != 0 || h.Above != 0 || h.Level != 50 {
		t.Errorf("reset: %+v", h)
	}
}
