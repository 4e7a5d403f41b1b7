package wasm

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/quota/quotatest"
)

// The golden vectors through the built module: same answers, to the microsecond, as the Go code and
// the Redis script.
func TestGoldenVectors(t *testing.T) {
	quotatest.RunTokenBucket(t, func(t *testing.T, p quota.Params) quotatest.Decide {
		// The exact figures come back from quota = Num tokens in Den microseconds, which need not
		// be a whole window of the language; the vectors' rates are.
		n, window := wholeWindow(t, p)
		h := start(t, envoytest.Options{PluginConfig: alone(setOf(
			limits("vector", "local", fmt.Sprintf("%d/%s burst %d", n, window, p.Burst), forAll, costHeader)))})
		return decide(t, h, h.Monotonic())
	})
}

// decide makes calls at instants that count from zero.
func decide(t *testing.T, h *envoytest.Host, zero time.Duration) quotatest.Decide {
	return func(at quota.Instant, cost int64) (bool, int64, quota.Span) {
		h.StepMonotonicClock(zero + time.Duration(at)*time.Microsecond - h.Monotonic())
		_, s := passes(t, h, 0, get("x-cost", strconv.FormatInt(cost, 10)))
		d, ok := readDecision(t, s)
		if !ok {
			t.Fatal("there is no decision in the filter state")
		}
		switch {
		case !d.refused:
			return true, d.remaining, 0
		case d.retry < 0:
			return false, d.remaining, quota.Never
		}
		return false, d.remaining, quota.Span(d.retry)
	}
}

// The same for the algorithms that count in windows. A bucket's windows begin where its key says.
func TestGoldenVectorsOfWindows(t *testing.T) {
	quotatest.RunWindows(t, func(t *testing.T, w quota.Windows) quotatest.Decide {
		h, zero := windowed(t, w, forAll, costHeader)
		return decide(t, h, zero)
	})
}

// windowed starts a filter with one policy that counts by w, and finds an instant to come at which
// its only bucket's windows begin.
func windowed(t *testing.T, w quota.Windows, more ...string) (h *envoytest.Host, zero time.Duration) {
	t.Helper()
	more = append(more, fmt.Sprintf(`"algorithm": %q`, w.Algorithm))
	if w.Algorithm == quota.SlidingWindow {
		more = append(more, fmt.Sprintf(`"subwindows": %d`, w.Length/w.Grain))
	}
	world := newWorld(t, fleet{nodes: 1,
		set: setWith(dialectsOff, limits("vector", "local", fmt.Sprintf("%d/%ds", w.Quota, w.Length/quota.Second),
			more...))})
	var ix match.Index
	if err := ix.Load(world.plane.bytes(1)); err != nil {
		t.Fatal(err)
	}
	var matcher match.Matcher
	a := match.Attributes{Method: []byte("GET"), Path: []byte("/v1/items"), Host: []byte("api.example.com")}
	hits := matcher.Match(&ix, &a).Hits
	offset := time.Duration(ix.Limit(0).WindowsOf(hits[0].Key).Offset) * time.Microsecond
	h = world.nodes[0]
	length := time.Duration(w.Length) * time.Microsecond
	return h, offset + (h.Monotonic()/length+1)*length
}

// The same for the leaky bucket: who is delayed, by how much, and who finds no place.
func TestGoldenVectorsOfTheQueue(t *testing.T) {
	quotatest.RunQueue(t, func(t *testing.T, p quota.Params) quotatest.Enqueue {
		n, window := wholeWindow(t, p)
		places, longest := max(p.Burst-1, 1), "1h"
		if p.Burst == 1 {
			longest = "1ms" // as good as no place
		}
		h := start(t, envoytest.Options{PluginConfig: alone(setOf(limits("queue", "local",
			fmt.Sprintf("%d/%s burst %d", n, window, places),
			forAll, `"algorithm": "leaky_bucket"`, `"max_wait": "`+longest+`"`)))})
		zero := h.Monotonic()
		return func(at quota.Instant) (bool, quota.Span, quota.Span) {
			h.StepMonotonicClock(zero + time.Duration(at)*time.Microsecond - h.Monotonic())
			s := h.Worker(0).Request(get())
			d, ok := readDecision(t, s)
			if !ok || d.refused != (s.State() == envoytest.Replied) ||
				d.delayed > 0 != (s.State() == envoytest.Paused) {
				t.Fatalf("the request is %v, its decision %+v", s.State(), d)
			}
			if d.refused {
				return false, 0, quota.Span(d.retry)
			}
			return true, quota.Span(d.delayed / time.Microsecond), 0
		}
	})
}

// wholeWindow finds a quota and a window of whole seconds with p's rate.
func wholeWindow(t *testing.T, p quota.Params) (n int64, window string) {
	t.Helper()
	for seconds := int64(1); seconds <= 86400; seconds++ {
		if span := seconds * int64(quota.Second); span%p.Den == 0 {
			return span / p.Den * p.Num, strconv.FormatInt(seconds, 10) + "s"
		}
	}
	t.Fatalf("no window of whole seconds has the rate %d/%d", p.Num, p.Den)
	return 0, ""
}
