package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/quota"
)

// seen are the outcomes of trials.
type seen struct{ allowed, refused, undetermined uint64 }

func (n *node) shadows() seen {
	s := &n.limiter.Stats
	return seen{s.ShadowAllowed, s.ShadowRefused, s.ShadowUndetermined}
}

// A policy in shadow asks in the background: it counts the requests that it would have refused, no
// request waits, and all trials that come while a call is under way share the next call.
func TestTrialsAskInTheBackground(t *testing.T) {
	for _, mode := range []string{"leased", "strict"} {
		n := newNode(t, true, `{"name":"p","partition":[],"mode":"`+mode+`","limit":{"quota":5,"window":"1m"},"enforcement":"shadow"}`)
		begin := func(requests int) {
			for range requests {
				if _, status := n.begin(); status != limiter.Unlimited {
					t.Fatal(status)
				}
			}
		}
		begin(300)
		if len(n.calls) != 1 || n.rules.Paused != 300 {
			t.Errorf("%s: %d calls are under way, %d trials wait", mode, len(n.calls), n.rules.Paused)
		}
		calls := 0
		for ; len(n.calls) > 0; calls++ {
			n.answerOne(200)
		}
		begin(10)
		if got := n.shadows(); got != (seen{5, 305, 0}) || calls > 3 || len(n.calls) > 0 || n.rules.Paused != 0 {
			t.Errorf("%s: %+v after %d calls and %d", mode, got, calls, len(n.calls))
		}
		s := &n.limiter.Stats
		if s.Unlimited != 310 || s.Allowed+s.Refused+s.Waited+s.Unanswered+s.TooManyWaiting+s.ChargedInVain != 0 {
			t.Errorf("%s: a trial counts as decided: %+v", mode, *s)
		}
	}
}

// answerOne lets the oldest call end with a status.
func (n *node) answerOne(status int) {
	call := n.calls[0]
	n.calls = n.calls[1:]
	call(status)
	n.limiter.SettleTrials(n.now)
}

// An answer that is too late for a request is still an answer for a trial. Without an answer the
// trial is undetermined.
func TestALateAnswerSettlesATrial(t *testing.T) {
	for _, c := range []struct {
		after  quota.Instant
		status int
		want   seen
	}{
		{200 * millisecond, 200, seen{5, 5, 0}},
		{200 * millisecond, 504, seen{0, 0, 10}},
		{249 * millisecond, 200, seen{5, 5, 0}},
	} {
		n := newNode(t, true, `{"name":"p","partition":[],"mode":"strict","limit":{"quota":5,"window":"1h"},"enforcement":"shadow"}`)
		for range 10 {
			n.begin()
		}
		for range 2 {
			for end := n.now + c.after; n.now < end; n.now += millisecond {
				n.leases.Tick(n.now)
			}
			if len(n.calls) > 0 {
				n.answerOne(c.status)
			}
		}
		for range 200 {
			n.now += 10 * millisecond
			n.leases.Tick(n.now)
			n.limiter.SettleTrials(n.now)
		}
		if got := n.shadows(); got != c.want || n.rules.Paused != 0 {
			t.Errorf("%d after %d ms: %+v, %d wait", c.status, c.after/millisecond, got, n.rules.Paused)
		}
	}
}

// Trials never take the places of waiting requests: the maximum of these is the same as without
// trials.
func TestTrialsDoNotCrowdOutRequests(t *testing.T) {
	n := newNode(t, true, `
		{"name":"tried","match":{"paths":["/"]},"partition":["header:x-k"],"mode":"strict","limit":{"quota":1,"window":"1h"},"enforcement":"shadow"},
		{"name":"held","partition":["header:x-wait"],"mode":"strict","limit":{"quota":1,"window":"1h"}}`)
	for i := range 3000 {
		if _, status := n.begin("x-k", fmt.Sprint(i)); status != limiter.Unlimited {
			t.Fatal(status)
		}
	}
	for i := range 1024 {
		if _, status := n.begin("x-wait", fmt.Sprint(i)); status != limiter.Paused {
			t.Fatalf("request %d: %v", i, status)
		}
	}
	if _, status := n.begin("x-wait", "one more"); status == limiter.Paused {
		t.Error("more wait than may")
	}
	if got := n.shadows(); got.undetermined == 0 || n.limiter.Stats.TooManyWaiting != 1 {
		t.Errorf("%+v, %d too many", got, n.limiter.Stats.TooManyWaiting)
	}
}

