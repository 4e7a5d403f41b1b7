package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// ridesAhead is the longest time before its due instant that a return may join a call that
	// leaves anyway; the time is at most 1/ridesPerTTL of a lease's TTL. ridesEvery is the shortest
	// time between two such searches.
	ridesAhead  = 4 * quota.Second
	ridesPerTTL = 8
	ridesEvery  = 20 * quota.Millisecond
	// tellsFrom is a part of the burst: fewer used tokens are not worth a call of their own.
	tellsFrom = 64
	// returnItems bounds the buckets that one search checks.
	returnItems = 32
	// maxLost bounds the returns that wait to be sent again.
	maxLost = wire.MaxItems
)

// returns are the buckets with tokens that this VM asked for and that go back if no request needs
// them. The zero value is empty.
type returns struct {
	agenda
	// looked is when a call last searched for tokens to take along.
	looked quota.Instant
	// lost are returns whose call had no answer, and returns of tokens that came too late. The
	// control plane counts each return once, even if it arrives twice.
	lost []item
}

// takeOut is the change that takes unneeded tokens out of a node's credit.
type takeOut struct {
	need  *Need
	now   quota.Instant
	nodes int64
	// rides: a call leaves anyway. all: none of the tokens is needed.
	rides, all bool

	out [2]lease.Lease
	// again is when to check again.
	again quota.Instant
}

// Apply implements bucketstore.Change.
func (t *takeOut) Apply(e *bucketstore.Entry) bool {
	t.out = [2]lease.Lease{} // The update may run again after another worker's change.
	p, hold := t.need.Params, int64(0)
	// With one node no other node lacks the tokens: its next burst may use them.
	lone := t.nodes == 1 && !t.rides
	shows, rests := !t.need.Algorithm.Fixed(), !lone && e.Credit.Rests(t.now, p, t.rides)
	switch {
	case t.all:
	case lone:
		hold = e.Credit.Available(t.now)
	default:
		hold = e.Credit.Needs(t.now, p, t.nodes, rests)
	}
	c, out := e.Credit.TakeOut(t.now, hold)
	// Used tokens are worth a call where they count as leased for longer than their use.
	used := out[0].Used + out[1].Used
	tells := rests && used > 0 && (t.rides || shows && used > p.Burst/tellsFrom)
	if out[0].Tokens+out[1].Tokens > 0 || tells {
		e.Credit, t.out = c, out
		if back := out[0].Tokens + out[1].Tokens; !t.need.Algorithm.Windowed() { // They are no longer missing.
			e.Credit.FullAt -= quota.Instant(t.need.timeToEarn(back))
		}
	}
	t.again = e.Credit.LookAgain(t.now, p, shows)
	return t.out != [2]lease.Lease{}
}

// watchTokens schedules a check of a bucket's new tokens: unneeded tokens go back.
func (c *Client) watchTokens(now quota.Instant, need *Need, back quota.Instant) {
	if back != quota.Forever {
		c.returns.note(*need, back)
	}
}

// giveBack takes unneeded tokens out of this node's credit, and returns the items that give them
// back. The tokens pay the bucket's debts first.
func (c *Client) giveBack(t *takeOut) (items []item, err error) {
	t.nodes, t.out = c.reports.nodes, [2]lease.Lease{}
	if err = c.store.Update(bucketstore.Leased, t.need.Bucket, t.now, t); err != nil {
		return nil, err
	}
	for _, out := range t.out {
		used := out.Tokens
		out.Tokens = c.debts.payFree(t.need.Bucket, out.Tokens, nil)
		if out.Used += used - out.Tokens; out.Tokens+out.Used > 0 {
			items = append(items, c.newReturn(t.need, out))
		}
	}
	return items, nil
}

// newReturn returns the item that reports leased tokens as returned or used. It is not inlined, to
// keep the module small.
//
//go:noinline
func (c *Client) newReturn(need *Need, out lease.Lease) item {
	c.settlements.names += 1 << nameBits
	return item{kind: givesBack, need: *need, name: c.settlements.names, back: out}
}

// gatherReturns returns items for the returns that are due, of one policy set and at most most
// items.
func (c *Client) gatherReturns(now quota.Instant, version uint64, most int, rides bool) (items []item) {
	upTo := now
	if rides {
		upTo += quota.Instant(ridesAhead)
	}
	r := &c.returns
	// Returns that had no answer go first. If requests wait to ask about the bucket, the call in
	// which they ask takes the return. In another call it might arrive after the ask.
	rest := r.lost[:0]
	for i := range r.lost {
		l := &r.lost[i]
		if len(items)+2 > most || version != 0 && l.need.Version != version || c.queue.isToAsk(&l.need) {
			rest = append(rest, *l)
			continue
		}
		version = l.need.Version
		items = append(items, *l)
	}
	r.lost = rest
	// Then unneeded tokens of the buckets that are due.
	t := &takeOut{now: now, rides: rides}
	for range returnItems {
		if len(r.pending) == 0 || r.pending[0].at > upTo || len(items)+2 > most {
			break
		}
		p := r.pending[0]
		early := rides && p.at > now+quota.Instant(lease.TTL(p.need.Params)/ridesPerTTL)
		if version != 0 && p.need.Version != version || early {
			r.setAside()
			continue
		}
		// Take the bucket's unneeded tokens, and note when to check it again.
		version = p.need.Version
		t.need = &p.need
		back, err := c.giveBack(t)
		items = append(items, back...)
		if err != nil {
			t.again = now + quota.Instant(quota.Millisecond)
		}
		if r.reschedule(p, t.again); t.again != quota.Forever && t.again <= upTo {
			r.setAside()
		}
	}
	r.putBack()
	return items
}

