package wasm

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
)

// A node has 10 000 requests a second with a thousand keys by Zipf's law, all far from their limit.
// Once it knows them hardly a request waits, and tokens come in calls for many keys.
func TestAThousandLeasedKeys(t *testing.T) {
	const perMilli, warm, measured = 10, 5 * time.Second, 5 * time.Second
	for _, c := range []struct {
		workers              int
		calls, reads, waited float64 // of 1000 requests, at most
	}{
		{1, 17, 2300, 8},
		{4, 27, 2500, 8},
	} {
		t.Run(fmt.Sprint(c.workers, " workers"), func(t *testing.T) {
			reads := 0
			w := newWorld(t, fleet{nodes: 1, workers: c.workers, keys: 65_536,
				set:      setOf(limits("p", "leased", "60000000/1m", `"partition": ["header:x-key"]`)),
				onShared: func(_ int, op string, _ []byte) { reads++ },
			})
			r := rand.New(rand.NewPCG(1, 2))
			zipf := rand.NewZipf(r, 1.0001, 1, 999)
			requests, waited, callsAt, readsAt := 0, 0, 0, 0
			w.run(warm+measured, func() {
				if w.now == warm {
					requests, waited, callsAt, readsAt = 0, 0, w.plane.requests, reads
				}
				for range perMilli {
					a := w.request(0, r.IntN(c.workers), envoytest.Request{Headers: [][2]string{
						{":method", "GET"}, {":path", "/"}, {":authority", "h"}, {"x-key", fmt.Sprint(zipf.Uint64())},
					}})
					requests++
					if !a.done {
						waited++
					}
				}
			})
			of := func(n int) float64 { return 1000 * float64(n) / float64(requests) }
			calls, shared, late := of(w.plane.requests-callsAt), of(reads-readsAt), of(waited)
			t.Logf("of 1000 requests %.1f waited, %.1f calls, %.0f accesses to shared data", late, calls, shared)
			if calls > c.calls || shared > c.reads || late > c.waited {
				t.Errorf("want at most %v waiting, %v calls, %v accesses", c.waited, c.calls, c.reads)
			}
		})
	}
}
