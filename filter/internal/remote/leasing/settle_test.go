package leasing_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
	"github.com/weir-proxy/weir/shared/wire"
)

var settleGames = flag.Int("games", 400,
	"random games of reservations over a network that loses, doubles and reorders")

// settleWorld is two nodes before one bucket, whose messages are lost, doubled and late, and whose
// nodes crash and trap.
type settleWorld struct {
	*clock
	r      *rand.Rand
	due    vtimetest.Queue[quota.Instant]
	nodes  []*settleNode
	need   leasing.Need
	ask    lease.Ask
	ledger settleLedger
	open   map[uint64]quota.Reservation
	// faulty: messages are lost, doubled and late, and nodes crash and trap.
	faulty bool
	// most is the most that a request costs, of 3 that it reserves.
	most int64
	bugs settleBugs
	// passed are the admitted requests, in order, and byName the admitted requests with a
	// reservation.
	passed []*settledRequest
	byName map[uint64]*settledRequest
	// granted is when the store granted a reservation.
	granted map[uint64]quota.Instant
	boots   uint64
}

// settleBugs are bugs of a store or of a node.
type settleBugs struct {
	// remembers: the store settles a reservation as often as it is asked to.
	remembers bool
	// forgetsDebt: it takes nothing if a request cost more than it had reserved.
	forgetsDebt bool
	// forgetsTime: it gives back tokens that have come back by themselves, or have left their
	// window.
	forgetsTime bool
	// renames: a node sends a settlement again under the name of the next reservation.
	renames bool
	// repays: a node gives back reservations when its VM traps.
	repays bool
}

// settleLedger is the ledger of a bucket of either kind.
type settleLedger interface {
	grant(now quota.Instant, ask lease.Ask) (lease.Grant, quota.Reservation)
	settle(now quota.Instant, ask lease.Ask, taken quota.Reservation, actual int64)
	holds(now quota.Instant, ask lease.Ask) int64
}

type countedLedger[L lease.Counted[L]] struct{ ledger L }

func (c *countedLedger[L]) grant(now quota.Instant, ask lease.Ask) (g lease.Grant, r quota.Reservation) {
	c.ledger, g = c.ledger.Grant(now, ask)
	return g, c.ledger.Reservation(ask)
}

func (c *countedLedger[L]) settle(now quota.Instant, ask lease.Ask, taken quota.Reservation, actual int64) {
	c.ledger, _ = c.ledger.Settle(now, ask, taken, actual)
}

// holds returns the bucket's used tokens.
func (c *countedLedger[L]) holds(now quota.Instant, ask lease.Ask) int64 {
	_, g := c.ledger.Look(now, ask)
	return settleQuota - g.Level
}

// settledRequest is a request that has passed at an instant, granted a little earlier.
type settledRequest struct {
	at, granted quota.Instant
	cost        int64
	// owed is when the store charged the cost beyond its reservation; never if it did not.
	owed quota.Instant
}

type settleNode struct {
	w       *settleWorld
	data    *shareddatatest.Data
	boot    uint64
	client  *leasing.Client
	dead    bool
	stream  uint32
	waiting map[uint32]*leasing.Ticket
	// held are the requests under way.
	held map[uint64]*leasing.Reservation
	// sent are the calls of the node, by their items.
	sent []string
}

const (
	settleQuota  = 12
	settleWindow = 6 * quota.Second
)

var settleAlgorithms = []quota.Algorithm{quota.TokenBucket, quota.SlidingLog, quota.SlidingWindow, quota.FixedWindow}

func newSettleWorld(seed uint64, game int, faulty bool) *settleWorld {
	algorithm := settleAlgorithms[game%len(settleAlgorithms)]
	p, _ := quota.NewParams(settleQuota, settleWindow, settleQuota)
	w := &settleWorld{
		clock: &clock{now: 1000 * ms}, r: rand.New(rand.NewPCG(seed, uint64(game))), most: 3, faulty: faulty,
		open: map[uint64]quota.Reservation{}, byName: map[uint64]*settledRequest{}, granted: map[uint64]quota.Instant{},
		need: leasing.Need{Bucket: keyhash.Key{7}, Version: 1, Params: p, Cost: 3, Strict: true, Reserves: true,
			Algorithm: algorithm},
		ask:    lease.Ask{Params: p, Version: 1, Nodes: 2, Cost: 1, Deadline: lease.Deadline, Owing: true},
		ledger: &countedLedger[lease.Ledger]{},
	}
	if algorithm.Windowed() {
		w.ask.Windows, _ = quota.NewWindows(algorithm, settleQuota, settleWindow, 10)
		w.ledger = &countedLedger[lease.WindowLedger]{}
	}
	for range 2 {
		w.boot()
	}
	return w
}

