package wasm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// lentPermits are the answered claims of a bucket that control planes remember, the newest claim of
// each node.
type lentPermits map[keyhash.Key]map[string]lentClaim

type lentClaim struct {
	inflight.Claim
	at quota.Instant
}

// note remembers an answered claim, as leases.Lent does.
func (c *plane) note(bucket keyhash.Key, claim inflight.Claim, granted int64) {
	if c.lent[bucket] == nil {
		c.lent[bucket] = map[string]lentClaim{}
	}
	if known := c.lent[bucket][claim.Node.ID]; known.Seq <= claim.Seq {
		claim.Hold, claim.Lent, claim.Need, claim.Spare = max(granted, claim.Hold), granted, 0, 0
		c.lent[bucket][claim.Node.ID] = lentClaim{claim, c.instant()}
	}
}

// lose makes the store lose the holders of permits, and know it: they are in doubt for the time
// doubt. At the instant given, control planes give back the claims that they remember; 0 is never.
func (c *plane) lose(doubt, given time.Duration) {
	c.Permits = map[keyhash.Key]inflight.Ledger{}
	c.LostUntil = c.instant() + quota.Instant(doubt.Microseconds())
	if given == 0 {
		return
	}
	c.w.after(given, func() {
		for bucket, nodes := range c.lent {
			for _, again := range nodes {
				if c.instant() < again.at+quota.Instant(inflight.TTL) {
					again.Doubt = max(quota.Span(c.LostUntil-c.instant()), 1)
					c.Permits[bucket], _ = c.Permits[bucket].Claim(c.instant(), again.Claim)
				}
			}
		}
	})
}

const (
	lostPlaces = `{"name": "places", "partition": ["header:x-key"], "mode": "leased", "limit": {"in_flight": %d},
		"on_failure": ["share"]%s}`
	// penalised is a penalty for callers that are refused because of their own use.
	penalised = `, "penalty": {"after": {"refusals": 5, "within": "1m"}, "for": "1m"}`
)

// throng is clients of one bucket that ask for places at several Envoys, each again and again.
type throng struct {
	*world
	r       *rand.Rand
	limit   int
	clients []throngClient
	// open is how many requests of each node are in flight.
	open []int
	// used are the milliseconds for which places were in use at each node, and refused the requests
	// that it refused, both since the last pass.
	used, refused []int
}

type throngClient struct {
	node, worker int
	stream       *envoytest.Stream
	held         bool
	// next is when it asks, or its request ends. It pauses after each request.
	next, pause time.Duration
}

func newThrong(t *testing.T, r *rand.Rand, nodes, limit, clients int, pause time.Duration, fields string) *throng {
	t.Helper()
	c := &throng{
		world: newWorld(t, fleet{nodes: nodes, workers: 2, set: setOf(fmt.Sprintf(lostPlaces, limit, fields))}),
		r:     r, open: make([]int, nodes), limit: limit,
	}
	for i := range nodes * clients {
		one := throngClient{node: i % nodes, worker: i / nodes % 2, next: c.within(100 * time.Millisecond)}
		if pause > 0 {
			one.pause = c.within(pause)
		}
		c.clients = append(c.clients, one)
	}
	return c
}

// within returns a random time of at least a millisecond.
func (c *throng) within(most time.Duration) time.Duration {
	return time.Duration(1+c.r.IntN(int(most/time.Millisecond))) * time.Millisecond
}

func (c *throng) pass(span time.Duration) {
	c.used, c.refused = make([]int, len(c.nodes)), make([]int, len(c.nodes))
	c.run(span, func() {
		for i := range c.clients {
			c.move(&c.clients[i])
		}
		sum := 0
		for node, n := range c.open {
			c.used[node] += n
			sum += n
		}
		if sum > c.limit {
			c.t.Fatalf("at %v %v in flight of %d", c.now, c.open, c.limit)
		}
	})
	if c.plane.offences > 0 {
		c.t.Error("a caller was penalised")
	}
}