// returnAlong adds to a call the returns that are due soon.
func (c *Client) returnAlong(call *call) {
	r, most := &c.returns, c.room.maxItems()-len(call.items)
	if len(r.pending)+len(r.lost) == 0 || most < 2 || call.sent < r.looked+quota.Instant(ridesEvery) {
		return
	}
	r.looked = call.sent
	call.items = append(call.items, c.gatherReturns(call.sent, call.items[0].need.Version, most, true)...)
}

// returnFirst returns the items that go first in a call. They report used tokens of the call's
// buckets. They also give back the tokens in hand of buckets for which requests wait in the call:
// these are too few for one request, or a request for several buckets waits, which takes no tokens
// in hand.
func (c *Client) returnFirst(call *call) []item {
	first := c.returns.takeLost(call)
	for i := range call.items {
		it := &call.items[i]
		for _, spent := range it.spent {
			if spent.Tokens > 0 && len(first)+len(call.items) < wire.MaxItems {
				first = append(first, c.newReturn(&it.need, lease.Lease{Used: spent.Tokens, Term: spent.Term}))
			}
		}
		fits := len(first)+len(call.items) < wire.MaxItems
		used := c.lastUsedBy(call.purpose == forTrials).takeUnreported(call.sent, &it.need.Bucket)
		if used.Term != 0 && fits {
			first = append(first, c.newReturn(&it.need, used))
		}
		alone := it.need.Cost == 1 && (it.line == nil || !it.line.several)
		if it.waiting == 0 || alone || it.need.isLeaky() || it.need.Optimistic || it.kind == charges ||
			len(first)+len(call.items)+2 > wire.MaxItems {
			continue
		}
		back, _ := c.giveBack(&takeOut{need: &it.need, now: call.sent, all: true})
		first = append(first, back...)
	}
	return first
}

// returnLate gives back tokens that came too late to be used within lease.Soon. The call in which
// their requests ask once more reports that first.
func (c *Client) returnLate(s *lineAnswer, nth int) {
	it, a := &s.items[nth], &s.answers[nth]
	if it.prepaid == 0 || a.Keep > 0 || it.need.isLeaky() || it.need.Optimistic {
		return
	}
	one := c.newReturn(&it.need, lease.Lease{
		Tokens: it.prepaid, Expiry: s.call.sent + quota.Instant(lease.Late), Term: a.Term,
	})
	it.prepaid = 0
	c.returnAgain(&one, s.now)
}

// takeLost takes out the lost returns for buckets of a call.
//
//go:noinline
func (r *returns) takeLost(call *call) (items []item) {
	rest := r.lost[:0]
	for i := range r.lost {
		l := &r.lost[i]
		to := &rest
		for k := range call.items {
			need := &call.items[k].need
			same := need.Bucket == l.need.Bucket && need.Version == l.need.Version
			if same && len(items)+len(call.items) < wire.MaxItems {
				to = &items
			}
		}
		*to = append(*to, *l)
	}
	r.lost = rest
	return items
}

// countReturned counts returned tokens, as taken or as lapsed.
func (c *Client) countReturned(it *item, taken bool) {
	if taken {
		c.Stats.Returned += uint64(it.back.Tokens)
	} else {
		c.Stats.Lapsed += uint64(it.back.Tokens)
	}
}

// returnAgain queues a return whose call had no answer, unless its lease has ended.
func (c *Client) returnAgain(it *item, now quota.Instant) {
	if it.kind != givesBack || it.back.Term == 0 {
		return
	}
	if now >= it.back.Expiry || len(c.returns.lost) >= maxLost {
		c.countReturned(it, false)
		return
	}
	c.returns.lost = append(c.returns.lost, *it)
}

// mayReturn reports whether there are tokens that may go back in a call of their own. While calls
// are late they may go only if no request waits in a call.
func (c *Client) mayReturn() bool {
	_, away := c.Health.Away()
	return len(c.returns.pending)+len(c.returns.lost) > 0 && !away && (!c.room.isPressed() || c.room.calls == 0)
}

// nextDue returns when the next return is due; never if there is none.
func (r *returns) nextDue(now quota.Instant) quota.Instant {
	switch {
	case len(r.lost) > 0:
		return now
	case len(r.pending) > 0:
		return r.pending[0].at
	}
	return quota.Forever
}

// sendReturns sends the due returns that no other call carried. While calls are late it waits until
// no call with requests is under way.
func (c *Client) sendReturns(now quota.Instant) {
	r := &c.returns
	for c.mayReturn() && r.nextDue(now) <= now {
		items := c.gatherReturns(now, 0, wire.MaxItems, false)
		if len(items) == 0 {
			return
		}
		call := &call{sent: now, items: items}
		c.sendCall(call)
	}
}