func (w *settleWorld) after(span quota.Span, f func()) { w.due.Add(w.now+quota.Instant(span), f) }

// boot starts a node.
func (w *settleWorld) boot() {
	w.boots++
	n := &settleNode{w: w, data: &shareddatatest.Data{}, boot: w.boots}
	n.load()
	w.nodes = append(w.nodes, n)
	n.tick()
}

// load starts a node's VM: at first, and after a trap, which loses the memory of the last VM.
func (n *settleNode) load() {
	w := n.w
	for name, one := range n.held {
		if w.bugs.repays && w.open[name].Tokens > 0 {
			w.serveSettlement(one.Name, 0)
		}
	}
	n.waiting, n.held = map[uint32]*leasing.Ticket{}, map[uint64]*leasing.Reservation{}
	n.client = leasing.New(leasing.Config{
		Store: bucketstore.New(n.data, [4]byte{}, 1024, 0), Client: n, Clock: w.clock,
		Shared: n.data, Node: "node", Boot: n.boot,
		Seed: w.r.Uint64(),
	})
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
	w, message, ended, client := n.w, slices.Clone(body), false, n.client
	n.sent = append(n.sent, carried(message))
	end := func(status int, reply []byte) {
		if !ended && !n.dead && n.client == client {
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

// carried lists the items of a message, in its order.
func carried(message []byte) string {
	m, err := wire.DecodeLeaseRequest(message)
	if err != nil {
		panic(err)
	}
	var all []string
	for _, it := range m.Items {
		if it.Nth > 0 {
			all = append(all, "settled")
		} else {
			all = append(all, "asked")
		}
	}
	return strings.Join(all, " ")
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
			answer.Waiting = w.serveSettlement(it.Reserved+uint64(it.Nth), it.Actual)
			if w.bugs.renames && w.r.IntN(3) == 0 {
				w.serveSettlement(it.Reserved+1<<16+uint64(it.Nth), it.Actual)
			}
		} else {
			ask := w.ask
			ask.Waiting, ask.Cost, ask.Reserved = it.Waiting, it.Cost, it.Reserved
			g, taken := w.ledger.grant(w.now, ask)
			for nth := range g.Waiting {
				name := it.Reserved + uint64(nth) + 1
				w.open[name], w.granted[name] = taken, w.now
			}
			answer = wire.LeaseAnswer{Waiting: g.Waiting, NotBefore: g.NotBefore, Level: g.Level,
				FullAfter: g.FullAfter}
		}
		reply.Items = append(reply.Items, answer)
	}
	return wire.AppendLeaseReply(nil, reply)
}

// serveSettlement is the control plane's store. It returns 1 if it knew the reservation.
func (w *settleWorld) serveSettlement(name uint64, actual int64) int64 {
	taken, known := w.open[name]
	if !known {
		return 0
	}
	if w.bugs.forgetsTime {
		taken.From, taken.At = w.now, w.now
	}
	if one := w.byName[name]; one != nil && one.owed == quota.Forever {
		one.owed = w.now
	}
	if !w.bugs.forgetsDebt || actual < taken.Tokens {
		w.ledger.settle(w.now, w.ask, taken, actual)
	}
	if !w.bugs.remembers {
		delete(w.open, name)
	}
	return 1
}

// request asks for the tokens that one request reserves.
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
		one := &settledRequest{at: w.now, granted: w.granted[t.Name], cost: 3, owed: quota.Forever}
		w.passed = append(w.passed, one)
		w.byName[t.Name] = one
		reserved := &leasing.Reservation{Need: t.Need, Name: t.Name}
		n.held[t.Name] = reserved
		client, actual := n.client, w.r.Int64N(w.most+1)
		w.after(quota.Span(w.r.Int64N(int64(4*quota.Second))), func() {
			if n.dead || n.client != client {
				return // Reservations left open by a crash or a trap stay charged, and count as the cost.
			}
			delete(n.held, t.Name)
			one.cost = actual
			client.Settle(w.now, reserved, actual)
		})
	}
}

// play sends requests for three windows, and waits for the last settlement.
func (w *settleWorld) play() {
	end := w.now + quota.Instant(3*settleWindow)
	for at := w.now; at < end; at += quota.Instant(w.r.Int64N(int64(200 * quota.Millisecond))) {
		w.due.Add(at, func() { w.nodes[len(w.nodes)-1-w.r.IntN(2)].request() })
	}
	for range 2 {
		at := w.now + quota.Instant(w.r.Int64N(int64(end-w.now)))
		switch {
		case !w.faulty:
		case w.r.IntN(2) == 0:
			w.due.Add(at, func() {
				w.nodes[len(w.nodes)-1].dead = true
				w.boot()
			})
		default:
			w.due.Add(at, w.nodes[w.r.IntN(2)].load)
		}
	}
	w.run(quota.Span(end-w.now) + 5*quota.Second)
}

