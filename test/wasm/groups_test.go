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

// Several limits of the control plane are asked for in one call, and the request waits one round
// trip.
func TestSeveralCentralLimitsAreOneCall(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, set: setOf(
		limits("day", "strict", "1000/24h"), limits("hour", "leased", "100/1h"),
		`{"name": "list", "mode": "strict", "partition": [], "limit": [{"quota": 5, "window": "1s"}, {"quota": 50, "window": "1m"}]}`)})
	a := w.ask(0, 0, get("x-key", "a"))
	if !a.passed || a.ended-a.sent != 2*quantum || w.plane.requests != 1 {
		t.Errorf("passed %v after %v, %d calls", a.passed, a.ended-a.sent, w.plane.requests)
	}
	if n := len(w.plane.granted); n != 4 {
		t.Fatalf("%d items", n)
	}
	for i, g := range w.plane.granted {
		if g.item.Joined != (i < 3) || g.Waiting != 1 {
			t.Errorf("item %d: %+v, granted %d", i, g.item, g.Waiting)
		}
	}
	for range 4 {
		w.ask(0, 0, get("x-key", "a"))
	}
	a = w.ask(0, 0, get("x-key", "a"))
	if d := w.decision(a); a.passed || d.policy != "list" || d.reason != "quota" || d.retry <= 0 {
		t.Errorf("the sixth in a second: %+v", d)
	}
	for _, it := range draft11(t, a.stream.Reply().Header("ratelimit")) {
		if it.name == "day" && it.params["r"] != 995 {
			t.Errorf("day has %d left, want 995", it.params["r"])
		}
	}
}

// A request is charged in all its central buckets or in none, whatever is lost on the way: what the
// control plane charged beyond what passed is at most what it granted in answers that were lost.
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
			for _, it := range w.plane.grant(0, req).Items {
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

// While another limit refuses again and again, a request that is lost in between costs nothing
// twice: the control plane's books are those of whole groups.
func TestGroupsAreGrantedWhole(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 2,
		set: setOf(limits("wide", "strict", "1000/1h", forAll), limits("narrow", "strict", "5/1s"))})
	r := rand.New(rand.NewPCG(1, 1))
	for range 400 {
		w.request(0, r.IntN(2), get("x-key", strconv.Itoa(r.IntN(3))))
		w.advance(time.Duration(r.IntN(5)) * quantum)
	}
	w.advance(100 * quantum)
	g := w.plane.granted
	groups := 0
	for i := 0; i < len(g); i++ {
		whole := g[i].Waiting
		for g[i].item.Joined {
			if i++; g[i].Waiting != whole {
				t.Fatalf("item %d was granted without the other", i)
			}
			groups++
		}
	}
	if groups < 20 {
		t.Errorf("%d groups", groups)
	}
}
