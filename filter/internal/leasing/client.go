// Package leasing asks the control plane for tokens: for which buckets, for how many, and when.
//
// Requests wait in a queue, each for one bucket or for several. Requests that wait for the same
// bucket share an item of a call, and items share calls. Tokens that the node wants to keep, and
// reports of what it has used of optimistic buckets, travel with the tick. A Client belongs to one
// VM.
package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/inflight"
	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/filter/internal/shareddata"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// path is where lease requests go; the reply has the newest format that this filter reads.
const path = "/node/v1/leases?reply=5"

// Stats counts what a client did, for the filter's metrics.
type Stats struct {
	Calls rpc.Counts
	// ItemsUnknown counts answers about buckets that the control plane does not know.
	ItemsUnknown uint64
	// SettlementsLost counts settlements that the control plane did not take in time: what was
	// reserved stays charged, and what was too little is not.
	SettlementsLost uint64
	// Lapsed are tokens whose lease ended before a request used them.
	Lapsed uint64
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
	node        string
	boot        uint64
	seq         uint64
	random      rpc.Rand

	queue   queue
	room    room
	pace    pace
	reports reports
	// underWay are the calls that requests wait in and that are not late, the first one first.
	underWay    []*call
	debts       debts
	settlements settlements
	// claiming is how many calls with claims of permits are under way.
	claiming int
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
	// Nodes is where the workers of the process share how many nodes there are.
	Nodes shareddata.Number
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
		sharedNodes: config.Nodes, node: config.Node, boot: config.Boot,
		random: rpc.NewRand(config.Seed),
		queue:  queue{lines: make(map[keyhash.Key]*line)}, room: newRoom(),
		settlements: settlements{names: (config.Boot ^ config.Seed*0x9e3779b97f4a7c15) << nameBits},
	}
}

// Nodes is how many nodes share the buckets, by the last answer to any worker of this process; 1
// before the first. A worker that has had no answer itself would take the whole limit for its
// share.
func (c *Client) Nodes() int64 { return max(c.sharedNodes.Load(), 1) }

// Ask queues the tickets of one request, which are granted together or not at all. They have one
// Stream and one Deadline; those of the first count. Ask reports false, and queues nothing, if as
// many requests wait as may, or if no call can carry so many buckets. Flush sends.
func (c *Client) Ask(now quota.Instant, tickets ...*Ticket) bool {
	if c.queue.waiting >= c.room.waiters(now) || len(tickets) > wire.MaxItems {
		return false
	}
	deadline := tickets[0].Deadline
	if deadline == 0 {
		deadline = now + quota.Instant(lease.Deadline)
	}
	for _, t := range tickets {
		t.Outcome, t.Deadline = Waiting, deadline
	}
	c.queue.join(tickets)
	return true
}

// Keep notes tokens to be asked for at the first tick at or after by, or before that with the next
// request that waits for the bucket. While the control plane does not answer it notes nothing: what
// cannot be sent would only pile up.
func (c *Client) Keep(need Need, keep int64, by quota.Instant) {
	if _, away := c.Health.Away(); !away {
		c.queue.keep(need, keep, by)
	}
}

// Slack is what this node may use of an optimistic bucket before the control plane knows.
func (c *Client) Slack(p quota.Params) int64 { return c.reports.slack(p) }

// Report notes that an optimistic bucket has something to report at an instant. What is due leaves
// at once, or when the reports under way are answered.
func (c *Client) Report(now quota.Instant, need Need, at quota.Instant) {
	c.reports.note(need, at)
	if at <= now && c.reports.underWay == 0 {
		c.report(now)
	}
}

// Flush sends what requests wait for, unless it gathers, and tokens to keep with it. Those alone go
// with the tick.
func (c *Client) Flush(now quota.Instant) {
	for len(c.queue.ready) > 0 && c.pace.due(now, c.room.calls, len(c.queue.ready)) {
		call := c.queue.gather(now, &c.room)
		if len(call.items) == 0 {
			return
		}
		c.pace.lastSent = now
		c.send(call)
	}
}

// Gathers reports whether requests wait until the next call may leave: Flush must come soon.
func (c *Client) Gathers() bool {
	return len(c.queue.ready) > 0 && c.room.free(c.clock.Now()) > 0
}

// NextResume is when requests that wait go on, because TakeResolved has them or EndLate ends them,
// or when what gathers for a call leaves by Flush; never if nothing is so.
func (c *Client) NextResume(now quota.Instant) quota.Instant {
	switch {
	case len(c.queue.resolved) > 0:
		return now
	case c.Gathers():
		return min(c.pace.lastSent+quota.Instant(c.pace.gap()), c.LateAt())
	}
	return c.LateAt()
}

