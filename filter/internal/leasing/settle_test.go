package leasing_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/filter/internal/shareddata"
	"github.com/weir-proxy/weir/filter/internal/shareddatatest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
	"github.com/weir-proxy/weir/shared/wire"
)

var settleGames = flag.Int("settlements", 40,
	"random games of reservations over a network that loses, doubles and reorders")

// settleWorld is two nodes before one bucket, whose messages are lost, doubled and late, and whose
// nodes crash.
type settleWorld struct {
	*clock
	r      *rand.Rand
	due    vtimetest.Queue[quota.Instant]
	nodes  []*settleNode
	need   leasing.Need
	w      quota.Windows
	ledger lease.WindowLedger
	open   map[uint64]quota.Reservation
	// faulty: messages are lost, doubled and late, and nodes crash.
	faulty bool
	// forgets is a store as it should be: a reservation is gone once it was settled.
	forgets bool
	// passed are the requests that were admitted, in order, and what they have cost.
	passed []*settledRequest
	boots  uint64
}

type settledRequest struct {
	at   quota.Instant
	cost int64
}

type settleNode struct {
	w       *settleWorld
	client  *leasing.Client
	dead    bool
	stream  uint32
	waiting map[uint32]*leasing.Ticket
}

const settleQuota = 12

func newSettleWorld(seed uint64, game int, faulty bool) *settleWorld {
	p, _ := quota.NewParams(settleQuota, quota.Minute, settleQuota)
	windows, _ := quota.NewWindows(quota.SlidingLog, settleQuota, quota.Minute, 0)
	w := &settleWorld{
		clock: &clock{now: 1000 * ms}, r: rand.New(rand.NewPCG(seed, uint64(game))), w: windows,
		open: map[uint64]quota.Reservation{}, faulty: faulty, forgets: true,
		need: leasing.Need{Bucket: keyhash.Key{7}, Version: 1, Params: p, Cost: 3, Strict: true, Reserves: true,
			Algorithm: quota.SlidingLog},
	}
	for range 2 {
		w.boot()
	}
	return w
}

func (w *settleWorld) after(span quota.Span, f func()) { w.due.Add(w.now+quota.Instant(span), f) }

// boot starts a node.
func (w *settleWorld) boot() {
	data := &shareddatatest.Data{}
	w.boots++
	n := &settleNode{w: w, waiting: map[uint32]*leasing.Ticket{}}
	n.client = leasing.New(leasing.Config{
		Store: bucketstore.New(data, [4]byte{}, 1024, 0), Client: n, Clock: w.clock,
		Nodes: shareddata.NewNumber(data, shareddata.Space{}, shareddata.Nodes), Node: "node", Boot: w.boots,
		Seed: w.r.Uint64(),
	})
	w.nodes = append(w.nodes, n)
	n.tick()
}

func (n *settleNode) tick() {
	if !n.dead {
		n.client.Tick(n.w.now)
		n.resolve()
		n.w.after(10*quota.Millisecond, n.tick)
	}
}

// Call implements rpc.Client.
func (n *settleNode) Call(_ string, body []byte, timeout quota.Span, done func(int, []byte)) error {
	w, message, ended := n.w, slices.Clone(body), false
	end := func(status int, reply []byte) {
		if !ended && !n.dead {
			ended = true
			done(status, reply)
			n.resolve()
		}
	}
	late := func() quota.Span {
		if w.faulty && w.r.IntN(5) == 0 {
			return quota.Span(w.r.Int64N(int64(400 * quota.Millisecond)))
		}
		return quota.Span(w.r.Int64N(int64(3 * quota.Millisecond)))
	}
	w.after(timeout, func() { end(504, nil) })
	copies := 1
	if w.faulty {
		copies = []int{0, 1, 1, 1, 1, 2}[w.r.IntN(6)]
	}
	for range copies {
		lost := w.faulty && w.r.IntN(8) == 0
		w.after(late(), func() {
			reply := w.serve(message)
			if !lost {
				w.after(late(), func() { end(200, reply) })
			}
		})
	}
	return nil
}

// serve is the control plane.
func (w *settleWorld) serve(message []byte) []byte {
	m, err := wire.DecodeLeaseRequest(message)
	if err != nil {
		panic(err)
	}
	reply := wire.LeaseReply{Seq: m.Seq, Nodes: 2}
	for _, it := range m.Items {
		var answer wire.LeaseAnswer
		if it.Nth > 0 {
			name := it.Reserved + uint64(it.Nth)
			if taken, known := w.open[name]; known {
				w.ledger, _ = w.ledger.Settle(w.now, lease.Ask{}, taken, it.Actual)
				if w.forgets {
					delete(w.open, name)
				}
			}
		} else {
			ask := lease.Ask{Params: w.need.Params, Windows: w.w, Version: 1, Waiting: it.Waiting, Cost: it.Cost,
				Deadline: lease.Deadline}
			var g lease.Grant
			w.ledger, g = w.ledger.Grant(w.now, ask)
			for nth := range g.Waiting {
				w.open[it.Reserved+uint64(nth)+1] = w.ledger.Reservation(ask)
			}
			answer = wire.LeaseAnswer{Waiting: g.Waiting, NotBefore: g.NotBefore, Level: g.Level,
				FullAfter: g.FullAfter}
		}
		reply.Items = append(reply.Items, answer)
	}
	return wire.AppendLeaseReply(nil, reply)
}

