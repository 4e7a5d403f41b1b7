// Package leasing asks the control plane for tokens: for which buckets, for how many, and when.
//
// Requests wait in a queue, each for one bucket or for several. Requests that wait for the same
// bucket and cost the same share an item of a call, and items share calls. Tokens that the node
// wants to keep, reports of what it has used of optimistic buckets, debts, settlements and claims
// of permits travel with these calls or with calls of their own. A Client belongs to one VM.
//
// call.go has what waits and what travels, queue.go decides what is asked for next, send.go sends
// it, and reply.go takes in what comes back: an answer sends what has waited for it.
package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/inflight"
	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/filter/internal/shareddata"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Stats counts what a client did, for the filter's metrics.
type Stats struct {
	Calls rpc.Counts
	// ItemsUnknown counts answers about buckets that the control plane does not know.
	ItemsUnknown uint64
	// SettlementsLost counts settlements that the control plane did not take in time: what was
	// reserved stays charged, and what was too little is not.
	SettlementsLost uint64
	// Lapsed are tokens whose lease ended before a request used them, and Returned those that were
	// given back before that.
	Lapsed, Returned uint64
}

// Client asks the control plane on behalf of one VM. Make one with New.
type Client struct {
	Stats  Stats
	Health Health

	store       *bucketstore.Store
	flights     *inflight.Book
	rpc         rpc.Client
	clock       rpc.Clock
	sharedNodes shareddata.Number
	nodesAsked  shareddata.Number
	node        string
	boot        uint64
	seq         uint64
	// random is what requests draw, and chance what trials draw.
	random, chance rpc.Rand
	// lastUsed is about tokens of requests, and lastTried about those of trials.
	lastUsed, lastTried lastUsed

	queue queue
	room  room
	// pace is that of calls for requests, and trialPace that of those for trials.
	pace, trialPace pace
	reports         reports
	// underWay are the calls that may become late, the first one first; late are those that have,
	// whose answers are awaited.
	underWay []*call
	late     []*call
	// held are answers that wait for that to a report.
	held []heldAnswer
	// lastSent is when the last call was sent.
	lastSent    quota.Instant
	debts       debts
	returns     returns
	settlements settlements
	// claiming is how many calls with claims of permits are under way, trying how many for trials.
	claiming, trying int
	// last is what the last call asked for first. A probe asks for it again.
	last Need

	// What follows is reused from call to call: a local one would escape to the heap each time.
	spend Spend
	items []wire.LeaseItem
	body  []byte
	reply wire.LeaseReply
}

// Config is what a client needs. All fields but Seed are required.
type Config struct {
	Store *bucketstore.Store
	// Flights are the requests in flight, for which permits are claimed.
	Flights *inflight.Book
	Client  rpc.Client
	Clock   rpc.Clock
	// Shared and Space are where the workers of the process share how many nodes there are.
	Shared shareddata.Data
	Space  shareddata.Space
	// Node is the id of the node.
	Node string
	// Boot is random for each process.
	Boot uint64
	// Seed is random for each worker.
	Seed uint64
}

// New makes a client.
func New(config Config) *Client {
	return &Client{
		store: config.Store, flights: config.Flights, rpc: config.Client, clock: config.Clock,
		sharedNodes: shareddata.NewNumber(config.Shared, config.Space, shareddata.Nodes),
		nodesAsked:  shareddata.NewNumber(config.Shared, config.Space, shareddata.NodesAsked),
		node:        config.Node, boot: config.Boot,
		random: rpc.NewRand(config.Seed), chance: rpc.NewRand(^config.Seed),
		queue: queue{lines: make(map[keyhash.Key]*line), together: make(map[keyhash.Key]int)}, room: newRoom(),
		settlements: settlements{names: (config.Boot ^ config.Seed*0x9e3779b97f4a7c15) << nameBits},
	}
}

// TakeOver goes on with what another client of the VM still had to say: which tokens it gives back,
// and what requests have cost. Its plugin context is gone, and with it all answers.
func (c *Client) TakeOver(other *Client) {
	for _, p := range other.returns.pending {
		c.returns.note(p.need, p.at)
	}
	c.returns.lost = append(c.returns.lost, other.returns.lost...)
	c.settlements.waiting = append(c.settlements.waiting, other.settlements.waiting...)
}

// shareOutHeld shares out the answers that were held, as far as they can be used by now, or as they
// come too late.
func (c *Client) shareOutHeld(now quota.Instant) {
	held := c.held
	c.held = nil
	for _, h := range held {
		h.call.waits--
		c.shareOut(h.call, h.items, h.answers, now)
		c.over(h.call, now)
	}
}

// Nodes is how many nodes share the buckets, by the last answer to any worker of this process; 1
// before the first. A worker that has had no answer itself would take the whole limit for its
// share.
func (c *Client) Nodes() int64 { return max(c.sharedNodes.Load(), 1) }

// HearNodes takes over how many nodes and doors share the buckets, in decimal, from the answer to a
// poll. A node that has asked for no tokens yet knows it from there. Other text says nothing. It
// sets no slack: a first poll can come before the control plane knows the other nodes, and a slack
// that it sets would be used before the bucket's tokens are known.
func (c *Client) HearNodes(text []byte) {
	n := int64(0)
	for _, digit := range text {
		if digit < '0' || digit > '9' || n > wire.MaxNodes {
			return
		}
		n = n*10 + int64(digit-'0')
	}
	if n > 0 && n <= wire.MaxNodes && n != c.sharedNodes.Load() {
		c.sharedNodes.Store(n)
	}
}

// Shared reports whether other nodes share the buckets, as far as this VM knows.
func (c *Client) Shared() bool { return c.reports.nodes > 1 }

// Slack is what this node may use of an optimistic bucket before the control plane knows.
func (c *Client) Slack(p quota.Params) int64 { return c.reports.slack(p) }

// TakeResolved returns streams whose tickets have ended, the first ones and at most so many. The
// slice is good until the next resolution.
func (c *Client) TakeResolved(most int) []uint32 { return c.queue.resolved.Take(most) }

// Waiting is the number of requests that wait.
func (c *Client) Waiting() int { return c.queue.waiting }