// sendKept sends all tokens to keep.
func (c *Client) sendKept(now quota.Instant) {
	for len(c.queue.kept) > 0 {
		call := &call{sent: now}
		c.queue.gatherKept(call, &c.room)
		if len(call.items) == 0 {
			return
		}
		c.send(call)
	}
}

// Tick sends what only a tick sends, looks again for tokens that other workers brought, and ends
// what has waited too long.
func (c *Client) Tick(now quota.Instant) {
	c.reports.nodes = c.sharedNodes.Load()
	c.EndLate(now)
	c.Claim(now)
	c.report(now)
	c.charge(now)
	c.sendSettled(now)
	for _, r := range c.queue.compact() {
		c.lookAfter(r, now)
	}
	if c.Health.breaker.Tick(now, c.random.Jitter()) {
		c.probe(now)
	}
	if c.Health.breaker.IsOpen() {
		return
	}
	c.Flush(now)
	if now >= c.queue.keepBy {
		c.sendKept(now)
	}
}

// NextDue is when Tick has something to do: at once while requests wait, which other workers may
// serve, and while the control plane does not answer.
func (c *Client) NextDue(now quota.Instant) quota.Instant {
	if c.queue.waiting > 0 {
		return now
	}
	due := min(c.reports.next(), c.Health.breaker.NextDue(now))
	if len(c.queue.kept) > 0 {
		due = min(due, c.queue.keepBy)
	}
	if len(c.settlements.waiting) > 0 && !c.settlements.alone {
		due = min(due, max(c.settlements.next, now))
	}
	if len(c.debts.all) > 0 {
		due = min(due, max(c.debts.next, now))
	}
	return due
}

// report sends the reports that are due.
func (c *Client) report(now quota.Instant) {
	if _, away := c.Health.Away(); away {
		return
	}
	for range reportCalls {
		items := c.reports.gather(now, c.store)
		if len(items) == 0 {
			return
		}
		c.reports.underWay++
		c.send(&call{sent: now, items: items, reports: true})
	}
}

// probe asks for nothing of the bucket that a call was last for: the control plane looks, and
// charges nothing. So it is found out whether the control plane is back without a client that
// waits, and also while there are no clients.
func (c *Client) probe(now quota.Instant) {
	call := &call{sent: now, probe: true}
	call.carry(&c.last).need.Cost = 1
	c.send(call)
}

func (c *Client) send(call *call) {
	if call.asks > 0 {
		c.askFirst(call)
		c.settleFirst(call)
	}
	c.seq++
	call.seq = c.seq
	if !call.claims {
		c.last = call.items[0].need
	}
	c.items = c.items[:0]
	for i := range call.items {
		it := &call.items[i]
		if it.need.Reserves && it.waiting > 0 && it.debt == nil {
			c.settlements.names += 1 << nameBits
			it.name = c.settlements.names
		}
		c.items = append(c.items, it.message())
	}
	c.body = wire.AppendLeaseRequest(c.body[:0], wire.LeaseRequest{
		Node: c.node, Boot: c.boot, Seq: call.seq, Version: call.items[0].need.Version, Items: c.items,
	})
	c.Health.breaker.Sent(call.sent)
	c.room.count(call, 1)
	done := func(status int, body []byte) { c.answer(call, status, body) }
	if err := c.rpc.Call(path, c.body, call.timeout(), done); err != nil {
		c.over(call, call.sent)
		c.fail(call, call.sent, rpc.Unsent)
	} else if call.asks > 0 {
		c.underWay = append(c.underWay, call)
	}
}

// TakeResolved returns streams whose tickets have ended, the first ones and at most so many. The
// slice is good until the next resolution.
func (c *Client) TakeResolved(most int) []uint32 { return c.queue.takeResolved(most) }

// Waiting is the number of requests that wait.
func (c *Client) Waiting() int { return c.queue.waiting }

// Cancel withdraws a stream's tickets: its client went away. Tokens that come for them serve the
// next request.
func (c *Client) Cancel(stream uint32) { c.queue.cancel(stream) }

// GiveBack lets the next requests of this node use the tokens of a granted ticket whose request was
// refused by another policy, or whose client has gone. A turn in a leaky bucket's queue is no
// token. Tokens that cannot be noted, or that come back too late, count as used.
func (c *Client) GiveBack(now quota.Instant, t *Ticket) {
	need := &t.Need
	switch {
	case need.leaky():
	case need.Reserves:
		c.unused(now, need, t.Name, 0, 0)
	case now >= t.Until:
	case need.Optimistic:
		_ = c.store.Update(bucketstore.Optimistic, need.Bucket, now, &giveBackReported{now, need})
	default:
		lent := lease.Lease{Tokens: need.Cost, Expiry: t.Until}
		_ = c.store.Update(bucketstore.Leased, need.Bucket, now, &giveBack{now, need.Params, lent})
	}
}
