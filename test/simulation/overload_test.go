package simulation

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/controlplanetest"
	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// crowd is two nodes whose callers all stay within a limit, but for a few, and a control plane that
// works on one call after the other.
type crowd struct {
	t     *testing.T
	now   quota.Instant
	due   []appointment
	plane *controlplanetest.ControlPlane
	nodes []*filtertest.Process
	r     *rand.Rand
	// forgets: the control plane works on calls that no node waits for any more, too.
	forgets bool
	free    quota.Instant
	// greedy has the streams, and whether their caller is greedy.
	greedy map[uint32]bool
	stream uint32

	// reasons are why modest callers were refused.
	reasons map[string]int

	falselyRefused, modest, greedyPassed, greedySent int
	calls, inTime, turns                             int
	away, hurried                                    [2][2]bool
}

type appointment struct {
	at   quota.Instant
	fire func()
}

// The control plane's work for a call, and for each of its buckets.
const (
	perCall = quota.Millisecond / 5
	perItem = quota.Millisecond
)

func (c *crowd) after(span quota.Span, f func()) {
	at := appointment{c.now + quota.Instant(span), f}
	i, _ := slices.BinarySearchFunc(c.due, at,
		func(a, b appointment) int { return cmp.Or(cmp.Compare(a.at, b.at), -1) })
	c.due = slices.Insert(c.due, i, at)
}

// call sends a lease call. The control plane works on one call after the other. Unless it forgets,
// it answers a call that has waited for too long at once.
func (c *crowd) call(body []byte, timeout quota.Span, done func(int, []byte)) error {
	c.calls++
	request, err := wire.DecodeLeaseRequest(body)
	if err != nil {
		c.t.Fatal(err)
	}
	ended, sent := false, c.now
	end := func(status int, reply []byte) {
		if !ended {
			ended = true
			if status == 200 && c.now-sent < quota.Instant(lease.Deadline) {
				c.inTime++
			}
			done(status, reply)
		}
	}
	c.after(timeout, func() { end(0, nil) })
	c.after(300, func() {
		if !c.forgets && c.free > c.now+25_000 {
			c.after(300, func() { end(429, nil) })
			return
		}
		c.free = max(c.free, c.now) + quota.Instant(perCall+quota.Span(len(request.Items))*perItem)
		c.after(quota.Span(c.free-c.now), func() {
			status, reply := c.plane.Lease(0, body)
			c.after(300, func() { end(status, reply) })
		})
	})
	return nil
}

