package wasm

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/quota"
)

// A request must ask twice if another request took the tokens that it had seen. It has one
// deadline.
func TestSecondQuestionHasNoNewDeadline(t *testing.T) {
	when := func(header string) string {
		return `"match": {"headers": [{"name": "` + header + `", "present": true}]}`
	}
	w := newWorld(t, fleet{nodes: 1, workers: 2, set: setOf(
		limits("a", "leased", "100/1h", when("x-a"), forAll, thenDeny), limits("b", "leased", "100/1h", when("x-b"),
			forAll, thenDeny))})
	w.nodes[0].Worker(0).Request(get("x-a", "1")).Cancel() // its token stays in hand
	w.advance(5 * quantum)
	w.plane.lag = func() (up, down time.Duration) { return 20 * quantum, 20 * quantum }
	both := w.request(0, 0, get("x-a", "1", "x-b", "1"))
	w.advance(5 * quantum)
	if thief := w.request(0, 1, get("x-a", "1")); !thief.passed {
		t.Fatal("there was no token in hand")
	}
	w.advance(200 * quantum)
	if !both.done || both.ended-both.sent > lateAfter+tick {
		t.Errorf("done: %v after %v, %d calls", both.done, both.ended-both.sent, w.plane.requests)
	}
	asked := 0
	for _, g := range w.plane.granted {
		asked += int(g.item.Waiting)
	}
	if asked != 3 {
		t.Errorf("asked for %d requests that waited, want 3: the test says nothing", asked)
	}
}

// Two workers race for the last tokens of two local buckets: no request passes beyond either, and
// the tokens that the loser had charged already are counted.
func TestLostRace(t *testing.T) {
	set := setOf(limits("first", "local", "100/1h"), limits("second", "local", "1/1h"))
	var w *world
	armed, raced := false, false
	w = newWorld(t, fleet{nodes: 1, workers: 2, onShared: func(vm int, op string, key []byte) {
		// Worker 0 has looked at both buckets and charges the first: now worker 1 takes the
		// second's last token.
		if armed && !raced && vm == 0 && op == "set" {
			raced = true
			if a := w.request(0, 1, get("x-key", "a")); !a.passed {
				t.Error("the faster one was refused")
			}
		}
	}})
	w.plane.push(set)
	w.advance(100 * quantum)
	armed = true
	a := w.request(0, 0, get("x-key", "a"))
	if d := w.decision(a); !raced || a.passed || d.policy != "second" || d.reason != "quota" {
		t.Errorf("raced: %v, %+v", raced, d)
	}
	if n := w.counter("charged_in_vain"); n != 1 {
		t.Errorf("%d charges in vain were counted, want 1", n)
	}
}

// Local, leased, strict and optimistic policies mixed, with several of each and keys that overlap:
// no law is broken, and few tokens are charged in vain.
func TestMixedPoliciesUnderLoad(t *testing.T) {
	w := newWorld(t, fleet{nodes: 2, workers: 2, set: setOf(
		limits("each", "local", "300/1s burst 100", thenDeny),
		limits("all", "leased", "400/1s burst 400", thenDeny, forAll),
		limits("key", "leased", "100/1s burst 200", thenDeny),
		limits("exact", "strict", "90/1s burst 150", thenDeny),
		limits("about", "optimistic", "80/1s burst 100", thenDeny),
	)})
	r := rand.New(rand.NewPCG(5, 6))
	w.plane.lag = func() (up, down time.Duration) { return millis(r, 1, 3), millis(r, 1, 3) }
	all := newLaw(t, 400, quota.Second, 400)
	keys, exact, about, each := map[string]*law{}, map[string]*law{}, map[string]*law{}, map[string]*law{}
	find := func(laws map[string]*law, name string, n, burst int64) *law {
		if laws[name] == nil {
			laws[name] = newLaw(t, n, quota.Second, burst)
		}
		return laws[name]
	}
	type sent struct {
		*attempt
		key string
	}
	var open []sent
	total := 0
	const span = 10 * time.Second
	w.run(span, func() {
		still := open[:0]
		for _, s := range open {
			if !s.done {
				still = append(still, s)
			} else if s.passed {
				all.use(s.ended, 1)
				find(keys, s.key, 100, 200).use(s.ended, 1)
				find(exact, s.key, 90, 150).use(s.ended, 1)
				find(about, s.key, 80, 150).use(s.ended, 1) // Two nodes may pass the burst by half of it.
				find(each, s.key+" on "+strconv.Itoa(s.node), 300, 100).use(s.ended, 1)
			}
		}
		open = still
		for range 1 + r.IntN(2) {
			key := string(rune('a' + r.IntN(3)*r.IntN(3)))
			open = append(open, sent{w.request(r.IntN(2), r.IntN(2), get("x-key", key)), key})
			total++
		}
	})
	all.check(t, "all")
	for what, laws := range map[string]map[string]*law{"key": keys, "exact": exact, "about": about} {
		for name, l := range laws {
			l.check(t, what+" "+name)
		}
	}
	for name, l := range each {
		l.check(t, "each "+name)
	}
	vain := w.counter("charged_in_vain")
	t.Logf("%d of %d passed, %d charged in vain; the law of all allows %.0f", all.used, total, vain, all.most(span))
	if float64(vain) > 0.1*float64(total) || float64(all.used) < 0.5*all.most(span) {
		t.Errorf("%d of %d passed, %d charged in vain", all.used, total, vain)
	}
}
