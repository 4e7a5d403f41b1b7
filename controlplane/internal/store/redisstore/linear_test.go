package redisstore_test

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/test/linear"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// cutter is a way to Redis on which connections break: after some bytes, in the middle of a request
// or of an answer. Some go silent first, for longer than a client waits.
type cutter struct {
	listener net.Listener
	to       string
	cuts     atomic.Int64
	wait     sync.WaitGroup
}

const silence = 300 * time.Millisecond

func startCutter(t *testing.T, to string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{listener: l, to: to}
	c.wait.Go(c.accept)
	t.Cleanup(func() {
		l.Close()
		c.wait.Wait()
	})
	return c
}

func (c *cutter) url() string { return "redis://" + c.listener.Addr().String() + "?pool_size=32" }

func (c *cutter) accept() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", c.to)
		if err != nil {
			client.Close()
			continue
		}
		// A bucket is some 200 bytes of a request and 30 of an answer.
		c.wait.Go(func() { c.pass(server, client, 1+rand.Int64N(64_000)) })
		c.wait.Go(func() { c.pass(client, server, 1+rand.Int64N(9_600)) })
	}
}

// pass copies some bytes and then breaks the connection, both ways.
func (c *cutter) pass(to, from net.Conn, bytes int64) {
	if n, _ := io.CopyN(to, from, bytes); n == bytes {
		c.cuts.Add(1)
		if rand.IntN(32) == 0 {
			time.Sleep(silence)
		}
	}
	to.Close()
	from.Close()
}

// A limit that earns nothing while a test runs, so that the model needs no clock.
const plenty = 24

func still(t *testing.T) quota.Params {
	t.Helper()
	return params(t, 1, quota.Day, plenty)
}

// groups of two buckets each share the clients: checking takes the longer the more are at one
// bucket at once.
const groups = 24

// drawAsk draws the request of a node: for one bucket, or for both buckets of a group for one
// request.
func drawAsk(r *rand.Rand) linear.Ask {
	one := func(bucket int) linear.Part {
		return linear.Part{Bucket: bucket, Waiting: r.Int64N(3), Cost: 1 + r.Int64N(5), Keep: r.Int64N(8),
			Nodes: 1 + r.Int64N(4)}
	}
	if r.IntN(4) > 0 {
		return linear.Ask{Group: r.IntN(groups), Parts: []linear.Part{one(r.IntN(2))}}
	}
	return linear.Ask{Group: r.IntN(groups), Parts: []linear.Part{one(0), one(1)}}
}

// items returns the items for the store; each round has its own buckets.
func items(p quota.Params, round byte, a linear.Ask) []leases.Item {
	var list []leases.Item
	for _, part := range a.Parts {
		list = append(list, leases.Item{
			Bucket: keyhash.Key{3, round, byte(a.Group), byte(part.Bucket)}, Group: 1,
			Ask: lease.Ask{
				Params: p, Version: 1, Waiting: part.Waiting, Cost: part.Cost, Keep: part.Keep, Nodes: part.Nodes,
				Deadline: lease.Deadline,
			},
		})
	}
	return list
}

// crowd lets 32 clients ask for tokens of the same buckets at once. Then a last client reads the
// rest.
func crowd(t *testing.T, s *redisstore.Store, round byte) (h *linear.History, lost int64) {
	t.Helper()
	const clients, each = 32, 8
	p := still(t)
	h = &linear.History{}
	var missing atomic.Int64
	call := func(client int, a linear.Ask) {
		ctx, cancel := context.WithTimeout(t.Context(), silence/2)
		defer cancel()
		called := h.Begin()
		grants, err := s.Grant(ctx, items(p, round, a))
		if err != nil {
			missing.Add(1)
			h.Lost(client, called, a)
			return
		}
		var answers []linear.Granted
		for _, g := range grants {
			answers = append(answers, linear.Granted{Waiting: g.Waiting, Keep: g.Keep, Level: g.Level})
		}
		h.End(client, called, a, answers)
	}
	var wait sync.WaitGroup
	for client := range clients {
		wait.Go(func() {
			r := rand.New(rand.NewPCG(uint64(round), uint64(client)))
			for range each {
				call(client, drawAsk(r))
			}
		})
	}
	wait.Wait()
	for group := range groups {
		call(clients, linear.Ask{Group: group,
			Parts: []linear.Part{{Bucket: 0, Cost: 1, Nodes: 1}, {Bucket: 1, Cost: 1, Nodes: 1}}})
	}
	return h, missing.Load()
}