func (w *settleWorld) run(span quota.Span) {
	end := w.now + quota.Instant(span)
	for e, ok := w.due.Next(end); ok; e, ok = w.due.Next(end) {
		w.now = e.At
		e.Fire()
	}
}

// minted returns an interval in which requests have cost more than its limit allows. The cost is
// the actual cost, or the reservation if the store did not know the actual cost when it granted the
// last request. It uses none of the limiter's computations.
func (w *settleWorld) minted() string {
	for last, k := range w.passed {
		sum := int64(0)
		for first := last; first >= 0; first-- {
			j := w.passed[first]
			length, algorithm := quota.Instant(settleWindow), w.need.Algorithm
			if algorithm == quota.FixedWindow && j.at/length != k.at/length ||
				algorithm.Windowed() && j.at <= k.at-length {
				break
			}
			cost := j.cost
			if j.owed >= k.granted { // The most that was known of it.
				cost = min(cost, 3)
			}
			sum += cost
			most := int64(settleQuota)
			if !algorithm.Windowed() {
				most += int64(k.at-j.at) * settleQuota / int64(settleWindow)
			}
			if sum > most {
				return fmt.Sprintf("%v: %d tokens from %d to %d, want at most %d", algorithm, sum, j.at, k.at, most)
			}
		}
	}
	return ""
}

// Messages are lost, doubled, late and out of order, and nodes crash and trap. Still requests cost
// no more than the limit, plus the cost beyond their reservations that the store does not know yet.
func TestSettlementsOverABadNetwork(t *testing.T) {
	seed := rand.Uint64()
	passed := 0
	for game := range *settleGames {
		w := newSettleWorld(seed, game, true)
		w.most += 5 * int64(game/4%2)
		w.play()
		passed += len(w.passed)
		if found := w.minted(); found != "" {
			t.Fatalf("seed %d, game %d: %s", seed, game, found)
		}
	}
	t.Logf("%d requests passed in %d games", passed, *settleGames)
	if passed < 4**settleGames {
		t.Errorf("seed %d: only %d requests passed in %d games", seed, passed, *settleGames)
	}
}

// Over a network that loses nothing the ledger of windows has exactly the cost of the requests, and
// nothing is left.
func TestSettlementsOverAGoodNetwork(t *testing.T) {
	seed := rand.Uint64()
	for game := range 60 {
		w := newSettleWorld(seed, game, false)
		w.play()
		if len(w.open) != 0 {
			t.Fatalf("seed %d, game %d: %d reservations are left", seed, game, len(w.open))
		}
		if lost := w.nodes[0].client.Stats.SettlementsLost + w.nodes[1].client.Stats.SettlementsLost; lost != 0 {
			t.Fatalf("seed %d, game %d: %d settlements were lost", seed, game, lost)
		}
		used, most := int64(0), int64(0) // Tokens count since the latest instant at which they may have been used.
		for _, one := range w.passed {
			if w.need.Algorithm.Windowed() && w.ask.Windows.Counts(one.at) > w.now {
				used += one.cost
			}
			if !w.need.Algorithm.Windowed() || w.ask.Windows.Counts(one.at+60*ms) > w.now {
				most += one.cost
			}
		}
		if held := w.ledger.holds(w.now, w.ask); held < min(used, settleQuota) || held > most {
			t.Fatalf("seed %d, game %d: the ledger holds %d, requests have cost %d to %d", seed, game, held, used, most)
		}
	}
}

// The games find bugs that would mint tokens.
func TestSettlementGamesFindBugs(t *testing.T) {
	seed := rand.Uint64()
	for name, bugs := range map[string]settleBugs{
		"a store that settles twice":           {remembers: true},
		"too little is forgotten":              {forgetsDebt: true},
		"tokens that came back are given back": {forgetsTime: true},
		"a settlement of another reservation":  {renames: true},
		"a trap gives back running requests":   {repays: true},
	} {
		found := false
		for game := 0; game < 10**settleGames && !found; game++ {
			w := newSettleWorld(seed, game, true)
			w.most += 5 * int64(game/4%2)
			w.bugs = bugs
			w.play()
			found = w.minted() != ""
		}
		if !found {
			t.Errorf("seed %d: %d games have not found: %s", seed, 10**settleGames, name)
		}
	}
}

// A refusal is asked for again at once if other requests have reserved tokens: returned tokens are
// there for the next request.
func TestReservedTokensAreAskedForAgain(t *testing.T) {
	w := newSettleWorld(1, 1, false) // A sliding log.
	n := w.nodes[0]
	for range 5 {
		n.request()
	}
	w.run(100 * quota.Millisecond)
	if len(w.passed) != 4 {
		t.Fatalf("%d passed, want 4 of 3 tokens each", len(w.passed))
	}
	w.run(20 * quota.Second)
	n.request()
	w.run(100 * quota.Millisecond)
	if len(w.passed) != 5 {
		t.Error(fmt.Sprint(len(w.passed), " passed: the refusal of before was repeated"))
	}
}

