package wasm

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// textbook is a token bucket as textbooks have it: a level that grows with time, up to the burst.
// It shares no code with the filter. Levels are in parts of a token. A microsecond earns quota
// parts, so nothing is ever rounded.
type textbook struct {
	quota, burst int64
	window       int64 // in microseconds, and the parts of a token
	level, last  int64
}

func newTextbook(quota int64, window time.Duration, burst int64) *textbook {
	b := &textbook{quota: quota, burst: burst, window: window.Microseconds()}
	b.level = burst * b.window
	return b
}

// take answers a request of n tokens at a time in microseconds. Retry is the wait of a refused
// request, full the time to a full bucket.
func (b *textbook) take(now, n int64) (allowed bool, left, retry, full int64) {
	b.level = min(b.burst*b.window, b.level+(now-b.last)*b.quota)
	b.last = now
	if allowed = n*b.window <= b.level; allowed {
		b.level -= n * b.window
	} else {
		retry = roundUp(n*b.window-b.level, b.quota)
	}
	return allowed, b.level / b.window, retry, roundUp(b.burst*b.window-b.level, b.quota)
}

func roundUp(a, b int64) int64 { return (a + b - 1) / b }

// traffic is a pattern of requests: pause returns the time to the next request.
type traffic struct {
	name  string
	pause func(r *rand.Rand) time.Duration
}

func poisson(perSecond float64) traffic {
	return traffic{fmt.Sprintf("%v a second", perSecond), func(r *rand.Rand) time.Duration {
		return time.Duration(r.ExpFloat64() / perSecond * float64(time.Second)).Truncate(time.Microsecond)
	}}
}

// bursts returns traffic with n requests within a millisecond, again and again.
func bursts(n int, every time.Duration) traffic {
	return traffic{fmt.Sprintf("%d at once each %v", n, every), func(r *rand.Rand) time.Duration {
		if r.IntN(n) == 0 {
			return every
		}
		return time.Duration(r.IntN(1000/n)) * time.Microsecond
	}}
}

var traffics = []traffic{
	poisson(20), poisson(50), poisson(300), poisson(1000), poisson(5000),
	bursts(2, 25*time.Millisecond), bursts(3, 100*time.Millisecond), bursts(16, 40*time.Millisecond),
	bursts(64, 300*time.Millisecond),
}

// With any workers and any traffic, a local bucket is one bucket: each decision, the remaining
// tokens, the wait and the time to a full bucket agree with the textbook, to the microsecond.
func TestLocalBucketIsTheTextbooksInEveryStorm(t *testing.T) {
	const requests = 2000
	for _, workers := range []int{1, 2, 8} {
		for i, traffic := range traffics {
			t.Run(fmt.Sprint(workers, " workers, ", traffic.name), func(t *testing.T) {
				h := start(t, envoytest.Options{Workers: workers,
					PluginConfig: alone(setOf(limits("p", "local", "1000/1h", forAll, costHeader)))})
				r := rand.New(rand.NewPCG(uint64(workers), uint64(i)))
				b := newTextbook(1000, time.Hour, 1000)
				now := time.Duration(0)
				for n := range requests {
					pause := traffic.pause(r)
					h.StepMonotonicClock(pause)
					now += pause
					cost := int64(1)
					if r.IntN(20) == 0 {
						cost = r.Int64N(4)
					}
					passed, s := passes(t, h, r.IntN(workers), get("x-cost", strconv.FormatInt(cost, 10)))
					allowed, left, retry, full := b.take(now.Microseconds(), cost)
					d, _ := readDecision(t, s)
					switch limits := draft11(t, s.Reply().Header("ratelimit"))[0].params; {
					case passed != allowed, d.remaining != left:
						t.Fatalf("seed %d, request %d of cost %d: passed %v, %d left; the textbook says %v, %d", i, n,
							cost, passed, d.remaining, allowed, left)
					case !passed && d.retry != retry:
						t.Fatalf("seed %d, request %d of cost %d: retry in %d µs, the textbook says %d", i, n, cost,
							d.retry, retry)
					case passed && (limits["r"] != left || limits["t"] != roundUp(full, 1e6)):
						t.Fatalf("seed %d, request %d of cost %d: the client sees %v, the textbook says %d left, "+
							"full in %d µs", i, n, cost, limits, left, full)
					}
				}
			})
		}
	}
}

