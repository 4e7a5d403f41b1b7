// Package leasing asks the control plane for tokens: which buckets, how many, and when. Requests that wait are queued by
// bucket, with one call under way for each; tokens to keep are asked for from the tick. A Desk belongs to one VM.
package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/filter/internal/shareddata"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// path is where lease requests go; the reply has the newest format that this filter reads.
const path = "/node/v1/leases?reply=3"

// MaxWaiting bounds the requests that wait in one VM.
const MaxWaiting = 1024

// Outcome says how a ticket ended.
type Outcome uint8

// Waiting tickets are open. Granted may be used until Until; Refused has nothing before Until; Failed got no answer, since Until if
// that is not 0: the centre cannot reach what keeps this bucket. Spared had the tokens and spent none, because another bucket of
// the same request had not.
const (
	Waiting Outcome = iota
	Granted
	Refused
	Failed
	Spared
)

// Ticket is a request's place in the queue for one bucket. Stream identifies the request to the caller.
type Ticket struct {
	Stream  uint32
	Need    Need
	Outcome Outcome
	Until   quota.Instant
	Level   int64
	// FullAt is when the bucket will be full, for the client.
	FullAt quota.Instant
	// Deadline is when the request stops waiting; 0: Join sets it.
	Deadline quota.Instant
	// Delay is how long a leaky bucket holds a Granted request back.
	Delay quota.Span
}

// Stats counts what a desk did, for the filter's metrics.
type Stats struct {
	Calls        rpc.Counts
	ItemsUnknown uint64
	// Lapsed are tokens whose lease ended before a request used them.
	Lapsed uint64
}

// Desk is where requests wait for the centre.
type Desk struct {
	Stats Stats

	store       *bucketstore.Store
	client      rpc.Client
	clock       rpc.Clock
	sharedNodes shareddata.Number
	node        string
	boot        uint64
	seq         uint64
	random      rpc.Rand

	breaker rpc.Breaker
	room    room
	// lost is what the last call was for, and reason how the last one that failed did. heard is since when another worker has had no
	// answer, 0 if there is no such, and answered when this one last had one.
	lost            Need
	reason          rpc.Outcome
	heard, answered quota.Instant
	waiting         int
	buckets         map[keyhash.Key]*bucket
	// open are the same in a row, so that they are looked after in an order that does not change from run to run.
	open []*bucket
	// groups are the requests that wait for several buckets, the first one first; queued of them are in no call, and groupCalls
	// calls carry the others.
	groups             []*group
	queued, groupCalls int
	// ready lists buckets with something to ask that no call carries yet; where that is only tokens to keep, it is for the tick at keepBy.
	ready  []*bucket
	keepBy quota.Instant
	// owes are the optimistic buckets with something to report, owing the same in a row; nodes is how many nodes there are, 0 if
	// that is not known.
	owes     map[keyhash.Key]*owed
	owing    []*owed
	nodes    int64
	telling  tell
	heeding  heed
	deciding decided
	resolved []uint32
	spend    Spend
	learn    learn
	giveBack giveBack
	body     []byte
	reply    wire.LeaseReply
}

// bucket is a queue of tickets. The first asked of them are in the call under way.
type bucket struct {
	need   Need
	queue  []*Ticket
	asked  int
	call   *call
	keep   int64
	listed bool
	place  int // in the desk's row
}

// call is one lease request under way, for buckets or for groups.
type call struct {
	seq    uint64
	sent   quota.Instant
	items  []item
	groups []*group
	probe  bool
	// asks is how many buckets, or groups, requests wait for.
	asks int
}

type item struct {
	bucket *bucket // nil in a group and in a probe
	need   Need
	joined bool
	ask    lease.Ask
	sent   quota.Instant // of a report: its name
}

// Config is what a desk needs. All fields but Seed are required.
type Config struct {
	Store  *bucketstore.Store
	Client rpc.Client
	Clock  rpc.Clock
	// Nodes is where the workers of the process share how many nodes there are.
	Nodes shareddata.Number
	// Node is the id of the node. Boot is random for each process, Seed for each worker.
	Node string
	Boot uint64
	Seed uint64
}

