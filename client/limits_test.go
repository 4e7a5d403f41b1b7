//go:build !race

package client

import (
	"cmp"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/quota"
)

// oracle returns the number of requests that an ideal client sends during a time: it knows the
// bucket, and sends each request at the first instant at which the request passes.
func oracle(b bucket, during time.Duration, delay time.Duration) (passed int64) {
	b.history.Marks = nil
	for now, end := quota.Instant(0), quota.Instant(during/time.Microsecond); now < end; {
		result, _, _ := b.take(now)
		if !result.Allowed {
			now += quota.Instant(result.RetryAfter)
			continue
		}
		passed++
		now += quota.Instant(delay / time.Microsecond)
	}
	return passed
}

// A client that sends as fast as its Transport lets it is never refused, and sends at least 95 % of
// the oracle's requests.
func TestAGreedyClientIsNeverRefused(t *testing.T) {
	for _, c := range limits {
		for _, workers := range []int{1, 4} {
			for _, legacy := range []bool{false, true} {
				name := fmt.Sprintf("%s/%d per %s burst %d, %d at once, legacy %t",
					c.algorithm, c.quota, c.window, c.burst, workers, legacy)
				during := c.window * time.Duration(c.windows)
				least := cmp.Or(c.least, 0.95)
				inVirtualTime(t, name, func(t *testing.T) {
					s := newServer(t, c.algorithm, c.quota, c.window, c.burst)
					s.legacy = legacy
					best := oracle(*s.bucket, during, s.delay)
					sendGreedily(t, s, during, workers)
					if share := float64(s.passed) / float64(best); s.refused > 0 || share < least {
						t.Errorf("%d of %d passed, %.1f %%, %d were refused; want none and %.0f %%",
							s.passed, best, 100*share, s.refused, 100*least)
					}
				})
			}
		}
	}
}

// A program that sends 95 % of its quota at the beginning of each window is never refused, and all
// of its requests are sent.
func TestBurstsOf95PercentAreNeverRefused(t *testing.T) {
	for _, c := range limits {
		inVirtualTime(t, fmt.Sprintf("%s/%d per %s burst %d", c.algorithm, c.quota, c.window, c.burst),
			func(t *testing.T) {
				s := newServer(t, c.algorithm, c.quota, c.window, c.burst)
				transport := newTransport(s, Options{MaxWait: 24 * time.Hour}, 1)
				get(t, transport)
				var wg sync.WaitGroup
				offered := int64(1)
				for range c.windows {
					for range c.quota * 95 / 100 {
						offered++
						wg.Go(func() { get(t, transport) })
					}
					time.Sleep(c.window)
				}
				wg.Wait()
				if s.refused > 0 || s.passed != offered {
					t.Errorf("%d of %d passed, %d were refused", s.passed, offered, s.refused)
				}
			})
	}
}
