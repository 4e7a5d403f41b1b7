package wasm

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"
)

// answered has the facts about a client's bucket in one answer.
type answered struct {
	at        time.Duration
	node      int
	passed    bool
	remaining int64
	// fullAt is when the bucket is full by the answer to a request that passes, to the millisecond;
	// seconds is the draft's t.
	fullAt, wait time.Duration
	seconds      int64
}

// client is a client that goes from node to node in turn, alone.
type client struct {
	t    *testing.T
	w    *world
	seen []answered
}

// ask sends a request of a cost, and checks that the headers of the answer agree.
func (c *client) ask(cost int) answered {
	c.t.Helper()
	node := len(c.seen) % len(c.w.nodes)
	a := c.w.ask(node, 0, get("x-cost", strconv.Itoa(cost)))
	r := a.stream.Reply()
	got := answered{at: c.w.now, node: node, passed: a.passed}
	reset, err := strconv.ParseFloat(r.Header("x-ratelimit-reset-after"), 64)
	if err != nil {
		c.t.Fatalf("%v: %v in %v", c.w.now, err, r.Headers)
	}
	if got.passed {
		got.fullAt = c.w.now + time.Duration(math.Round(reset*1000))*time.Millisecond
	}
	item := draft11(c.t, r.Header("ratelimit"))[0]
	got.remaining, got.seconds = item.params["r"], item.params["t"]
	if !got.passed {
		retry, body := integer(c.t, r, "retry-after"), problem(c.t, r)
		got.wait = time.Duration(retry) * time.Second
		if got.seconds != retry || body.RetryAfter != retry || reset != float64(retry) {
			c.t.Errorf("%v: Retry-After %d, t %d, reset after %v, %d in the body", c.w.now, retry, got.seconds, reset,
				body.RetryAfter)
		}
		if got.remaining >= int64(cost) {
			c.t.Errorf("%v: refused at a cost of %d, with %d left", c.w.now, cost, got.remaining)
		}
	} else if want := int64(math.Ceil(reset)); got.seconds != want {
		c.t.Errorf("%v: t is %d, the reset %v s", c.w.now, got.seconds, reset)
	}
	c.seen = append(c.seen, got)
	return got
}

// neverBack holds that no reset steps back: between all nodes, or on each where they do not know of
// each other's.
func (c *client) neverBack(each bool) {
	c.t.Helper()
	last := map[int]time.Duration{}
	for _, a := range c.seen {
		if !a.passed {
			continue
		}
		node := 0
		if each {
			node = a.node
		}
		if a.fullAt < last[node]-time.Millisecond { // It is rounded to a millisecond.
			c.t.Errorf("at %v node %d says that the bucket is full at %v, it was %v before", a.at, a.node, a.fullAt,
				last[node])
		}
		last[node] = max(last[node], a.fullAt)
	}
}

// A client alone that waits for the time in the answer passes, with each algorithm, mode and cost,
// on one Envoy and on two in turn. No refusal asks for a longer wait: a request that comes a second
// and a tenth of the wait earlier is refused again. The reset in the answer is the algorithm's own,
// never steps back, and true: then the bucket is full.
func TestAClientThatWaitsAsAskedPasses(t *testing.T) {
	for _, c := range []struct {
		algorithm string
		modes     []string
	}{
		{"token_bucket", []string{"local", "leased", "strict", "optimistic"}},
		{"fixed_window", []string{"local", "leased", "strict"}},
		{"sliding_window", []string{"local", "leased", "strict"}},
		{"sliding_window_counter", []string{"local", "strict"}},
		{"sliding_log", []string{"local", "leased", "strict"}},
	} {
		for _, mode := range c.modes {
			for nodes := 1; nodes <= 2; nodes++ {
				if (mode == "local" || mode == "optimistic") && nodes > 1 {
					continue // Each has its own bucket, or does not know the other's use yet.
				}
				t.Run(fmt.Sprint(c.algorithm, " ", mode, " ", nodes),
					func(t *testing.T) { lifecycle(t, c.algorithm, mode, nodes) })
			}
		}
	}
}

