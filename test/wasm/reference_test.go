package wasm

import (
	"math/big"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/quota"
)

// reference decides by a full log of the admitted requests, without any of the filter's arithmetic.
// Times are microseconds from the beginning of a window.
type reference struct {
	algorithm            quota.Algorithm
	quota, window, grain int64
	last                 int64
	admitted             []admission
}

type admission struct{ at, n int64 }

// decide answers a request of n at a time. A clock that steps back behind the last admission stands
// still.
func (r *reference) decide(at, n int64) (allowed bool, left, retry int64) {
	now := max(at, r.last)
	live := r.admitted[:0]
	for _, a := range r.admitted {
		if a.at > now-5*r.window {
			live = append(live, a)
		}
	}
	r.admitted = live
	if left = r.room(now); n <= left {
		if n > 0 {
			r.last, r.admitted = now, append(r.admitted, admission{now, n})
		}
		return true, r.room(now), 0
	}
	if n > r.quota {
		return false, left, -1
	}
	// The first later instant with room: room only grows while no request takes.
	low, high := now, now+3*r.window
	for high-low > 1 {
		if middle := (low + high) / 2; r.room(middle) >= n {
			high = middle
		} else {
			low = middle
		}
	}
	return false, left, high - at
}

// room returns the number of whole tokens that fit at a time.
func (r *reference) room(now int64) int64 {
	left := r.quota
	weighted := new(big.Int)
	for _, a := range r.admitted {
		switch r.algorithm {
		case quota.FixedWindow:
			if a.at/r.window == now/r.window {
				left -= a.n
			}
		case quota.SlidingLog:
			if a.at > now-r.window {
				left -= a.n
			}
		case quota.SlidingWindow:
			if (a.at/r.grain+1)*r.grain-1 > now-r.window {
				left -= a.n
			}
		case quota.SlidingWindowCounter:
			switch now/r.window - a.at/r.window {
			case 0:
				left -= a.n
			case 1:
				weighted.Add(weighted, big.NewInt(a.n))
			}
		}
	}
	if r.algorithm == quota.SlidingWindowCounter {
		weighted.Mul(weighted, big.NewInt(r.window-now%r.window))
		whole, rest := weighted.QuoRem(weighted, big.NewInt(r.window), new(big.Int))
		left -= whole.Int64()
		if rest.Sign() > 0 {
			left--
		}
	}
	return max(left, 0)
}

// A quarter of a million requests to the built module, at random times and costs and with a clock
// that steps back at times, are decided as by the full log: allowed or not, the tokens left, and
// the wait to the microsecond.
func TestWindowsAgainstTheFullLog(t *testing.T) {
	const seed, operations = 7, 20_000
	for _, a := range []quota.Algorithm{quota.FixedWindow, quota.SlidingWindow, quota.SlidingWindowCounter,
		quota.SlidingLog} {
		t.Run(a.String(), func(t *testing.T) {
			w, err := quota.NewWindows(a, 40, 20*quota.Second, quota.DefaultSubwindows)
			if err != nil {
				t.Fatal(err)
			}
			h, zero := windowed(t, w, forAll, costHeader)
			r := &reference{algorithm: a, quota: w.Quota, window: int64(w.Length), grain: int64(w.Grain)}
			random := rand.New(rand.NewPCG(seed, uint64(a)))
			at, passed := int64(0), 0
			for i := range operations {
				switch random.IntN(100) {
				case 0: // a step back
					at -= min(at, random.Int64N(int64(quota.Second)))
				case 1: // a pause
					at += random.Int64N(3 * r.window)
				case 2, 3, 4: // the end of a grain or the moment after
					at += r.grain - at%r.grain - random.Int64N(2)
				default:
					at += random.Int64N(int64(quota.Second))
				}
				cost := random.Int64N(5)
				if random.IntN(50) == 0 {
					cost = random.Int64N(50)
				}
				h.StepMonotonicClock(zero + time.Duration(at)*time.Microsecond - h.Monotonic())
				_, s := passes(t, h, 0, get("x-cost", strconv.FormatInt(cost, 10)))
				d, _ := readDecision(t, s)
				allowed, left, retry := r.decide(at, cost)
				if d.refused {
					d.remaining = max(d.remaining, 0)
				} else {
					d.retry, passed = 0, passed+1
				}
				if allowed == d.refused || left != d.remaining || retry != d.retry {
					t.Fatalf("seed %d, request %d of %d at %d: %+v; the log says allowed %v, %d left, retry %d", seed,
						i, cost, at, d, allowed, left, retry)
				}
			}
			t.Logf("%d of %d passed", passed, operations)
		})
	}
}
