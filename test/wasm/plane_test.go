package wasm

import (
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// plane is the control plane as nodes see it: it grants by the real arithmetic, at the world's
// time, and hands out snapshots by long poll. Tests make it slow, silent or mad.
type plane struct {
	w       *world
	secret  [16]byte
	sets    map[uint64]*policy.Set
	version uint64
	ledgers map[keyhash.Key]lease.Ledger
	windows map[keyhash.Key]lease.WindowLedger
	permits map[keyhash.Key]inflight.Ledger
	// lent is what was answered about permits, lostUntil until when they are in doubt.
	lent      lentPermits
	lostUntil quota.Instant

	// orders are what is ordered beside the policy set.
	orders wire.Enforcement

	polls    []*poll   // that wait
	heard    []poll    // all there were
	granted  []granted // every item decided
	requests int       // lease requests that came in

	// nodes is what replies say of the number of nodes; 0 means as many as there are.
	nodes int64
	// lag says how long a lease request takes to the control plane and the reply back; nil: as the
	// fleet says.
	lag func() (up, down time.Duration)
	// lease, if set, may answer a lease request in its own way; it reports whether it did. snapshot
	// and reply change bytes on their way out.
	lease    func(c *envoytest.Call, req wire.LeaseRequest) bool
	snapshot func([]byte) []byte
	reply    func(*wire.LeaseReply)
	// down: neither polls nor lease requests nor reports are answered. reports are those that came
	// in.
	down    bool
	reports []report
	// names: replies name the terms of tokens to keep, and returned are those that came back.
	names    bool
	returned int64
	took     map[uint64]bool
	// people is what is known of consumers, as of the revision; nil: no node hears of any.
	people   map[keyhash.Key]wire.Consumer
	revision uint64
	// questions about consumers that came in.
	questions int
	// offences counts reports of penalties, which are answered with the status penal.
	offences, penal int
	// decisions are the reports of workers about whom they limited, as copies.
	decisions []heard
	// measured is how many messages about measures there were, measures their sums by policy, and
	// of Used the highest.
	measured int
	measures map[string]wire.Measure
}

// poll is one request for a snapshot.
type poll struct {
	node     int
	at       time.Duration
	after    uint64
	applied  uint64
	refused  uint64
	obeys    uint64 // the revision of orders
	reason   string
	query    url.Values
	call     *envoytest.Call
	answered bool
}

// granted is one item of a lease request with its answer.
type granted struct {
	node int
	at   time.Duration
	item wire.LeaseItem
	lease.Grant
}

func newPlane(w *world) *plane {
	return &plane{
		w: w, secret: [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
		sets: map[uint64]*policy.Set{}, ledgers: map[keyhash.Key]lease.Ledger{},
		windows: map[keyhash.Key]lease.WindowLedger{},
		permits: map[keyhash.Key]inflight.Ledger{}, lent: lentPermits{}, measures: map[string]wire.Measure{},
	}
}

// instant is the control plane's own clock, which has nothing to do with the nodes'.
func (c *plane) instant() quota.Instant { return quota.Instant(1<<50 + c.w.now.Microseconds()) }

func (c *plane) handle(node int, call *envoytest.Call) {
	t := c.w.t
	if call.Header("authorization") != "Bearer "+token || call.Header(":authority") != "weir" ||
		call.Cluster != "weir" {
		t.Errorf("a call without the node token: %v", call.Headers)
	}
	switch path := call.Header(":path"); {
	case path == "/node/v1/leases" && call.Header(":method") == "POST":
		c.handleLease(node, call)
	case path == "/node/v1/consumers" && call.Header(":method") == "POST":
		c.handleQuestion(call)
	case strings.HasPrefix(path, "/node/v1/snapshot?") && call.Header(":method") == "GET":
		c.handlePoll(node, call, path)
	case path == "/node/v1/report" && call.Header(":method") == "POST":
		c.handleReport(node, call)
	case path == "/node/v1/penalties" && call.Header(":method") == "POST":
		c.offences++
		call.Respond(c.w.fleet.down, c.penal, nil, nil)
	case path == "/node/v1/decisions" && call.Header(":method") == "POST":
		c.handleDecisions(node, call)
	case path == "/node/v1/measures" && call.Header(":method") == "POST":
		c.handleMeasures(node, call)
	default:
		t.Errorf("a call to %s %s", call.Header(":method"), path)
	}
}

func (c *plane) handleLease(node int, call *envoytest.Call) {
	c.requests++
	req, err := wire.DecodeLeaseRequest(call.Body)
	if err != nil {
		c.w.t.Errorf("a lease request: %v", err)
		return
	}
	if c.down || c.lease != nil && c.lease(call, req) {
		return
	}
	up, down := c.w.fleet.up, c.w.fleet.down
	if c.lag != nil {
		up, down = c.lag()
	}
	c.w.after(up, func() {
		reply := c.grant(node, req)
		if c.reply != nil {
			c.reply(&reply)
		}
		call.Respond(down, 200, nil, wire.AppendLeaseReply(nil, reply))
	})
}

// grant answers a lease request as the control plane does: figures come from the newest set,
// policies are followed by name.
func (c *plane) grant(node int, req wire.LeaseRequest) wire.LeaseReply {
	nodes := c.nodes
	if nodes == 0 {
		nodes = int64(len(c.w.nodes))
	}
	reply := wire.LeaseReply{Seq: req.Seq, Nodes: nodes}
	for from := 0; from < len(req.Items); {
		to := from + 1
		for req.Items[to-1].Joined {
			to++
		}
		reply.Items = append(reply.Items, c.grantTogether(node, req.Version, nodes, req.Items[from:to])...)
		from = to
	}
	return reply
}

// grantTogether answers the items of one request, or a single one. Several are granted all, or
// none: then those that had the tokens say no time to wait.
func (c *plane) grantTogether(node int, version uint64, nodes int64, items []wire.LeaseItem) []wire.LeaseAnswer {
	answers := make([]wire.LeaseAnswer, len(items))
	whole := true
	if len(items) > 1 {
		for i, it := range items {
			if ask, ok := c.ask(version, nodes, it); ok {
				g := c.look(it.Bucket, ask)
				answers[i] = wire.LeaseAnswer{NotBefore: g.NotBefore, Level: g.Level, FullAfter: g.FullAfter}
				whole = whole && g.NotBefore == 0
			} else {
				answers[i].State, whole = wire.ItemUnknown, false
			}
		}
	}
	for i, it := range items {
		if it.Seq > 0 {
			answers[i] = c.claim(node, version, nodes, it)
			continue
		}
		ask, ok := c.ask(version, nodes, it)
		if !ok {
			answers[i].State = wire.ItemUnknown
			continue
		}
		if it.Term != 0 {
			c.takeBack(&it)
			continue
		}
		var g lease.Grant
		if whole {
			g = c.charge(it.Bucket, ask)
			answers[i] = wire.LeaseAnswer{Waiting: g.Waiting, Keep: g.Keep, NotBefore: g.NotBefore, Level: g.Level,
				FullAfter: g.FullAfter, Debt: g.Debt}
			if c.names {
				answers[i].Term = g.Term
			}
			if ask.Deadline == 0 {
				answers[i].Delay = g.Delay
			}
		}
		c.granted = append(c.granted, granted{node, c.w.now, it, g})
	}
	return answers
}

// takeBack takes tokens back, once by the name of the return.
func (c *plane) takeBack(it *wire.LeaseItem) {
	if c.took == nil {
		c.took = map[uint64]bool{}
	}
	if c.took[it.Reserved] {
		return
	}
	c.took[it.Reserved] = true
	back := lease.Back{Unused: it.Returned, Used: it.Used}
	if l, ok := c.windows[it.Bucket]; ok {
		c.windows[it.Bucket], back = l.TakeBack(c.instant(), it.Term, back)
	} else {
		c.ledgers[it.Bucket], back = c.ledgers[it.Bucket].TakeBack(c.instant(), it.Term, back)
	}
	c.returned += back.Unused
}

// claim answers a claim of permits.
func (c *plane) claim(node int, version uint64, nodes int64, it wire.LeaseItem) wire.LeaseAnswer {
	_, limit := c.resolve(version, it.Limit)
	if !limit.InFlight {
		return wire.LeaseAnswer{State: wire.ItemUnknown}
	}
	claim := inflight.Claim{
		Node: inflight.Node{ID: strconv.Itoa(node)}, Seq: it.Seq, Hold: it.Hold, Lent: it.Lent, Need: it.Waiting,
		Spare: it.Keep, Limit: limit.Quota, Nodes: nodes, Doubt: quota.Span(max(c.lostUntil-c.instant(), 0)),
	}
	ledger, a := c.permits[it.Bucket].Claim(c.instant(), claim)
	c.permits[it.Bucket] = ledger
	if a.For > 0 {
		c.lent.note(it.Bucket, claim, a.Permits, c.instant())
	}
	return wire.LeaseAnswer{Keep: a.Permits, Level: a.Free, For: a.For, NotBefore: a.Doubt}
}

// held is how many permits are with nodes.
func (c *plane) held() (permits int64) {
	for _, ledger := range c.permits {
		permits += ledger.Held(c.instant())
	}
	return permits
}

// ask is what an item asks for, by the newest figures.
func (c *plane) ask(version uint64, nodes int64, it wire.LeaseItem) (lease.Ask, bool) {
	p, limit := c.resolve(version, it.Limit)
	if p == nil {
		return lease.Ask{}, false
	}
	ask := lease.Ask{
		Params: limit.Params, Version: c.version, Waiting: it.Waiting, Cost: it.Cost, Deadline: lease.Deadline,
		Keep: it.Keep, Nodes: nodes, Used: it.Used,
		Optimistic: p.Mode == policy.ModeOptimistic,
	}
	if it.Quota > 0 {
		ask.Params, ask.Most = limit.For(it.Quota, it.Burst).Params, limit.Params
	}
	if limit.Algorithm.Windowed() {
		ask.Windows = limit.WindowsOf(it.Bucket)
	}
	if limit.Algorithm == quota.LeakyBucket {
		ask.Deadline = 0 // A turn in a queue is used at its own time.
	}
	if p.Mode == policy.ModeStrict {
		ask.Keep = 0
	}
	return ask, true
}

func (c *plane) look(bucket keyhash.Key, ask lease.Ask) lease.Grant {
	var g lease.Grant
	if ask.Windows.Quota > 0 {
		_, g = c.windows[bucket].Look(c.instant(), ask)
	} else {
		_, g = c.ledgers[bucket].Look(c.instant(), ask)
	}
	return g
}

func (c *plane) charge(bucket keyhash.Key, ask lease.Ask) lease.Grant {
	if ask.Windows.Quota > 0 {
		l, g := c.windows[bucket].Grant(c.instant(), ask)
		if g.Changed {
			c.windows[bucket] = l
		}
		return g
	}
	l, g := c.ledgers[bucket].Grant(c.instant(), ask)
	if g.Changed {
		c.ledgers[bucket] = l
	}
	return g
}

// resolve follows a limit's index in a version to the newest one, by the policy's name and the
// limit's index in it, or among its candidates, which come behind.
func (c *plane) resolve(version uint64, number uint32) (*policy.Policy, policy.Limit) {
	meant, current := c.sets[version], c.sets[c.version]
	if meant == nil {
		return nil, policy.Limit{}
	}
	limits := func(p *policy.Policy, candidate bool) []policy.Limit {
		if candidate {
			return p.Candidate
		}
		return p.Limits
	}
	for i := range meant.Policies {
		was := &meant.Policies[i]
		for _, candidate := range []bool{false, true} {
			if n := uint32(len(limits(was, candidate))); number >= n {
				number -= n
				continue
			}
			for i := range current.Policies {
				p := &current.Policies[i]
				of := limits(p, candidate)
				if p.Name == was.Name && p.Mode != policy.ModeLocal && int(number) < len(of) {
					return p, of[number]
				}
			}
			return nil, policy.Limit{}
		}
	}
	return nil, policy.Limit{}
}

func (c *plane) handlePoll(node int, call *envoytest.Call, path string) {
	_, query, _ := strings.Cut(path, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		c.w.t.Errorf("the query of a poll: %v", err)
	}
	number := func(name string) uint64 {
		n, _ := strconv.ParseUint(values.Get(name), 10, 64)
		return n
	}
	p := &poll{
		node: node, at: c.w.now, call: call, query: values,
		after: number("after"), applied: number("applied"), refused: number("refused"), reason: values.Get("reason"),
		obeys: number("enforcement"),
	}
	c.heard = append(c.heard, *p)
	if c.down {
		return
	}
	c.polls = append(c.polls, p)
	c.w.after(25*time.Second, func() { c.close(p, 204, nil) })
	if c.version != p.after || c.orders.Revision != p.obeys || p.consumers() < c.revision {
		c.w.after(c.w.fleet.up, c.wake)
	}
}

func (c *plane) close(p *poll, status int, body []byte) {
	if !p.answered {
		p.answered = true
		p.call.Respond(c.w.fleet.down, status, nil, body)
	}
}

// wake answers the polls that have something to learn.
func (c *plane) wake() {
	still := c.polls[:0]
	for _, p := range c.polls {
		switch {
		case p.answered || c.down:
		case c.orders.Revision != p.obeys:
			c.close(p, 200, wire.AppendEnforcement(nil, &c.orders))
		case c.version != p.after:
			c.close(p, 200, c.bytes(c.version))
		case p.consumers() < c.revision:
			c.close(p, 200, wire.AppendConsumers(nil, c.consumers()))
		default:
			still = append(still, p)
		}
	}
	c.polls = still
}

// bytes is the snapshot of a version as it goes out.
func (c *plane) bytes(version uint64) []byte {
	b := wire.AppendSnapshot(nil, wire.Snapshot{Version: version, Secret: c.secret, Set: c.sets[version]})
	if c.snapshot != nil {
		b = c.snapshot(b)
	}
	return b
}

// push makes a policy set the next version and sends it to the nodes that wait for one.
func (c *plane) push(set string) uint64 { return c.pushAs(c.version+1, set) }

// pushAs is push with any version number.
func (c *plane) pushAs(version uint64, set string) uint64 {
	c.w.t.Helper()
	c.version = version
	c.sets[c.version] = decode(c.w.t, set)
	c.wake()
	return c.version
}

// order replaces what is ordered and tells the nodes that wait.
func (c *plane) order(orders ...wire.Order) {
	c.orders.Revision++
	c.orders.Orders = orders
	c.wake()
}

// lastPoll is the newest poll of a node.
func (c *plane) lastPoll(node int) poll {
	c.w.t.Helper()
	for i := len(c.heard) - 1; i >= 0; i-- {
		if c.heard[i].node == node {
			return c.heard[i]
		}
	}
	c.w.t.Fatalf("node %d has never polled", node)
	return poll{}
}

// A law is the promise of a token bucket over all who draw on it: at most burst + rate·t in every
// interval. It holds if and only if a bucket that is charged with every use never overflows; units
// are exact.
type law struct {
	params quota.Params
	debt   int64
	last   time.Duration
	used   int64
	// worst is the greatest overdraft seen, in units.
	worst int64
}

func newLaw(t testing.TB, n int64, window quota.Span, burst int64) *law {
	t.Helper()
	p, err := quota.NewParams(n, window, burst)
	if err != nil {
		t.Fatal(err)
	}
	return &law{params: p}
}

// use notes n tokens used at a time that is not before the last.
func (l *law) use(at time.Duration, n int64) {
	l.debt = max(0, l.debt-(at-l.last).Microseconds()*l.params.Num) + n*l.params.Den
	l.last = at
	l.used += n
	l.worst = max(l.worst, l.debt-l.params.Burst*l.params.Den)
}

// check fails the test if the law was broken.
func (l *law) check(t testing.TB, what string) {
	t.Helper()
	if l.worst > 0 {
		t.Errorf("%s: %d tokens more than burst + rate·t in some interval", what, l.params.TokensIn(l.worst))
	}
}

// most is burst + rate·t for the whole of span.
func (l *law) most(span time.Duration) float64 {
	return float64(l.params.Burst) + float64(span.Microseconds())*float64(l.params.Num)/float64(l.params.Den)
}