func lifecycle(t *testing.T, algorithm, mode string, nodes int) {
	const quota, window = 5, 4 * time.Second
	w := newWorld(t, fleet{nodes: nodes, set: setWith(`"headers": {"legacy": "discord"}`,
		limits("p", mode, "5/4s", forAll, costHeader, thenDeny, `"algorithm": "`+algorithm+`"`))})
	c := &client{t: t, w: w}
	for round := range 6 {
		cost, begun := 1+round%3, len(c.seen)
		for a := c.ask(1); a.passed; a = c.ask(cost) {
			if len(c.seen) > begun+40 {
				t.Fatal("nothing is refused")
			}
			w.advance(130 * time.Millisecond)
		}
		for again := range 4 {
			last := c.seen[len(c.seen)-1]
			// A second is rounded up, a tenth is the spread, and leases last for 200 ms.
			if early := last.wait - last.wait/10 - 1300*time.Millisecond; early > 0 && again%2 == 1 {
				w.advance(early)
				if last = c.ask(cost); last.passed {
					t.Fatalf("round %d: at %v a cost of %d passed %v before it should", round, w.now, cost, last.wait)
				}
			}
			if w.advance(last.wait); !c.ask(cost).passed {
				t.Errorf("round %d: at %v a cost of %d waited for %v, as asked, and was refused again (%d)", round,
					w.now, cost, last.wait, again)
			}
			for range nodes { // The next one is refused, or waits for its own refill.
				if a := c.ask(cost); !a.passed {
					break
				}
			}
			if c.seen[len(c.seen)-1].passed {
				break
			}
		}
		full := c.seen[len(c.seen)-1].fullAt
		for _, a := range c.seen {
			full = max(full, a.fullAt)
		}
		if full-w.now > 2*window+window/2 {
			t.Errorf("at %v the bucket is said to be full at %v", w.now, full)
		}
		w.advance(full - w.now)
		if a := c.ask(1); !a.passed || a.remaining != quota-1 {
			t.Errorf("round %d: at the reset %d are left after one request, of %d: %+v", round, a.remaining, quota, a)
		}
	}
	c.neverBack(mode != "strict")
}

// Fixed windows name one end, until it comes.
func TestAFixedWindowHasOneEnd(t *testing.T) {
	for _, mode := range []string{"local", "leased", "strict"} {
		w := newWorld(t, fleet{nodes: 1, set: setWith(`"headers": {"legacy": "discord"}`,
			limits("p", mode, "8/10s", forAll, thenDeny, `"algorithm": "fixed_window"`))})
		r := uint64(7)
		w.plane.lag = func() (up, down time.Duration) {
			r = r*6364136223846793005 + 1
			return time.Duration(1+r>>62) * quantum, time.Duration(1+r>>60&15) * quantum
		}
		c := &client{t: t, w: w}
		for range 60 {
			c.ask(1)
			w.advance(470 * time.Millisecond)
		}
		before := c.seen[0]
		for _, a := range c.seen[1:] {
			if !a.passed {
				if end := a.at + a.wait; end < before.fullAt-60*time.Millisecond || end > before.fullAt+2*time.Second {
					t.Errorf("%s: at %v a wait of %v, the window ends at %v", mode, a.at, a.wait, before.fullAt)
				}
				continue
			}
			if a.at < before.fullAt-60*time.Millisecond && a.fullAt != before.fullAt {
				t.Errorf("%s: at %v the window ends at %v, at %v it was %v", mode, a.at, a.fullAt, before.at,
					before.fullAt)
			}
			if a.at >= before.fullAt && a.fullAt-before.fullAt > 10*time.Second+100*time.Millisecond {
				t.Errorf("%s: after the window that ends at %v comes a window that ends at %v", mode,
					before.fullAt, a.fullAt)
			}
			before = a
		}
	}
}

// In a window of a day the reset is hours away, not as far as a token bucket of the same figures is
// from full.
func TestTheResetOfALongWindow(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_log", "sliding_window"} {
		left := map[string]int64{}
		for _, mode := range []string{"local", "strict", "leased"} {
			h := newWorld(t, fleet{nodes: 1, set: setOf(limits("p", mode, "100/1d", forAll, `"algorithm": "`+algorithm+`"`))})
			a := h.ask(0, 0, get())
			left[mode] = draft11(t, a.stream.Reply().Header("ratelimit"))[0].params["t"]
		}
		if algorithm != "fixed_window" && (left["strict"] < 86_400 || left["strict"] > 86_400*11/10+1) {
			t.Errorf("%s: %v", algorithm, left)
		}
		for mode, seconds := range left {
			if seconds < 900 || algorithm == "fixed_window" && seconds > 86_401 {
				t.Errorf("%s %s: full in %d s", algorithm, mode, seconds)
			}
		}
	}
}
