// Package leasing asks the control plane for tokens: for which buckets, for how many, and when.
//
// Requests wait in a queue, each for one bucket or for several. Requests that wait for the same
// bucket and cost the same share an item of a call, and items share calls. Tokens to keep, reports
// of used tokens of optimistic buckets, debts, settlements and claims of permits travel in these
// calls or in calls of their own. A Client belongs to one VM.
//
// call.go has the types of tickets, lines, calls and items. queue.go chooses the lines of the next
// call, send.go sends it, and reply.go reads the answer, which can cause the next call.
package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Stats counts the work of a client, for the filter's metrics.
type Stats struct {
	Calls rpc.Counts
	// ItemsUnknown counts answers about buckets that the control plane does not know.
	ItemsUnknown uint64
	// SettlementsLost counts settlements that the control plane did not take in time. A reservation
	// that was too large stays charged; a missing charge is never made.
	SettlementsLost uint64
	// Lapsed counts tokens whose lease ended before a request used them. Returned counts tokens
	// that were given back before their lease ended.
	Lapsed, Returned uint64
}

// Client asks the control plane on behalf of one VM. Make a Client with New.
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
	// random draws the jitter of requests, and chance the jitter of trials.
	random, chance rpc.Rand
	// lastUsed has the last tokens that requests used, and lastTried those used by trials.
	lastUsed, lastTried lastUsed

	queue queue
	room  room
	// pace is the pace of calls for requests, and trialPace the pace of calls for trials.
	pace, trialPace pace
	reports         reports
	// underWay are the calls that may become late, in order of sending. late are the late calls
	// whose answers may still come.
	underWay []*call
	late     []*call
	// held are answers that wait for the answer to a report.
	held []heldAnswer
	// lastSent is when the last call was sent.
	lastSent    quota.Instant
	debts       debts
	returns     returns
	settlements settlements
	// claiming is the number of calls under way with claims of permits, trying the number for
	// trials.
	claiming, trying int
	// last is the need of the first item in the last call. A probe asks about it again.
	last Need

	// The fields below are reused from call to call: local variables would escape to the heap each
	// time.
	spend Spend
	items []wire.LeaseItem
	body  []byte
	reply wire.LeaseReply
}

// Config has the parts that a client needs. All fields but Seed are required.
type Config struct {
	Store *bucketstore.Store
	// Flights is the book of requests in flight. The client claims permits for it.
	Flights *inflight.Book
	Client  rpc.Client
	Clock   rpc.Clock
	// Shared and Space are the shared data in which the workers of the process keep the number of
	// nodes.
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

// TakeOver takes over the unsent returns and settlements of another client of the VM. The other
// client's plugin context is gone, and so are the answers to its calls.
func (c *Client) TakeOver(other *Client) {
	for _, p := range other.returns.pending {
		c.returns.note(p.need, p.at)
	}
	c.returns.lost = append(c.returns.lost, other.returns.lost...)
	c.settlements.waiting = append(c.settlements.waiting, other.settlements.waiting...)
}

// shareOutHeld shares out the held answers that can be used by now, or that are too late.
func (c *Client) shareOutHeld(now quota.Instant) {
	held := c.held
	c.held = nil
	for _, h := range held {
		h.call.waits--
		c.shareOut(h.call, h.items, h.answers, now)
		c.endCall(h.call, now)
	}
}

// Nodes returns the number of nodes that share the buckets, from the last answer to any worker of
// this process; 1 before the first answer. Other workers' answers count, because a worker without
// an answer would otherwise use the whole limit as its share.
func (c *Client) Nodes() int64 { return max(c.sharedNodes.Load(), 1) }

// HearNodes takes the number of nodes and other doors that share the buckets, in decimal digits,
// from the answer to a poll. A node that has not asked for tokens yet learns the number there.
// Other text changes nothing. The number sets no slack: a first poll can come before the control
// plane knows the other nodes, and the node would use that slack before it knows the bucket's
// tokens.
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

// Slack returns the number of an optimistic bucket's tokens that this node may use before it
// reports them.
func (c *Client) Slack(p quota.Params) int64 { return c.reports.slack(p) }

// TakeResolved returns at most most streams whose tickets have ended, in order of their end. The
// slice is good until the next ticket ends.
func (c *Client) TakeResolved(most int) []uint32 { return c.queue.resolved.Take(most) }

// Waiting returns the number of requests that wait.
func (c *Client) Waiting() int { return c.queue.waiting }
