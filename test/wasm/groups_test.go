package wasm

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// A request is charged in all its central buckets or in none, whichever messages are lost: the
// control plane's charges beyond the requests that passed are at most its grants in lost answers.
func TestGroupsAllOrNothing(t *testing.T) {
	const seed = 11
	w := newWorld(t, fleet{nodes: 2, workers: 2, set: setOf(
		limits("all", "strict", "300/1s burst 100", forAll, thenDeny),
		limits("key", "strict", "80/1s burst 20", thenDeny),
		limits("log", "strict", "60/1s", thenDeny, `"algorithm": "sliding_log"`, `"partition": ["header:x-log"], "if_absent": "skip"`))})
	r := rand.New(rand.NewPCG(seed, 2))
	lost := 0
	w.plane.lag = func() (up, down time.Duration) { return millis(r, 1, 4), millis(r, 1, 4) }
	w.plane.lease = func(c *envoytest.Call, req wire.LeaseRequest) bool {
		if r.IntN(10) > 0 {
			return false
		}
		if r.IntN(2) == 0 { // The request arrives, the reply does not.
			for _, it := range w.plane.Grant(0, req).Items {
				lost += int(it.Waiting)
			}
		}
		return true
	}
	all, keys := newLaw(t, 300, quota.Second, 100), map[string]*law{}
	type sent struct {
		*attempt
		key    string
		logged bool
	}
	var open []sent
	var logged []time.Duration
	passed, parts, cancelled, failed := 0, 0, 0, 0
	w.run(10*time.Second, func() {
		still := open[:0]
		for _, s := range open {
			switch {
			case !s.done && r.IntN(100) == 0:
				s.stream.Cancel()
				s.done = true
				cancelled++
			case !s.done:
				still = append(still, s)
			case s.passed:
				passed++
				parts += 2
				all.use(s.ended, 1)
				if keys[s.key] == nil {
					keys[s.key] = newLaw(t, 80, quota.Second, 20)
				}
				keys[s.key].use(s.ended, 1)
				if s.logged {
					parts++
					logged = append(logged, s.ended)
				}
			case w.decision(s.attempt).reason == "failure":
				failed++
			}
		}
		open = still
		for range r.IntN(3) {
			key := strconv.Itoa(r.IntN(4))
			request, log := get("x-key", key), r.IntN(3) == 0
			if log {
				request = get("x-key", key, "x-log", "1")
			}
			open = append(open, sent{w.request(r.IntN(2), r.IntN(2), request), key, log})
		}
	})
	all.check(t, "all")
	for key, l := range keys {
		l.check(t, "key "+key)
	}
	for i := 60; i < len(logged); i++ {
		if logged[i]-logged[i-60] < time.Second {
			t.Fatalf("seed %d: 61 of the log within %v", seed, logged[i]-logged[i-60])
		}
	}
	charged := 0
	for _, g := range w.plane.granted {
		charged += int(g.Waiting)
	}
	t.Logf("%d passed, %d of the log, %d failed, %d went away; %d charged for %d used, %d lost", passed, len(logged),
		failed, cancelled, charged, parts, lost)
	if charged > parts+lost+3*(cancelled+failed) {
		t.Errorf("seed %d: %d charged for %d used and %d lost", seed, charged, parts, lost)
	}
	if passed < 1000 || failed < 20 || lost < 20 {
		t.Errorf("seed %d: %d passed, %d failed, %d lost: the test says little", seed, passed, failed, lost)
	}
}
