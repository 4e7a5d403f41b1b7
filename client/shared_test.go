//go:build !race

package client

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/quota"
)

// Processes that share a key learn of each other only from the answers. Each sends as fast as its
// own client lets it. In a window, about one request of each process is refused, and most of the
// quota is used.
func TestProcessesThatShareAKey(t *testing.T) {
	for _, a := range []quota.Algorithm{quota.TokenBucket, quota.FixedWindow, quota.SlidingWindow, quota.SlidingLog} {
		for _, processes := range []int{2, 5, 20} {
			inVirtualTime(t, fmt.Sprintf("%s/%d", a, processes), func(t *testing.T) {
				const during = 20 * time.Minute
				s := newServer(t, a, 200, time.Minute, 200)
				best := oracle(*s.bucket, during, s.delay/time.Duration(processes))
				var wg sync.WaitGroup
				for i := range processes {
					transport := newTransport(s, Options{MaxWait: time.Hour, Retries: 100}, uint64(i))
					wg.Go(func() {
						for time.Since(s.start) < during {
							if get(t, transport) != http.StatusOK {
								time.Sleep(time.Second)
							}
						}
					})
				}
				wg.Wait()
				if most := int64(processes) * 20 * 3 / 2; s.refused > most || 100*s.passed < 85*best {
					t.Errorf("%d of %d passed, %d were refused; want 85 %% and at most %d", s.passed, best, s.refused,
						most)
				}
			})
		}
	}
}