// A settlement leaves at once if no call with waiting requests is under way. Otherwise it leaves in
// the next such call, before the requests' own items.
func TestSettlementsTravelWithRequests(t *testing.T) {
	w := newSettleWorld(1, 1, false) // A sliding log.
	n := w.nodes[0]
	for range 4 {
		n.request()
		w.run(20 * quota.Millisecond)
	}
	var held []*leasing.Reservation
	for _, r := range n.held {
		held = append(held, r)
	}
	if len(held) != 4 {
		t.Fatalf("%d requests are under way, want 4", len(held))
	}
	n.sent = nil
	n.client.Settle(w.now, held[0], 2)
	if want := []string{"settled"}; !slices.Equal(n.sent, want) {
		t.Fatalf("sent %q, want %q", n.sent, want)
	}
	w.run(20 * quota.Millisecond)
	n.request() // One token is left of three that it wants.
	n.client.Settle(w.now, held[1], 0)
	n.client.Settle(w.now, held[2], 0)
	n.request()
	if want := []string{"settled", "asked"}; !slices.Equal(n.sent, want) {
		t.Fatalf("sent %q, want %q", n.sent, want)
	}
	w.run(20 * quota.Millisecond)
	if want := []string{"settled", "asked", "settled settled asked"}; !slices.Equal(n.sent, want) {
		t.Errorf("sent %q, want %q", n.sent, want)
	}
	if len(w.passed) != 5 {
		t.Errorf("%d passed, want one more: returned tokens serve the request beside it", len(w.passed))
	}
}

// tally counts settlements.
type tally struct{ settled, back int64 }

func (c *tally) CountSettled(back int64) {
	c.settled++
	c.back += back
}

// A settlement is counted by the control plane's answer: by the tokens that the bucket gave back. A
// settlement that the control plane does not know was lost, unless an earlier call may have brought
// it.
func TestSettlementsAreCountedAsAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		answers []wire.LeaseAnswer // without an earlier call, the call is lost
		want    tally
		lost    uint64
	}{
		"given back": {[]wire.LeaseAnswer{{Waiting: 1, Level: 2500}}, tally{1, 2500}, 0},
		"taken":      {[]wire.LeaseAnswer{{Waiting: 1, Keep: 4000}}, tally{1, -4000}, 0},
		"nothing":    {[]wire.LeaseAnswer{{Waiting: 1}}, tally{1, 0}, 0},
		"not known":  {[]wire.LeaseAnswer{{}}, tally{}, 1},
		"no limit":   {[]wire.LeaseAnswer{{State: wire.ItemUnknown}}, tally{}, 1},
		"away first": {[]wire.LeaseAnswer{{State: wire.ItemUnavailable}, {Waiting: 1, Level: 7}}, tally{1, 7}, 0},
		"sent twice": {[]wire.LeaseAnswer{{State: wire.ItemUnavailable}, {}}, tally{1, 0}, 0},
	} {
		clock, data, said := &clock{now: 1000 * ms}, &shareddatatest.Data{}, &tally{}
		lab := &answering{answers: c.answers}
		client := leasing.New(leasing.Config{
			Store: bucketstore.New(data, [4]byte{}, 64, 0), Client: lab, Clock: clock, Shared: data,
			Node: "node", Boot: 1,
		})
		client.Settle(clock.now, &leasing.Reservation{Need: leasing.Need{Version: 1}, Name: 1<<16 + 1, Tally: said}, 1)
		for range 100 {
			clock.now += 10 * ms
			client.Tick(clock.now)
		}
		if *said != c.want || client.Stats.SettlementsLost != c.lost {
			t.Errorf("%s: %+v and %d lost, want %+v and %d", name, *said, client.Stats.SettlementsLost, c.want, c.lost)
		}
	}
}

// answering is a control plane that has an answer for each call.
type answering struct{ answers []wire.LeaseAnswer }

// Call implements rpc.Client.
func (a *answering) Call(_ string, body []byte, _ quota.Span, done func(int, []byte)) error {
	m, err := wire.DecodeLeaseRequest(body)
	if err != nil || len(m.Items) != 1 || len(a.answers) == 0 {
		panic(fmt.Sprint("asked for ", m.Items, " with an error of ", err))
	}
	reply := wire.LeaseReply{Seq: m.Seq, Nodes: 1, Items: a.answers[:1]}
	a.answers = a.answers[1:]
	done(200, wire.AppendLeaseReply(nil, reply))
	return nil
}