// New makes a desk.
func New(c Config) *Desk {
	return &Desk{
		store: c.Store, client: c.Client, clock: c.Clock, sharedNodes: c.Nodes, node: c.Node, boot: c.Boot,
		random: rpc.NewRand(c.Seed), buckets: make(map[keyhash.Key]*bucket), room: newRoom(),
	}
}

// Nodes is how many nodes share the buckets, by the last answer to any worker of this process; 1
// before the first. A worker that has had no answer itself would take the whole limit for its share.
func (d *Desk) Nodes() int64 { return max(d.sharedNodes.Load(), 1) }

// Join queues a ticket with a Stream and a Need. It reports false, and queues nothing, if as many requests wait as may, or more than can
// be asked for in time. Flush sends.
func (d *Desk) Join(now quota.Instant, t *Ticket) bool {
	if d.waiting >= d.room.waiters(now) {
		return false
	}
	d.waiting++
	t.Outcome = Waiting
	if t.Deadline == 0 {
		t.Deadline = now + quota.Instant(lease.Deadline)
	}
	b := d.bucket(t.Need)
	b.queue = append(b.queue, t)
	d.list(b)
	return true
}

// Keep notes tokens to be asked for at the first tick from by on, or with the next request that waits for the bucket before.
// While the control plane does not answer it notes nothing: what cannot be sent would only pile up.
func (d *Desk) Keep(need Need, keep int64, by quota.Instant) {
	if _, away := d.Away(); away {
		return
	}
	if d.keepBy == 0 || by < d.keepBy {
		d.keepBy = by
	}
	b := d.bucket(need)
	b.keep = max(b.keep, keep)
	d.list(b)
}

func (d *Desk) bucket(need Need) *bucket {
	b := d.buckets[need.Bucket]
	if b == nil {
		b = &bucket{place: len(d.open)}
		d.buckets[need.Bucket] = b
		d.open = append(d.open, b)
	}
	b.need = need
	return b
}

func (d *Desk) list(b *bucket) {
	if !b.listed {
		b.listed = true
		d.ready = append(d.ready, b)
	}
}

// Flush sends what requests wait for, with the tokens to keep for the same buckets. Tokens to keep alone go with the tick.
func (d *Desk) Flush(now quota.Instant) { d.flush(now, false) }

func (d *Desk) flush(now quota.Instant, keeps bool) {
	for {
		c := d.gather(now, keeps)
		if len(c.items) == 0 {
			break
		}
		d.send(c)
	}
	d.flushGroups(now)
}

// gather takes up to a message full of ready buckets into a call. Others stay listed.
func (d *Desk) gather(now quota.Instant, keeps bool) *call {
	c := &call{sent: now}
	left := d.room.left(now)
	rest := d.ready[:0]
	for _, b := range d.ready {
		b.listed = false
		switch {
		case len(b.queue) > 0 && b.call != nil: // The answer under way lists it again.
		case len(b.queue) == 0 && b.keep == 0:
			d.forget(b)
		case len(c.items) == min(wire.MaxItems, d.room.most), len(b.queue) > 0 && c.asks >= left, len(b.queue) == 0 && !keeps, len(c.items) > 0 && c.items[0].ask.Version != b.need.Version:
			b.listed = true
			rest = append(rest, b)
		default:
			c.items = append(c.items, d.ask(b, c))
		}
	}
	d.ready = rest
	return c
}

// ask takes the tickets at the head of the queue that cost the same.
func (d *Desk) ask(b *bucket, c *call) item {
	ask := lease.Ask{Params: b.need.Params, Version: b.need.Version, Cost: 1, Keep: b.keep}
	need := b.need
	b.keep = 0
	if len(b.queue) > 0 {
		first := &b.queue[0].Need
		ask.Cost, need.Optimistic = first.Cost, first.Optimistic
		for b.asked < len(b.queue) && b.queue[b.asked].Need.asksLike(first) {
			b.asked++
		}
		ask.Waiting = int64(b.asked)
		b.call = c
		c.asks++
	}
	if ask.Cost == 0 { // To look is to ask for nothing.
		ask.Waiting, ask.Cost = 0, 1
	}
	need.Cost = ask.Cost
	return item{bucket: b, need: need, ask: ask}
}