// request asks for what one request reserves.
func (n *settleNode) request() {
	if n.dead {
		return
	}
	n.stream++
	t := &leasing.Ticket{Stream: n.stream, Need: n.w.need}
	if _, away := n.client.Health.Away(); !away && n.client.Ask(n.w.now, t) {
		n.waiting[n.stream] = t
		n.client.Flush(n.w.now)
	}
}

// resolve lets the requests pass that were granted, which settle some time later.
func (n *settleNode) resolve() {
	w := n.w
	for _, stream := range slices.Clone(n.client.TakeResolved(1 << 20)) {
		t := n.waiting[stream]
		delete(n.waiting, stream)
		if t.Outcome != leasing.Granted || w.now >= t.Until {
			continue
		}
		one := &settledRequest{at: w.now, cost: 3}
		w.passed = append(w.passed, one)
		actual := w.r.Int64N(4)
		w.after(quota.Span(w.r.Int64N(int64(20*quota.Second))), func() {
			if !n.dead { // What a crash leaves open stays charged, and has cost as much.
				one.cost = actual
				if t.Name != 0 {
					n.client.Settle(w.now, &leasing.Reservation{Need: t.Need, Name: t.Name}, actual)
				}
			}
		})
	}
}

// play has requests come for three minutes, and waits for the last settlement.
func (w *settleWorld) play() {
	end := w.now + 180*quota.Instant(quota.Second)
	for at := w.now; at < end; at += quota.Instant(w.r.Int64N(int64(800 * quota.Millisecond))) {
		w.due.Add(at, func() { w.nodes[len(w.nodes)-1-w.r.IntN(2)].request() })
	}
	if w.faulty {
		for range 2 {
			w.due.Add(w.now+quota.Instant(w.r.Int64N(int64(end-w.now))), func() {
				w.nodes[len(w.nodes)-1].dead = true
				w.boot()
			})
		}
	}
	for e, ok := w.due.Next(end + 20*quota.Instant(quota.Second)); ok; e, ok = w.due.Next(end +
		20*quota.Instant(quota.Second)) {
		w.now = e.At
		e.Fire()
	}
}

// most is the most that requests of any minute have cost.
func (w *settleWorld) most() (most int64) {
	first, sum := 0, int64(0)
	for _, one := range w.passed {
		sum += one.cost
		for w.passed[first].at <= one.at-quota.Instant(quota.Minute) {
			sum -= w.passed[first].cost
			first++
		}
		most = max(most, sum)
	}
	return most
}

// However messages are lost, doubled, late and out of order, and nodes crash, no minute has
// requests that cost more than the quota.
func TestSettlementsOverABadNetwork(t *testing.T) {
	seed := rand.Uint64()
	passed := 0
	for game := range *settleGames {
		w := newSettleWorld(seed, game, true)
		w.play()
		passed += len(w.passed)
		if most := w.most(); most > settleQuota {
			t.Fatalf("seed %d, game %d: requests of one minute have cost %d of %d", seed, game, most, settleQuota)
		}
	}
	t.Logf("%d requests passed in %d games", passed, *settleGames)
}

// Over a network that loses nothing the ledger holds exactly what requests have cost.
func TestSettlementsOverAGoodNetwork(t *testing.T) {
	seed := rand.Uint64()
	for game := range 50 {
		w := newSettleWorld(seed, game, false)
		w.play()
		used, most := int64(0), int64(0) // Tokens count since the latest instant at which they may have been used.
		for _, one := range w.passed {
			if w.w.Counts(one.at) > w.now {
				used += one.cost
			}
			if w.w.Counts(one.at+60*ms) > w.now {
				most += one.cost
			}
		}
		w.w.Advance(&w.ledger.History, w.now)
		if held := settleQuota - w.w.Remaining(&w.ledger.History); held < used || held > most {
			t.Fatalf("seed %d, game %d: the ledger holds %d, requests have cost %d to %d", seed, game, held, used, most)
		}
		if lost := w.nodes[0].client.Stats.SettlementsLost + w.nodes[1].client.Stats.SettlementsLost; lost != 0 {
			t.Fatalf("seed %d, game %d: %d settlements were lost", seed, game, lost)
		}
	}
}

// A store that does not forget what it has settled is found: Envoy's retries would mint tokens.
func TestSettlementGamesFindAStoreThatSettlesTwice(t *testing.T) {
	seed := rand.Uint64()
	for game := range *settleGames {
		w := newSettleWorld(seed, game, true)
		w.forgets = false
		w.play()
		if w.most() > settleQuota {
			return
		}
	}
	t.Errorf("seed %d: %d games have not found it", seed, *settleGames)
}

// A refusal is asked for again at once where others have reserved: what they give back is there for
// the next request.
func TestReservedTokensAreAskedForAgain(t *testing.T) {
	w := newSettleWorld(1, 1, false)
	n := w.nodes[0]
	run := func(span quota.Span) {
		end := w.now + quota.Instant(span)
		for e, ok := w.due.Next(end); ok; e, ok = w.due.Next(end) {
			w.now = e.At
			e.Fire()
		}
	}
	for range 5 {
		n.request()
	}
	run(100 * quota.Millisecond)
	if len(w.passed) != 4 {
		t.Fatalf("%d passed, want 4 of 3 tokens each", len(w.passed))
	}
	run(20 * quota.Second)
	n.request()
	run(100 * quota.Millisecond)
	if len(w.passed) != 5 {
		t.Error(fmt.Sprint(len(w.passed), " passed: the refusal of before was repeated"))
	}
}
