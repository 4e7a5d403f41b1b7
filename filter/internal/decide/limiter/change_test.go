package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/quota/quotatest"
)

// A limit that is eased opens a window of the new one later, also for a caller who asks all the
// time or not at all meanwhile. A refusal stores nothing else, so each began the change anew.
func TestALimitThatIsEased(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "sliding_window", "sliding_log", "fixed_window",
		"sliding_window_counter", "leaky_bucket"} {
		for _, every := range []quota.Instant{sec / 4, 10 * sec} {
			limit := func(window string) string {
				return `{"name":"p","partition":[],"mode":"local","algorithm":"` + algorithm +
					`","limit":{"quota":5,"window":"` + window + `"}}`
			}
			n := newNode(t, false, limit("1h"))
			for range 6 {
				n.begin()
			}
			n.push(2, limit("5s"))
			for left := 10 * sec; left > 0; left -= every {
				if n.now += every; left < 0 {
					break
				}
				if _, status := n.begin(); left < 5*sec && status == limiter.Refused {
					break // It used the figures that it found.
				}
			}
			n.now += 10 * sec
			if _, status := n.begin(); status == limiter.Refused {
				t.Errorf("%s, a request each %d: refused 20 s after a change to 5 in 5 s", algorithm, every)
			}
		}
	}
}

// Buckets of this node alone, over random changes of their limit: never more passes than the
// largest limit in force allows, and a caller who waits for a window of the new limit finds it
// whole. Refused requests come in between.
func TestLocalLimitsOverManyChanges(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	windows := []int64{1, 10, 60, 3600}
	for game := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, game))
		n := newNode(t, false, `{"name":"p","partition":[],"mode":"local","limit":{"quota":1,"window":"1s"}}`)
		var law quotatest.Eras
		version := uint64(1)
		algorithm := []string{"token_bucket", "sliding_log", "sliding_window"}[r.IntN(3)]
		for range 30 {
			units, window := 1+r.Int64N(40), windows[r.IntN(len(windows))]
			p, err := quota.NewParams(units, quota.Span(window)*quota.Second, units)
			if err != nil {
				t.Fatal(err)
			}
			version++
			n.push(version, fmt.Sprintf(`{"name":"p","partition":[],"mode":"local","algorithm":%q,
				"limit":{"quota":%d,"window":"%ds"}}`, algorithm, units, window))
			law.Change(n.now, p, 0)
			waits := r.IntN(3) == 0
			if waits { // Longer than a window by a grain.
				n.now += quota.Instant(window) * sec * 11 / 10
			}
			passed := int64(0)
			for range r.IntN(60) {
				if !waits {
					n.now += quota.Instant(r.Int64N(int64(sec)) * window / 40)
				}
				if _, status := n.begin(); status != limiter.Allowed {
					continue
				}
				passed++
				if over := law.Use(n.now, 1); over > 0 {
					t.Fatalf("game %d: %s: %.3f too many passed at %d in %d s", game, algorithm, over, units,
						window)
				}
			}
			if waits {
				for range 40 {
					if _, status := n.begin(); status == limiter.Allowed {
						passed++
						law.Use(n.now, 1)
					}
				}
				if passed != units {
					t.Fatalf("game %d: %s: after a window of %d in %d s %d passed", game, algorithm, units, window,
						passed)
				}
			}
		}
	}
}