func (d *Desk) send(c *call) {
	d.seq++
	c.seq = d.seq
	m := wire.LeaseRequest{Node: d.node, Boot: d.boot, Seq: c.seq, Version: c.items[0].ask.Version}
	timeout := keepTimeout
	if c.probe || c.asks > 0 {
		timeout = lease.Deadline
	}
	for _, it := range c.items {
		m.Items = append(m.Items, wire.LeaseItem{
			Bucket: it.need.Bucket, Limit: it.need.Limit,
			Waiting: it.ask.Waiting, Cost: it.ask.Cost, Keep: it.ask.Keep, Used: it.ask.Used, Joined: it.joined,
			Turn: it.need.Turn, Consumer: it.need.Consumer, Place: it.need.Place,
		})
	}
	d.body = wire.AppendLeaseRequest(d.body[:0], m)
	d.lost = c.items[0].need
	d.breaker.Sent(c.sent)
	if c.asks > 0 {
		d.room.sent(c.asks)
	}
	if err := d.client.Call(path, d.body, timeout, func(status int, body []byte) { d.answer(c, status, body) }); err != nil {
		d.fail(c, c.sent, rpc.Unsent)
	}
}

// resolve ends the ticket at a place in the queue.
func (d *Desk) resolve(b *bucket, at int, outcome Outcome, until quota.Instant) {
	t := b.queue[at]
	b.queue = append(b.queue[:at], b.queue[at+1:]...)
	d.waiting--
	t.Outcome, t.Until = outcome, until
	d.resolved = append(d.resolved, t.Stream)
}

// forget drops a bucket that nobody waits for.
func (d *Desk) forget(b *bucket) {
	// An answer may come for one that was dropped and has a successor under its key, which stays.
	if len(b.queue) > 0 || b.call != nil || b.keep > 0 || b.listed || d.buckets[b.need.Bucket] != b {
		return
	}
	delete(d.buckets, b.need.Bucket)
	last := len(d.open) - 1
	d.open[b.place] = d.open[last]
	d.open[b.place].place = b.place
	d.open[last] = nil
	d.open = d.open[:last]
}

// TakeResolved returns streams whose tickets have ended, the first ones and at most so many. The slice is good until the next
// resolution.
func (d *Desk) TakeResolved(most int) []uint32 {
	streams := d.resolved[:min(most, len(d.resolved))]
	d.resolved = d.resolved[len(streams):]
	if len(d.resolved) == 0 && cap(d.resolved) < 64 {
		d.resolved = make([]uint32, 0, 256)
	}
	return streams
}

// Resolved is the number of streams that TakeResolved has for its next calls.
func (d *Desk) Resolved() int { return len(d.resolved) }

// Cancel withdraws a stream's tickets: its client went away. Tokens that come for them serve the next request.
func (d *Desk) Cancel(stream uint32) {
	d.cancelGroup(stream)
	for i := len(d.open) - 1; i >= 0; i-- {
		b := d.open[i]
		for at := 0; at < len(b.queue); {
			if b.queue[at].Stream != stream {
				at++
				continue
			}
			b.queue = append(b.queue[:at], b.queue[at+1:]...)
			if at < b.asked {
				b.asked--
			}
			d.waiting--
		}
		d.forget(b)
	}
}

// GiveBack lets the next requests of this node use the tokens of a granted ticket whose request was refused for another
// policy's sake. A place in a leaky bucket's queue is no token.
func (d *Desk) GiveBack(now quota.Instant, t *Ticket) {
	if t.Need.queue() {
		return
	}
	if t.Need.Optimistic {
		d.giveBackQuestion(now, t)
		return
	}
	d.giveBack = giveBack{now: now, params: t.Need.Params, lot: lease.Lot{Tokens: t.Need.Cost, Expiry: t.Until}}
	_ = d.store.Update(bucketstore.Leased, t.Need.Bucket, now, &d.giveBack) // Lost tokens err on the safe side.
}
