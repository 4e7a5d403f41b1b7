package wasm

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/test/linear"
)

// eights are buckets of 8 with 8 tokens a second: one earns a token in 125,000 µs.
const eightASecond = "8/1s"

var eights = linear.Buckets(1, 125_000, 8)

// crowd has three workers of one node take tokens of the same buckets at once, in the order that
// the seed chooses, with the clock standing still or moving at any access to shared data. Cas is a
// planted bug, nil for none.
func crowd(t *testing.T, seed uint64, moving bool, cas func(uint32) uint32) (*linear.History, []envoytest.Step) {
	t.Helper()
	const workers, each, keys = 3, 4, 2
	r := rand.New(rand.NewPCG(seed, 1))
	var h *envoytest.Host
	clock := []int64{0} // Every instant there has been, in µs.
	opt := envoytest.Options{Workers: workers, Seed: seed, Cas: cas,
		PluginConfig: alone(setOf(limits("p", "local", eightASecond, costHeader, thenDeny)))}
	running := false
	opt.OnShared = func(int, string, []byte) {
		if moving && running && r.IntN(3) == 0 {
			d := 1 + r.Int64N(400_000)
			h.StepMonotonicClock(time.Duration(d) * time.Microsecond)
			clock = append(clock, clock[len(clock)-1]+d)
		}
	}
	h = start(t, opt)
	running = true
	history := &linear.History{}
	var functions []func()
	for w := range workers {
		functions = append(functions, func() {
			for range each {
				take := linear.Take{Key: r.IntN(keys), Cost: 1 + r.Int64N(4)}
				from, called := len(clock)-1, history.Begin()
				_, s := passes(t, h, w, get("x-key", fmt.Sprint(take.Key), "x-cost", strconv.FormatInt(take.Cost, 10)))
				d, ok := readDecision(t, s)
				if !ok {
					t.Errorf("seed %d: a request without a decision is %v", seed, s.State())
				}
				take.Nows = append([]int64(nil), clock[from:]...)
				history.End(w, called, take,
					linear.Taken{Allowed: !d.refused, Remaining: d.remaining, Contended: d.reason == "contended"})
			}
		})
	}
	steps := h.Interleave(seed, functions...)
	h.Close()
	return history, steps
}

// Whatever worker goes on at whatever host call, each request sees its bucket as if it were alone
// with it.
func TestInterleavedWorkersAreLinearizable(t *testing.T) {
	operations, steps := 0, 0
	for seed := range uint64(200) {
		for _, moving := range []bool{false, true} {
			h, run := crowd(t, seed, moving, nil)
			if !h.Linearizable(t, eights) {
				t.Fatalf("seed %d, time moves: %v: no order explains\n%v", seed, moving, h)
			}
			operations += h.Len()
			steps += len(run)
		}
	}
	t.Logf("%d requests, %d host calls", operations, steps)
}

// One seed is one run, to the last host call and answer; a different seed is a different run.
func TestOneSeedIsOneRun(t *testing.T) {
	runs := map[string]bool{}
	for seed := range uint64(10) {
		text := func() string {
			h, steps := crowd(t, seed, true, nil)
			return fmt.Sprint(steps, h)
		}
		first := text()
		runs[first] = true
		if again := text(); again != first {
			t.Errorf("seed %d: two runs differ:\n%s\n%s", seed, first, again)
		}
	}
	if len(runs) != 10 {
		t.Errorf("10 seeds gave %d runs", len(runs))
	}
}

// The tests above notice planted bugs.
func TestPlantedBugsOfWorkersAreNotLinearizable(t *testing.T) {
	const putIfAbsent = 0xffffffff
	for _, c := range []struct {
		name string
		cas  func(uint32) uint32
	}{
		{"a bucket is created regardless of another bucket", func(cas uint32) uint32 {
			if cas == putIfAbsent {
				return 0
			}
			return cas
		}},
		{"an update is written regardless of another update", func(uint32) uint32 { return 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			const tries = 200
			for seed := range uint64(tries) {
				if h, _ := crowd(t, seed, false, c.cas); !h.Linearizable(t, eights) {
					t.Logf("found by seed %d", seed)
					return
				}
			}
			t.Errorf("not found in %d runs", tries)
		})
	}
}