// A trial that has waited for a place holds it for the duration of its request, from the moment at
// which it got the place: so trials behind it wait as they would if the policy were enforced.
func TestATrialThatWaitsForAPlace(t *testing.T) {
	n := newNode(t, false, `{"name":"p","partition":[],"mode":"local","limit":{"in_flight":1},"max_wait":"1s","enforcement":"shadow"}`)
	let := func(span quota.Instant) {
		for end := n.now + span; n.now < end; {
			n.now += 10 * millisecond
			n.limiter.Release(n.now, 9)
			n.book.Tick(n.now)
			n.limiter.SettleTrials(n.now)
		}
	}
	last := func() { // A request that lasts 600 ms.
		t.Helper()
		req, status := n.begin()
		if status != limiter.Unlimited || !req.Lasting {
			t.Fatal(status, req.Lasting)
		}
		let(600 * millisecond)
		n.end(req)
	}
	last() // It has the place up to 0.6 s.
	first, _ := n.begin()
	let(100 * millisecond)
	second, _ := n.begin() // It waits for the place that first holds up to 1.2 s.
	let(500 * millisecond)
	n.end(first)
	let(100 * millisecond)
	n.end(second)
	let(2 * sec)
	if got := n.shadows(); got != (seen{3, 0, 0}) {
		t.Errorf("%+v", got)
	}
	third, _ := n.begin() // It lasts 900 ms.
	let(100 * millisecond)
	fourth, _ := n.begin() // It waits 800 ms for that place, lasts 300 ms, and holds the place for 300 ms.
	let(300 * millisecond)
	n.end(fourth)
	let(500 * millisecond)
	n.end(third)
	let(200 * millisecond)
	if req, _ := n.begin(); !req.Lasting { // The fourth is 200 ms into its time: this one waits.
		t.Error("it does not wait")
	} else if got := n.shadows(); got != (seen{5, 0, 0}) {
		t.Errorf("%+v", got)
	} else {
		n.end(req)
	}
	let(200 * millisecond)
	if got := n.shadows(); got != (seen{6, 0, 0}) {
		t.Errorf("%+v", got)
	}
}

// A trial's reservation is settled once, whether the grant or the response comes first. A refused
// trial's reservation is not settled.
func TestTrialsReserveAndSettle(t *testing.T) {
	for _, answeredFirst := range []bool{true, false} {
		n := newNode(t, true, `{"name":"p","partition":[],"mode":"strict","limit":{"quota":10,"window":"1h"},"enforcement":"shadow",
			"cost":{"reserve":8,"commit":{"header":"x-spent"}}}`)
		var settled []int64
		let := func() {
			for len(n.calls) > 0 {
				for _, it := range n.asked {
					if it.Nth > 0 {
						settled = append(settled, it.Actual)
					}
				}
				n.answerOne(200)
			}
		}
		for range 2 { // The second finds 2 of 8.
			req, _ := n.begin()
			if !req.Lasting {
				t.Fatal("the request does not last")
			}
			if !answeredFirst {
				let()
			}
			n.limiter.SettleHead(req, answer{"x-spent": "2"}, n.now)
			let()
			n.leases.Tick(n.now)
			let()
		}
		if got := n.shadows(); got != (seen{1, 1, 0}) || len(settled) != 1 || settled[0] != 2 {
			t.Errorf("answered first: %v: %+v, settled %v", answeredFirst, got, settled)
		}
	}
}

// A burst of many costs at one bucket is settled by the answers, also where the node would like to
// keep tokens that the bucket has not: it asks for them, and does not wait for an answer that no
// call can bring.
func TestABurstOfManyCostsIsSettled(t *testing.T) {
	seed := rand.Uint64()
	for game := range 100 {
		r := rand.New(rand.NewPCG(seed, uint64(game)))
		n := newNode(t, true, `{"name":"p","partition":[],"limit":{"quota":20,"window":"1h"},"enforcement":"shadow",
			"cost":{"header":"x-cost","max":100}}`)
		calls, requests := 0, 0
		for range 8 {
			for range 1 + r.IntN(60) {
				n.begin("x-cost", strconv.Itoa(1+r.IntN(20)))
				requests++
			}
			for range 1 + r.IntN(30) {
				n.now += 10 * millisecond
				n.leases.Tick(n.now)
				for range len(n.calls) { // The others take a tick.
					calls++
					n.answerOne(200)
				}
			}
		}
		if got := n.shadows(); got.undetermined > 0 || calls > requests {
			t.Fatalf("seed %d: game %d: %+v, %d calls for %d requests", seed, game, got, calls, requests)
		}
	}
}