func (c *throng) move(one *throngClient) {
	if one.held && c.now >= one.next {
		one.stream.Respond(200, nil)
		one.stream, one.held, one.next = nil, false, c.now+one.pause
		c.open[one.node]--
	}
	if one.stream == nil && c.now >= one.next {
		one.stream = c.nodes[one.node].Worker(one.worker).Request(get("x-key", "k"))
	}
	if one.stream == nil || one.held {
		return
	}
	switch one.stream.State() {
	case envoytest.Paused:
	case envoytest.Continued:
		one.held, one.next = true, c.now+c.within(60*time.Millisecond)
		c.open[one.node]++
	default:
		c.refused[one.node]++
		// A node that has all of the limit in flight itself may say so.
		d, _ := readDecision(c.t, one.stream)
		if d.reason != "failure" && (d.reason != "in_flight" || c.open[one.node] < c.limit) {
			c.t.Errorf("at %v, with %v in flight of %d: %q", c.now, c.open, c.limit, d.reason)
		}
		one.stream, one.next = nil, c.now+c.within(20*time.Millisecond)
	}
}

// loss is a loss of the store's holders of permits: it is in doubt about them for a time.
type loss struct {
	name  string
	doubt time.Duration
	// given is true if control planes give back the claims that they remember.
	given bool
}

var losses = []loss{
	{"Redis has lost them", time.Second, true},
	{"some cannot be read in the embedded store", time.Duration(inflight.RenewedIn) * time.Microsecond, false},
	{"another server has them all", 0, false},
}

func (c *throng) lose(l loss) {
	if l.doubt == 0 {
		return
	}
	given := time.Duration(0)
	if l.given {
		given = c.within(l.doubt - time.Millisecond)
	}
	c.plane.lose(l.doubt, given)
}

// Whatever the store loses of who holds permits, Envoys whose clients ask for more than there is
// have their share in use in every second, as before.
func TestSharesAreInUseWhateverIsLost(t *testing.T) {
	for _, l := range losses {
		t.Run(l.name, func(t *testing.T) {
			for n := range uint64(2) {
				r := rand.New(rand.NewPCG(51, n))
				nodes := 2 + r.IntN(3)
				limit := nodes * (1 + r.IntN(6))
				c := newThrong(t, r, nodes, limit, limit+10, 0, "")
				c.pass(2*time.Second + c.within(time.Second))
				c.lose(l)
				for second := range 5 {
					c.pass(time.Second)
					for node, used := range c.used {
						// The next request comes within some milliseconds after one has ended.
						if share := limit / nodes; used < share*850 {
							t.Errorf("game %d, second %d: node %d of %d has used a share of %d for %d ms",
								n, second, node, nodes, share, used)
						}
					}
				}
			}
		})
	}
}

// Envoys whose clients never ask for more than their share are refused nothing, but while permits
// are in doubt that have lain idle, and once more until they have asked again.
func TestShareIsRefusedInDoubtAlone(t *testing.T) {
	const askedAgainIn = 250 * time.Millisecond
	refused := 0
	for _, l := range losses {
		t.Run(l.name, func(t *testing.T) {
			for n := range uint64(2) {
				r := rand.New(rand.NewPCG(52, n))
				nodes := 2 + r.IntN(3)
				share := 2 + r.IntN(4)
				c := newThrong(t, r, nodes, nodes*share, share, 300*time.Millisecond, penalised)
				none := func(when string) {
					if slices.Max(c.refused) > 0 {
						t.Errorf("game %d: %v are refused %s", n, c.refused, when)
					}
				}
				c.pass(2*time.Second + c.within(time.Second))
				none("before")
				c.lose(l)
				if l.doubt > 0 {
					c.pass(l.doubt + askedAgainIn)
					refused += slices.Max(c.refused)
				}
				c.pass(2 * time.Second)
				none("once all is known again")
			}
		})
	}
	if refused == 0 {
		t.Error("nothing was refused in doubt: the losses have no effect")
	}
}
