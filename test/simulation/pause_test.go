package simulation

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/controlplanetest"
	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
)

// stall is a control plane that stands still for a while. Like a stopped process, it executes all
// calls that arrive meanwhile when it goes on, also calls that Envoy does not wait for any more.
type stall struct {
	t       *testing.T
	r       *rand.Rand
	now     quota.Instant
	until   quota.Instant
	due     vtimetest.Queue[quota.Instant]
	store   *controlplanetest.Store
	plane   *controlplanetest.ControlPlane
	nodes   []*filtertest.Process
	ticked  [][]quota.Instant
	buckets map[keyhash.Key]bool
	limit   int64
	allowed int64
	refused int64
	// usedUp are the refusals that say so.
	usedUp int64
	stream uint32
	// lose, if not nil, reports whether a call is lost: no answer and no end of its connection
	// comes.
	lose func() bool
	// way is how long a message takes.
	way func() quota.Instant
}

func newStall(t *testing.T, mode, algorithm string, nodes int, limit int64) *stall {
	s := &stall{t: t, r: rand.New(rand.NewPCG(7, 8)), now: 1e12, buckets: map[keyhash.Key]bool{}, limit: limit}
	s.way = func() quota.Instant { return quota.Instant(200 + s.r.IntN(800)) }
	s.store = &controlplanetest.Store{Now: func() quota.Instant { return 1<<50 + s.now }}
	s.plane = controlplanetest.New(s.store, 1, int64(nodes), func() time.Time { return time.UnixMicro(int64(s.now)) },
		s.r.Float64)
	snapshot, _, err := s.plane.Put(0, []byte(fmt.Sprintf(`{"version":"weir/v1","policies":[{"name":"p",`+
		`"match":{"paths":["/"]},"partition":["header:x-key"],"algorithm":%q,"mode":%q,`+
		`"limit":{"quota":%d,"window":"1d"},"cost":{"header":"x-cost","max":600}}]}`, algorithm, mode, limit)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		n := filtertest.Start(filtertest.Options{
			Name: string(rune('a' + i)), Boot: s.r.Uint64(), Random: s.r.Uint64(), Workers: 2,
			Now: func() quota.Instant { return s.now }, Call: s.call,
			Decided: func(d filtertest.Decision) {
				switch {
				case d.Allowed:
					s.allowed++
				case d.Reason == "quota":
					s.usedUp++
					fallthrough
				default:
					s.refused++
				}
				for _, h := range d.Hits {
					s.buckets[h.Bucket] = true
				}
			},
			Gathers: func(worker int) { s.due.Add(s.now+1000, func() { s.nodes[i].Flush(worker) }) },
		})
		for worker := range 2 {
			if err := n.Apply(worker, snapshot, 1); err != nil {
				t.Fatal(err)
			}
		}
		s.nodes, s.ticked = append(s.nodes, n), append(s.ticked, make([]quota.Instant, 2))
	}
	return s
}

// call carries a lease request to the control plane and its answer back. Envoy ends it at its
// timeout, which the control plane cannot see.
func (s *stall) call(_ int, body []byte, timeout quota.Span, done func(int, []byte)) error {
	ended := false
	end := func(status int, reply []byte) {
		if !ended {
			ended = true
			done(status, reply)
		}
	}
	s.due.Add(s.now+quota.Instant(timeout), func() { end(504, nil) })
	if s.lose != nil && s.lose() {
		return nil
	}
	s.due.Add(max(s.now, s.until)+s.way(), func() {
		serve := func() {
			status, reply := s.plane.Lease(0, body)
			s.due.Add(s.now+s.way(), func() { end(status, reply) })
		}
		if s.now < s.until {
			s.due.Add(s.until+s.way(), serve)
			return
		}
		serve()
	})
	return nil
}

// pass has all happen that happens in a span.
func (s *stall) pass(span quota.Span) {
	for until := s.now + quota.Instant(span); ; {
		next, tick := until, func() {}
		for i, n := range s.nodes {
			for worker := range s.ticked[i] {
				if at := max(s.ticked[i][worker]+10_000, n.NextDue(worker)); at <= next {
					next, tick = at, func() {
						s.ticked[i][worker] = s.now
						n.Tick(worker)
					}
				}
			}
		}
		if e, ok := s.due.Next(next); ok {
			s.now = max(s.now, e.At)
			e.Fire()
			continue
		}
		s.now = max(s.now, next)
		if tick(); next >= until {
			return
		}
	}
}

func (s *stall) send(node, worker int, key string, cost int64) {
	s.stream++
	s.nodes[node].Request(worker, s.stream, "/", "x-key", key, "x-cost", fmt.Sprint(cost))
}

// charged returns the tokens that all buckets lack, less the tokens that nodes hold and can use.
// Owed tokens are charged when held tokens come back, if the bucket has no other tokens.
func (s *stall) charged() (tokens, owed int64) {
	for bucket := range s.buckets {
		tokens += s.limit - s.store.Holds(bucket, s.limit)
		for _, n := range s.nodes {
			held, _ := n.Held(bucket)
			owed += n.Owed(bucket)
			tokens -= held
		}
	}
	return tokens, owed
}

// A control plane that stands still for less than Envoy waits for its answers charges each request
// once, and each that a share has let through: no less, and no more.
func TestAPauseChargesEachRequestOnce(t *testing.T) {
	for _, nodes := range []int{1, 2} {
		for _, mode := range []string{"strict", "leased", "optimistic"} {
			for _, pause := range []quota.Span{60, 240, 260, 300, 600, 1000, 2000, 4000} {
				for _, cost := range []int64{1, 20, 100} {
					t.Run(fmt.Sprintf("%d/%s/%d ms/cost %d", nodes, mode, pause, cost), func(t *testing.T) {
						s := newStall(t, mode, "token_bucket", nodes, 1000)
						offered := int64(0)
						send := func(n int) {
							for i := range n {
								s.send(i%nodes, i/nodes%2, string(rune('a'+i%3)), cost)
								offered += cost
							}
						}
						send(6)
						s.pass(400 * quota.Millisecond)
						s.until = s.now + quota.Instant(pause*quota.Millisecond)
						send(6)
						s.pass(20 * quota.Millisecond)
						send(6)
						s.pass(pause*quota.Millisecond/2 - 20*quota.Millisecond)
						send(6)
						s.pass(pause * quota.Millisecond)
						s.pass(8 * quota.Second)
						if charged, owed := s.charged(); charged+owed != offered || s.refused > 0 {
							t.Errorf("%d charged and %d owed of %d offered, %d refused", charged, owed, offered,
								s.refused)
						}
					})
				}
			}
		}
	}
}

// A call that is lost, so that no answer and no end of its connection comes, is charged by another
// call: soon if the control plane answers other calls, and at the latest when Envoy gives the lost
// call up.
func TestALostCallIsCharged(t *testing.T) {
	for _, nodes := range []int{1, 2} {
		for _, mode := range []string{"strict", "leased", "optimistic"} {
			for _, after := range []quota.Span{600 * quota.Millisecond, 8 * quota.Second} {
				t.Run(fmt.Sprintf("%d/%s/%d ms", nodes, mode, after/quota.Millisecond), func(t *testing.T) {
					s := newStall(t, mode, "token_bucket", nodes, 1000)
					s.send(0, 0, "a", 600) // More than the slack of optimistic mode with two.
					s.pass(2 * quota.Second)
					lost := 0
					s.lose = func() bool { lost++; return true }
					s.send(0, 0, "a", 300)
					s.pass(150 * quota.Millisecond)
					if s.lose = nil; lost != 1 && mode == "strict" {
						t.Fatalf("%d calls were lost", lost)
					}
					offered := int64(900)
					if after < quota.Second { // Other calls are answered.
						s.send(0, 0, "b", 600)
						s.pass(10 * quota.Millisecond)
						s.send(0, 0, "c", 600)
						offered += 1200
						s.pass(after)
					} else {
						s.pass(after)
					}
					if charged, owed := s.charged(); charged != offered || s.refused > 0 || owed > 0 {
						t.Errorf("%d charged of %d offered, %d owed, %d refused, %d lost", charged, offered, owed,
							s.refused, lost)
					}
				})
			}
		}
	}
}
