package quota_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

// TestPropertiesOfTheAlgorithms states the table as other packages read it.
func TestPropertiesOfTheAlgorithms(t *testing.T) {
	want := map[quota.Algorithm]string{
		quota.TokenBucket:          "token_bucket lends, pays back",
		quota.LeakyBucket:          "leaky_bucket queues",
		quota.FixedWindow:          "fixed_window windowed, on grid, fixed, lends",
		quota.SlidingWindow:        "sliding_window windowed, divided, lends",
		quota.SlidingWindowCounter: "sliding_window_counter windowed, on grid, estimates",
		quota.SlidingLog:           "sliding_log windowed, lends",
		// A number that is none is read nowhere; it must not panic.
		quota.Algorithm(quota.AlgorithmCount): "token_bucket lends, pays back",
		255:                                   "token_bucket lends, pays back",
	}
	for a, properties := range want {
		var has []string
		for _, one := range []struct {
			name string
			has  bool
		}{
			{"windowed", a.Windowed()}, {"on grid", a.OnGrid()}, {"fixed", a.Fixed()}, {"divided", a.Divided()},
			{"estimates", a.Estimates()}, {"queues", a.Queues()}, {"lends", a.Lends()}, {"pays back", a.PaysBack()},
		} {
			if one.has {
				has = append(has, one.name)
			}
		}
		if got := a.String() + " " + strings.Join(has, ", "); got != properties {
			t.Errorf("algorithm %d: %s, want %s", a, got, properties)
		}
	}
	if len(want) != quota.AlgorithmCount+2 {
		t.Errorf("%d algorithms are described here, there are %d", len(want)-2, quota.AlgorithmCount)
	}
}

func TestStoredParamsAreSoundOnlyAsTheyAreMade(t *testing.T) {
	for p, want := range map[quota.Params]bool{
		{Num: 1, Den: 1, Burst: 1}:                           true,
		{Num: quota.MaxUnits, Den: 1, Burst: quota.MaxUnits}: true,
		{Num: 1, Den: quota.MaxUnits, Burst: 1}:              true,
		{Num: 0, Den: 1, Burst: 1}:                           false,
		{Num: 1, Den: 0, Burst: 1}:                           false,
		{Num: 1, Den: 1, Burst: 0}:                           false,
		{Num: quota.MaxUnits + 1, Den: 1, Burst: 1}:          false,
		{Num: 1, Den: 1, Burst: quota.MaxUnits + 1}:          false,
		{Num: 1, Den: quota.MaxUnits/2 + 1, Burst: 2}:        false,
	} {
		if p.Sound() != want {
			t.Errorf("%+v is sound: %t", p, p.Sound())
		}
	}
}

func TestStoredWindowsAreSoundOnlyAsTheyAreMade(t *testing.T) {
	made := func(a quota.Algorithm, units int64, length quota.Span) quota.Windows {
		w, err := quota.NewWindows(a, units, length, 7)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	for a := range quota.Algorithm(quota.AlgorithmCount) {
		if !a.Windowed() {
			continue
		}
		for _, w := range []quota.Windows{made(a, 1, quota.Second), made(a, 100, quota.MaxWindow)} {
			if last := w.At(uint64(w.Grain) - 1); !w.Sound() || !last.Sound() {
				t.Errorf("%+v or %+v is not sound", w, last)
			}
		}
	}
	if largest := made(quota.FixedWindow, quota.MaxUnits, quota.Minute); !largest.Sound() {
		t.Errorf("%+v is not sound", largest)
	}
	for name, change := range map[string]func(*quota.Windows){
		"an algorithm of tokens":    func(w *quota.Windows) { w.Algorithm = quota.LeakyBucket },
		"no quota":                  func(w *quota.Windows) { w.Quota = 0 },
		"a quota too large":         func(w *quota.Windows) { w.Quota = quota.MaxUnits + 1 },
		"a window too short":        func(w *quota.Windows) { w.Length, w.Grain = quota.Second-1, 1 },
		"a window too long":         func(w *quota.Windows) { w.Length = quota.MaxWindow + 1 },
		"no grain":                  func(w *quota.Windows) { w.Grain = 0 },
		"a grain beyond the window": func(w *quota.Windows) { w.Grain = w.Length + 1 },
		"an offset below 0":         func(w *quota.Windows) { w.Offset = -1 },
		"an offset of a grain":      func(w *quota.Windows) { w.Offset = w.Grain },
	} {
		w := made(quota.SlidingWindow, 5, quota.Minute)
		if change(&w); w.Sound() {
			t.Errorf("%s: %+v is sound", name, w)
		}
	}
}

// TestMostCounted holds that a count fits that came from a limit with a larger quota, or from a
// request that cost more than it had reserved.
func TestMostCounted(t *testing.T) {
	for a, want := range map[quota.Algorithm]int64{
		quota.FixedWindow: quota.MaxUnits, quota.SlidingWindow: quota.MaxUnits, quota.SlidingLog: quota.MaxUnits,
		quota.SlidingWindowCounter: quota.MaxUnits / 2000,
	} {
		w, err := quota.NewWindows(a, 5, 2*quota.Second, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.MostCounted(); got != want {
			t.Errorf("%s counts up to %d, want %d", a, got, want)
		}
	}
}
