package wasm

import (
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/filter/scenariotest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// plane is the control plane as nodes see it: it grants at the world's time, and hands out
// snapshots by long poll. Tests make it slow, silent or mad.
type plane struct {
	*scenariotest.Plane
	w      *world
	secret [16]byte
	// lent has the answers about permits.
	lent lentPermits

	// orders are the orders beside the policy set.
	orders wire.Enforcement

	polls    []*poll   // that wait
	heard    []poll    // all there were
	granted  []granted // every item decided
	requests int       // lease requests that came in

	// lag says how long a lease request takes to the control plane and the reply back; nil: as the
	// fleet says.
	lag func() (up, down time.Duration)
	// lease, if set, may answer a lease request in its own way; it reports whether it did. snapshot
	// and reply change bytes on their way out.
	lease    func(c *envoytest.Call, req wire.LeaseRequest) bool
	snapshot func([]byte) []byte
	reply    func(*wire.LeaseReply)
	// down is true if neither polls nor lease requests nor reports are answered. reports are the
	// received reports.
	down    bool
	reports []report
	// people are the records of consumers, as of the revision; with nil no node hears of any.
	people   map[keyhash.Key]wire.Consumer
	revision uint64
	// questions about consumers that came in.
	questions int
	// offences counts reports of penalties, which are not taken if unjust.
	offences int
	unjust   bool
	// decisions are the reports of workers about whom they limited, as copies.
	decisions []heard
	// measured is how many reports had measures, measures their sums by policy, and
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
	c := &plane{
		w: w, secret: [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
		lent: lentPermits{}, measures: map[string]wire.Measure{},
	}
	c.Plane = scenariotest.NewPlane(c.instant)
	c.Nodes = int64(w.fleet.nodes)
	c.Granted = func(node int, item wire.LeaseItem, g lease.Grant) {
		c.granted = append(c.granted, granted{node, w.now, item, g})
	}
	c.Claimed = c.note
	return c
}

// instant returns the control plane's own clock, which has nothing to do with the nodes'.
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
		reply := c.Grant(node, req)
		if c.reply != nil {
			c.reply(&reply)
		}
		call.Respond(down, 200, nil, wire.AppendLeaseReply(nil, reply))
	})
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
	if c.Version != p.after || c.orders.Revision != p.obeys || p.consumers() < c.revision {
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
		case c.Version != p.after:
			c.close(p, 200, c.bytes(c.Version))
		case p.consumers() < c.revision:
			c.close(p, 200, wire.AppendConsumers(nil, c.consumers()))
		default:
			still = append(still, p)
		}
	}
	c.polls = still
}

// bytes returns the snapshot of a version as it goes out.
func (c *plane) bytes(version uint64) []byte {
	b := wire.AppendSnapshot(nil, wire.Snapshot{Version: version, Secret: c.secret, Set: c.Sets[version]})
	if c.snapshot != nil {
		b = c.snapshot(b)
	}
	return b
}

// push makes a policy set the next version and sends it to the nodes that wait for a version.
func (c *plane) push(set string) uint64 { return c.pushAs(c.Version+1, set) }

// pushAs pushes a set with any version number.
func (c *plane) pushAs(version uint64, set string) uint64 {
	c.w.t.Helper()
	c.Push(version, decode(c.w.t, set))
	c.wake()
	return c.Version
}

// order replaces the orders and sends them to the nodes that wait.
func (c *plane) order(orders ...wire.Order) {
	c.orders.Revision++
	c.orders.Orders = orders
	c.wake()
}

// lastPoll returns the newest poll of a node.
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

// most returns burst + rate·t for the whole of span.
func (l *law) most(span time.Duration) float64 {
	return float64(l.params.Burst) + float64(span.Microseconds())*float64(l.params.Num)/float64(l.params.Den)
}