// teach begins a deployment, so that nothing counts as lost, and loads the script into Redis. Most
// connections of the test end before they could carry its text.
func teach(t *testing.T, s *redisstore.Store) {
	t.Helper()
	if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Grant(t.Context(),
		items(still(t), 255, linear.Ask{Parts: []linear.Part{{Cost: 1, Nodes: 1}}})); err != nil {
		t.Fatal(err)
	}
}

var ledgers = linear.Ledgers(plenty)

// Whatever clients and breaking connections do, all answers there were fit one order of grants, in
// which a request without an answer was granted once, at any time since, or never.
func TestGrantsAreLinearizable(t *testing.T) {
	server := redistest.Start(t)
	teach(t, open(t, server))
	way := startCutter(t, server.Addr())
	s := openURL(t, way.url(), slog.New(slog.DiscardHandler))
	const rounds = 40
	operations, lost := 0, int64(0)
	for round := range byte(rounds) {
		h, missing := crowd(t, s, round)
		if !h.Linearizable(t, ledgers) {
			t.Fatalf("round %d: no order explains\n%v", round, h)
		}
		operations += h.Len()
		lost += missing
	}
	t.Logf("%d operations, %d without an answer; %d connections were cut", operations, lost, way.cuts.Load())
	if lost == 0 {
		t.Error("every request had an answer: the test has tested no lost answer")
	}
}

// The test above notices planted bugs.
func TestPlantedBugsInGrantsAreNotLinearizable(t *testing.T) {
	server := redistest.Start(t)
	spoil := func(old, new string) func(*testing.T) *redisstore.Store {
		return func(t *testing.T) *redisstore.Store {
			s := open(t, server)
			if !s.SpoilGrant(old, new) {
				t.Fatalf("the script does not have %q once", old)
			}
			teach(t, s)
			return s
		}
	}
	shared := func(bug string) func(*testing.T) *redisstore.Store {
		return func(t *testing.T) *redisstore.Store {
			teach(t, open(t, server))
			s := openURL(t, startCutter(t, server.Addr()).url(), slog.New(slog.DiscardHandler))
			s.SpoilCalls(bug)
			return s
		}
	}
	for _, c := range []struct {
		name string
		open func(t *testing.T) *redisstore.Store
	}{
		{"requests of one call get each other's answers", shared("swap")},
		{"a request of a call gets another's answer and is charged nothing", shared("copy")},
		{"a call of many that got no answer is made again", shared("repeat")},
		{"requests of a call without an answer get one of nothing", shared("late")},
		{"a charge is not stored now and then",
			spoil("if changed or granted > 0 or kept > 0 then\n"+
				"      save(key, encode(), max(forgettable(), now + hold))\n    end\n    if optimistic == 1",
				"if now % 16 > 0 and (changed or granted > 0 or kept > 0) then\n"+
					"      save(key, encode(), max(forgettable(), now + hold))\n    end\n    if optimistic == 1")},
		{"more is granted than is there",
			spoil("local granted = min(waiting, quotient(available, cost))\n"+
				"    local short = granted < waiting"+
				" or not look and waiting == 0 and keep == 0 and available < cost\n"+
				"    if look then\n      granted, keep",
				"local granted = math.min(waiting, quotient(available + 1, cost))\n"+
					"    local short = granted < waiting"+
					" or not look and waiting == 0 and keep == 0 and available < cost\n"+
					"    if look then\n      granted, keep")},
		{"a token comes back", spoil("debt = max(units(out(0), den), debt)", "debt = math.max(0, debt - den)")},
		{"one of a group is charged where the other is refused",
			spoil("all = answer(k, true) and all", "answer(k, true)")},
		{"calls without an answer are sent again", func(t *testing.T) *redisstore.Store {
			teach(t, open(t, server))
			s, err := redisstore.OpenRetrying(startCutter(t, server.Addr()).url(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			const tries = 60
			server.Do("FLUSHALL")
			s := c.open(t)
			for round := range byte(tries) {
				if h, _ := crowd(t, s, round); !h.Linearizable(t, ledgers) {
					t.Logf("found in round %d", round)
					return
				}
			}
			t.Errorf("not found in %d histories", tries)
		})
	}
}
