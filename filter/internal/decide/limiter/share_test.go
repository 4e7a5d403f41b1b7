package limiter_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/quota"
)

// passes sends requests, whose calls fail, until one is refused, and returns how many passed; at
// most most.
func (n *node) passes(most int, headers ...string) (passed int, refused *limiter.Request) {
	n.t.Helper()
	for range most {
		req, status := n.begin(headers...)
		if status == limiter.Paused {
			status = n.answer(503, req)
		}
		if status != limiter.Allowed {
			return passed, req
		}
		passed++
	}
	return passed, nil
}

// spendAll uses tokens while the control plane answers.
func (n *node) spendAll(tokens int, headers ...string) {
	n.t.Helper()
	for range tokens {
		req, status := n.decide(headers...)
		if status != limiter.Allowed {
			n.t.Fatalf("with the control plane: %v (%v)", status, req.Reason)
		}
	}
}

// recover has the control plane answer again, until requests ask it.
func (n *node) recover() {
	n.t.Helper()
	for range 3 {
		n.now += 2 * sec
		n.leases.Tick(n.now)
		for _, call := range n.calls {
			call(200)
		}
		n.calls = nil
	}
}

const shares = `{"name":"p","partition":["header:x-k"],"limit":{"quota":100,"window":"1h"},"mode":"strict","on_failure":{"then":"local"}}`

// To enter the share again does not fill it, and neither does the share refill by more than its
// rate while it is not needed. Where the bucket is known to hold less by now it starts with that.
func TestEnteringTheShareAgainDoesNotFillIt(t *testing.T) {
	n := newNode(t, true, shares)
	n.spendAll(1, "x-k", "other")
	if passed, _ := n.passes(200, "x-k", "a"); passed != 50 {
		t.Fatalf("at first %d pass", passed)
	}
	n.recover()
	if passed, _ := n.passes(200, "x-k", "a"); passed != 0 {
		t.Errorf("the second time %d pass", passed)
	}
	n.recover()
	n.now += 12 * 60 * sec // The share earns 10 in that time.
	if passed, _ := n.passes(200, "x-k", "a"); passed != 10 {
		t.Errorf("12 minutes later %d pass, want 10", passed)
	}
	n.recover()
	n.now += 60 * 60 * sec
	n.spendAll(95, "x-k", "a")
	if passed, _ := n.passes(200, "x-k", "a"); passed != 5 {
		t.Errorf("with 5 left at the control plane %d pass", passed)
	}
}

// late makes the oldest call take longer than the request waits, and the request goes on by its
// share. Its answer comes 100 ms later, or never: then the control plane has not charged it.
func (n *node) late(req *limiter.Request, charged bool) limiter.Status {
	n.t.Helper()
	call := n.calls[0]
	n.calls = n.calls[1:]
	n.tick(50)
	status := n.limiter.Resume(req, n.now)
	n.tick(100)
	if charged {
		call(200)
	} else {
		call(0)
	}
	return status
}

// tick lets a number of milliseconds pass.
func (n *node) tick(ms quota.Instant) {
	n.now += ms * quota.Instant(quota.Millisecond)
	n.leases.Tick(n.now)
}

// answerAll answers the calls in which no request waits.
func (n *node) answerAll() {
	for len(n.calls) > 0 {
		call := n.calls[0]
		n.calls = n.calls[1:]
		call(200)
	}
}

// A control plane that answers every second call too late admits the same requests as a control
// plane that answers in time: tokens from the share are charged once, whether the late call was
// charged or not.
func TestLateCallsPassNoMoreThanTheLimit(t *testing.T) {
	for _, c := range []struct {
		mode    string
		charged bool
	}{
		{"leased", true}, {"leased", false}, {"strict", true}, {"strict", false},
	} {
		n := newNode(t, true, `{"name":"p","partition":[],"limit":{"quota":100,"window":"1h"},"mode":"`+c.mode+`"}`)
		n.plane.Nodes = 1
		start := n.now
		passed, lateOnes := 0, 0
		for range 300 {
			req, status := n.begin()
			if status == limiter.Paused {
				if lateOnes++; lateOnes%2 == 0 {
					status = n.late(req, c.charged)
				} else {
					status = n.answer(200, req)
				}
			}
			if status == limiter.Allowed {
				passed++
			}
			n.answerAll()
		}
		most := 100 + int((n.now-start)/(36*sec)) // The tokens that the limit earns meanwhile.
		if passed > most || passed < 100 {
			t.Errorf("%s, late calls charged %v: %d pass, want 100 to %d", c.mode, c.charged, passed, most)
		}
	}
}

