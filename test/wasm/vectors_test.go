package wasm

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/quota/quotatest"
)

// The golden vectors through the built module: same answers, to the microsecond, as the Go code and the Redis script.
func TestGoldenVectors(t *testing.T) {
	quotatest.RunTokenBucket(t, func(t *testing.T, p quota.Params) quotatest.Decide {
		// The exact figures come back from quota = Num tokens in Den microseconds, which need not be a whole window of the
		// language; the vectors' rates are.
		n, window := wholeWindow(t, p)
		h := start(t, envoytest.Options{PluginConfig: alone(setOf(
			limits("vector", "local", fmt.Sprintf("%d/%s burst %d", n, window, p.Burst), forAll, costHeader)))})
		zero := h.Monotonic()
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