// A leased bucket of one node: when it is used up, the requests that passed are its tokens at first
// and earned since. They may differ by one token for each worker, and by the tokens earned in four
// back-offs, which an overloaded node leaves at the control plane. Answers lag behind the bucket by
// the tokens asked for or earned since the last answer: a fifth of it at most.
func TestLeasedBucketIsUsedUpInEveryStorm(t *testing.T) {
	for _, workers := range []int{1, 2, 8} {
		for i, traffic := range traffics {
			t.Run(fmt.Sprint(workers, " workers, ", traffic.name), func(t *testing.T) {
				set := setOf(limits("p", "leased", "1000/1h", forAll, thenDeny))
				w := newWorld(t, fleet{nodes: 1, workers: workers, seed: uint64(i), set: set})
				r := rand.New(rand.NewPCG(uint64(workers), uint64(i)))
				all := newLaw(t, 1000, quota.Hour, 1000)
				var passed []*attempt
				w.storm(r, 1700, traffic, func(a *attempt) {
					if a.passed {
						all.use(a.ended, 1)
						passed = append(passed, a)
					}
				})
				off := offTextbook(t, newTextbook(1000, time.Hour, 1000), passed)
				promised := int64(all.most(w.now))
				late := int64(workers) + all.params.Earned(4*lease.BackOff(all.params))
				t.Logf("%d of %d passed; r and t were up to %d tokens off", all.used, promised, off)
				if all.used < promised-late {
					t.Errorf("seed %d: %d passed, %d were promised, of which %d may come later", i, all.used, promised,
						late)
				}
				if off > 8 {
					t.Errorf("seed %d: clients heard of up to %d tokens too few or too many", i, off)
				}
				all.check(t, "a leased bucket")
			})
		}
	}
}

// offTextbook returns the largest error of the answers, in tokens of a bucket of 1000 an hour. The
// order of decisions of one instant is unknown: it takes the answer with the most tokens as the
// first.
func offTextbook(t *testing.T, b *textbook, passed []*attempt) (off int64) {
	t.Helper()
	limits := make(map[*attempt]map[string]int64, len(passed))
	for _, a := range passed {
		limits[a] = draft11(t, a.stream.Reply().Header("ratelimit"))[0].params
	}
	// A worker goes on with many requests at once: some requests of one answer end a millisecond
	// after its first requests.
	slices.SortStableFunc(passed, func(a, b *attempt) int {
		at, before := a.ended.Truncate(10*time.Millisecond), b.ended.Truncate(10*time.Millisecond)
		return cmp.Or(cmp.Compare(at, before), cmp.Compare(limits[b]["r"], limits[a]["r"]))
	})
	last := time.Duration(0)
	for _, a := range passed {
		last = max(last, a.ended)
		_, left, _, full := b.take(last.Microseconds(), 1)
		r, wait := limits[a]["r"], limits[a]["t"]
		off = max(off, left-r, r-left, (wait-full/1e6)*10/36, (full/1e6-wait)*10/36)
	}
	return off
}

// storm sends n requests to the workers of a node as they come in a traffic, and hands each attempt
// to end when it is done.
func (w *world) storm(r *rand.Rand, n int, traffic traffic, end func(*attempt)) {
	var open []*attempt
	for due := w.now; n > 0 || len(open) > 0; {
		for ; due <= w.now && n > 0; due += traffic.pause(r) {
			open = append(open, w.request(0, r.IntN(w.fleet.workers), get()))
			n--
		}
		still := open[:0]
		for _, a := range open {
			if a.done {
				end(a)
			} else {
				still = append(still, a)
			}
		}
		open = still
		w.advance(quantum)
	}
}