func newCrowd(t *testing.T, seed uint64, mode, failure string, forgets bool) *crowd {
	t.Helper()
	c := &crowd{t: t, now: 1 << 40, r: rand.New(rand.NewPCG(seed, 1)), forgets: forgets, greedy: map[uint32]bool{},
		reasons: map[string]int{}}
	store := &controlplanetest.Store{Now: func() quota.Instant { return 1<<50 + c.now }}
	c.plane = controlplanetest.New(store, 1, 2, func() time.Time { return time.UnixMicro(int64(c.now)) }, c.r.Float64)
	snapshot, _, err := c.plane.Put(0, []byte(`{"version":"weir/v1","policies":[{"name":"api","partition":["header:x-key"],"mode":"`+mode+
		`","limit":{"quota":1000,"window":"1m","burst":50},"on_failure":`+failure+`}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		p := filtertest.Start(filtertest.Options{
			Name: strconv.Itoa(i), Boot: c.r.Uint64(), Random: c.r.Uint64(), Workers: 2, TableKeys: 1 << 17,
			Now: func() quota.Instant { return c.now },
			Call: func(_ int, body []byte, timeout quota.Span, done func(int, []byte)) error {
				return c.call(body, timeout, done)
			},
			Decided: c.decided,
			Gathers: func(worker int) { c.hurry(i, worker) },
		})
		for worker := range 2 {
			if err := p.Apply(worker, snapshot, 1); err != nil {
				t.Fatal(err)
			}
			var tick func()
			tick = func() {
				p.Tick(worker)
				if away := p.Away(worker); away != c.away[i][worker] {
					c.away[i][worker] = away
					c.turns++
				}
				c.after(10*quota.Millisecond, tick)
			}
			c.after(quota.Span(c.r.Int64N(10_000)), tick)
		}
		c.nodes = append(c.nodes, p)
	}
	return c
}

// hurry looks within a millisecond whether a worker's gathered requests may leave.
func (c *crowd) hurry(node, worker int) {
	if !c.hurried[node][worker] {
		c.hurried[node][worker] = true
		c.after(quota.Millisecond, func() {
			c.hurried[node][worker] = false
			c.nodes[node].Flush(worker)
		})
	}
}

func (c *crowd) decided(d filtertest.Decision) {
	switch {
	case c.greedy[d.Stream] && d.Allowed:
		c.greedyPassed++
	case !c.greedy[d.Stream] && !d.Allowed:
		c.falselyRefused++
		c.reasons[d.Reason]++
	}
}

// send has callers come: modest ones at a rate a second, each now and then, and five greedy ones
// 200 times a second each.
func (c *crowd) send(rate int) {
	var modest, greedy func()
	request := func(key string) {
		c.stream++
		c.nodes[c.r.IntN(2)].Request(c.r.IntN(2), c.stream, "/", "x-key", key, "x-cost", "1")
	}
	modest = func() {
		c.modest++
		request("modest " + strconv.Itoa(c.r.IntN(20_000)))
		c.after(quota.Span(c.r.ExpFloat64()*1e6/float64(rate))+1, modest)
	}
	greedy = func() {
		c.greedySent++
		c.greedy[c.stream+1] = true
		request("greedy " + strconv.Itoa(c.r.IntN(5)))
		c.after(quota.Millisecond, greedy)
	}
	modest()
	greedy()
}

func (c *crowd) run(span quota.Span) {
	for end := c.now + quota.Instant(span); c.due[0].at < end; {
		next := c.due[0]
		c.due = c.due[1:]
		c.now = next.at
		next.fire()
	}
}

// At twice and at eight times the control plane's capacity no caller within its limit is refused.
// Callers far beyond it are refused by each Envoy's share, the ladder does not flap, and the calls
// shrink to the capacity.
func TestABrownOutRefusesNoRequestWithinTheLimit(t *testing.T) {
	const seconds = 10
	for _, rate := range []int{500, 2000, 8000} {
		for _, mode := range []string{"leased", "strict"} {
			for _, forgets := range []bool{false, true} {
				seed := rand.Uint64()
				c := newCrowd(t, seed, mode, `{"then":"local"}`, forgets)
				c.send(rate)
				c.run(seconds * quota.Second)
				// Five greedy callers: the tokens of the limit, the burst of the shares, and half
				// of the tokens that shares earn.
				most := 5 * (2*50 + seconds*1000/60*3/2 + 1)
				t.Logf("%s, %d/s, forgets %v: %d of %d refused falsely; %d of %d greedy passed, at most %d may; %d "+
					"of %d calls in time; %d turns of the ladder",
					mode, rate, forgets, c.falselyRefused, c.modest, c.greedyPassed, c.greedySent, most,
					c.inTime, c.calls, c.turns)
				if c.falselyRefused > 0 {
					t.Errorf("seed %d: %d of %d requests within their limit were refused: %v", seed, c.falselyRefused,
						c.modest, c.reasons)
				}
				if c.greedyPassed > most {
					t.Errorf("seed %d: %d of the greedy passed, at most %d may", seed, c.greedyPassed, most)
				}
				if c.inTime*3 < c.calls*2 {
					t.Errorf("seed %d: %d of %d calls were answered in time", seed, c.inTime, c.calls)
				}
				// A control plane that answers no node in time looks like an absent control plane.
				// Each of the four workers may see it go and return three times in the ten seconds.
				// A worker whose ladder turned with every pause of its breaker would see it ten to
				// forty times.
				if c.turns > 4*2*3 {
					t.Errorf("seed %d: the four workers' ladders turned %d times", seed, c.turns)
				}
			}
		}
	}
}

// A brown-out in which shares begin without a token refuses callers within their limit, and is
// found.
func TestABrownOutFindsFalseRefusals(t *testing.T) {
	seed := rand.Uint64()
	c := newCrowd(t, seed, "strict", `[{"share":"forever","start":"empty"}]`, false)
	c.send(2000)
	c.run(quota.Second)
	t.Logf("%d of %d refused falsely: %v", c.falselyRefused, c.modest, c.reasons)
	if c.reasons["failure"] == 0 {
		t.Errorf("seed %d: shares that begin empty refuse none of %d", seed, c.modest)
	}
}