// Tokens that a caller used within the rate of its share while the control plane was away are not
// charged when it is back: the bucket has earned them meanwhile.
func TestAnOutageWithinTheRateIsNotCharged(t *testing.T) {
	n := newNode(t, true, `{"name":"p","partition":[],"limit":{"quota":100,"window":"1h"},"mode":"strict","on_failure":["share"]}`)
	n.spendAll(1)
	for range 13 { // An hour, at a fourth of the share of two nodes.
		if passed, refused := n.passes(1); passed != 1 {
			t.Fatalf("within its share: %+v", refused)
		}
		n.now += 4 * 2 * 36 * sec
	}
	n.recover()
	n.spendAll(100)
	if passed, _ := n.passes(1); passed != 0 {
		t.Error("more than the burst passed")
	}
}

// readLate makes a request whose answer comes in time, and lets it go on when that is over.
func (n *node) readLate() (*limiter.Request, limiter.Status) {
	req, _ := n.begin()
	n.now += 48 * ms
	n.answerAll()
	n.now += 2 * ms
	return req, n.limiter.Resume(req, n.now)
}

// An answer may come in time and be read too late, if many requests go on at once. Its grants are
// charged already: on_failure decides the request, and nothing is charged again.
func TestAGrantThatIsReadTooLateIsChargedOnce(t *testing.T) {
	for _, c := range []struct {
		then string
		want limiter.Status
	}{{"local", limiter.Allowed}, {"deny", limiter.Refused}} {
		n := newNode(t, true, `{"name":"p","partition":[],"limit":{"quota":100,"window":"1h"},"mode":"strict",
			"on_failure":{"then":"`+c.then+`"}}`)
		req, got := n.readLate()
		if got != c.want {
			t.Errorf("%s: %v, want %v", c.then, got, c.want)
		}
		if owed := n.leases.Owed(n.now, req.Hits[0].Key); owed != 0 {
			t.Errorf("%s: %d are to be charged again", c.then, owed)
		}
	}
}

// The same for a request that has reserved its cost: the answer's reservation comes back if
// on_failure refuses the request.
func TestAReservationThatIsReadTooLateComesBackFromARefusal(t *testing.T) {
	n := newNode(t, true, `{"name":"p","partition":[],"limit":{"quota":100,"window":"1h"},"mode":"strict",
		"on_failure":{"then":"deny"},"cost":{"reserve":5,"commit":{"header":"x-used"}}}`)
	if _, got := n.readLate(); got != limiter.Refused {
		t.Fatal(got)
	}
	n.tick(10)
	if len(n.asked) != 1 || n.asked[0].Nth == 0 || n.asked[0].Actual != 0 {
		t.Errorf("asked %+v, want a settlement with 0", n.asked)
	}
}

// A request that a share let through is charged its cost: less than its reservation, more, or
// nothing.
func TestRequestsOfAShareAreChargedTheirCost(t *testing.T) {
	for used, want := range map[string]int64{"0": 0, "1": 1, "4": 4, "9": 9} {
		n := newNode(t, true, `{"name":"p","partition":[],"limit":{"quota":100,"window":"1h"},"mode":"strict",
			"on_failure":{"then":"local"},"cost":{"reserve":4,"commit":{"header":"x-used"}}}`)
		req, status := n.begin()
		if status == limiter.Paused {
			status = n.answer(503, req)
		}
		if status != limiter.Allowed {
			t.Fatal(status)
		}
		n.answered(req, answer{"x-used": used})
		var charged int64
		for range 100 {
			n.now += 20 * ms
			n.leases.Tick(n.now)
			for len(n.calls) > 0 {
				for _, it := range n.asked {
					charged += it.Waiting * it.Cost
				}
				call := n.calls[0]
				n.calls = n.calls[1:]
				call(200)
			}
		}
		if charged != want {
			t.Errorf("used %s: %d are charged", used, charged)
		}
		if got := n.limiter.Stats.Settled; got.Settled != 1 || got.Reserved != 4 {
			t.Errorf("used %s: %+v", used, got)
		}
	}
}
