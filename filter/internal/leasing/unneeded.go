package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// ridesAhead is how long before they are due tokens go back at most with a call that leaves
	// anyway; it is this part of a TTL. ridesEvery is how often a call looks for such.
	ridesAhead  = 4 * quota.Second
	ridesPerTTL = 8
	ridesEvery  = 20 * quota.Millisecond
	// tellsFrom: that so small a part of a burst was used is not worth a call of its own.
	tellsFrom = 64
	// returnItems bounds the buckets that one call looks at.
	returnItems = 32
	// maxLost bounds the returns that are sent again, which a second call does.
	maxLost = wire.MaxItems
)

// returns are the buckets of which this VM has brought tokens that go back if no request needs
// them. The zero value is empty.
type returns struct {
	agenda
	// looked is when a call last looked for tokens to take along.
	looked quota.Instant
	// lost are returns whose call had no answer, and those of tokens that came too late: the
	// control plane takes each once, however often it comes.
	lost []item
}

// takeOut is the change that takes tokens which this node does not need out of its credit.
type takeOut struct {
	need  *Need
	now   quota.Instant
	nodes int64
	// rides: a call goes anyway. all: none of the tokens is needed.
	rides, all bool

	out [2]lease.Lease
	// again is when to look again.
	again quota.Instant
}

// Apply implements bucketstore.Change.
func (t *takeOut) Apply(e *bucketstore.Entry) bool {
	t.out = [2]lease.Lease{} // Another worker may have been faster than the attempt before.
	p, hold := t.need.Params, int64(0)
	// No other node lacks what the only one has in hand: its next burst may use it.
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
	// That many tokens were used is worth a call where they count longer as leased ones.
	used := out[0].Used + out[1].Used
	tells := rests && used > 0 && (t.rides || shows && used > p.Burst/tellsFrom)
	if out[0].Tokens+out[1].Tokens > 0 || tells {
		e.Credit, t.out = c, out
		if back := out[0].Tokens + out[1].Tokens; !t.need.Algorithm.Windowed() { // They are missing no more.
			e.Credit.FullAt -= quota.Instant(t.need.earning(back))
		}
	}
	t.again = e.Credit.LookAgain(t.now, p, shows)
	return t.out != [2]lease.Lease{}
}

// watch has tokens looked after that have come for a bucket: those that no request needs go back.
func (c *Client) watch(now quota.Instant, need *Need, back quota.Instant) {
	if back != quota.Forever {
		c.returns.note(*need, back)
	}
}

// giveBack takes tokens that are not needed out of this node's credit, and returns the items that
// give them back. They pay the bucket's debts first.
func (c *Client) giveBack(t *takeOut) (items []item, err error) {
	t.nodes, t.out = c.reports.nodes, [2]lease.Lease{}
	if err = c.store.Update(bucketstore.Leased, t.need.Bucket, t.now, t); err != nil {
		return nil, err
	}
	for _, out := range t.out {
		used := out.Tokens
		out.Tokens = c.debts.payFree(t.need.Bucket, out.Tokens, nil)
		if out.Used += used - out.Tokens; out.Tokens+out.Used > 0 {
			items = append(items, c.back(t.need, out))
		}
	}
	return items, nil
}

// back is the item that says what has become of leased tokens. It is not inlined, for the size of
// the filter.
//
//go:noinline
func (c *Client) back(need *Need, out lease.Lease) item {
	c.settlements.names += 1 << nameBits
	return item{kind: givesBack, need: *need, name: c.settlements.names, back: out}
}

// gatherReturns returns items that give back what is due, of one policy set and at most so many.
func (c *Client) gatherReturns(now quota.Instant, version uint64, most int, rides bool) (items []item) {
	upTo := now
	if rides {
		upTo += quota.Instant(ridesAhead)
	}
	r := &c.returns
	for len(r.lost) > 0 && len(items)+2 <= most && (version == 0 || r.lost[0].need.Version == version) {
		version = r.lost[0].need.Version
		items = append(items, r.lost[0])
		r.lost = r.lost[1:]
	}
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
		version = p.need.Version
		t.need = &p.need
		back, err := c.giveBack(t)
		items = append(items, back...)
		if err != nil {
			t.again = now + quota.Instant(quota.Millisecond)
		}
		if r.move(p, t.again); t.again != quota.Forever && t.again <= upTo {
			r.setAside()
		}
	}
	r.putBack()
	return items
}

// returnAlong has a call take along what goes back soon.
func (c *Client) returnAlong(call *call) {
	r, most := &c.returns, c.room.items()-len(call.items)
	if len(r.pending)+len(r.lost) == 0 || most < 2 || call.sent < r.looked+quota.Instant(ridesEvery) {
		return
	}
	r.looked = call.sent
	call.items = append(call.items, c.gatherReturns(call.sent, call.items[0].need.Version, most, true)...)
}

// returnFirst returns the items by which a call says which tokens of its buckets were used, and
// gives back what is in hand of those for which requests wait in it: it is too little for one of
// them alone, or a request for several buckets waits, which takes none of it.
func (c *Client) returnFirst(call *call) []item {
	first := c.returns.lostOf(call)
	for i := range call.items {
		it := &call.items[i]
		for _, spent := range it.spent {
			if spent.Tokens > 0 && len(first)+len(call.items) < wire.MaxItems {
				first = append(first, c.back(&it.need, lease.Lease{Used: spent.Tokens, Term: spent.Term}))
			}
		}
		fits := len(first)+len(call.items) < wire.MaxItems
		if used := c.lastUsedBy(call.purpose == forTrials).take(call.sent, &it.need.Bucket); used.Term != 0 && fits {
			first = append(first, c.back(&it.need, used))
		}
		alone := it.need.Cost == 1 && (it.line == nil || !it.line.several)
		if it.waiting == 0 || alone || it.need.leaky() || it.need.Optimistic || it.kind == charges ||
			len(first)+len(call.items)+2 > wire.MaxItems {
			continue
		}
		back, _ := c.giveBack(&takeOut{need: &it.need, now: call.sent, all: true})
		first = append(first, back...)
	}
	return first
}

// returnLate has tokens go back that came too late to be used soon: the call by which their
// requests ask once more says so first.
func (c *Client) returnLate(s *lineAnswer, nth int) {
	it, a := &s.items[nth], &s.answers[nth]
	if it.prepaid == 0 || a.Keep > 0 || it.need.leaky() || it.need.Optimistic {
		return
	}
	one := c.back(&it.need, lease.Lease{
		Tokens: it.prepaid, Expiry: s.call.sent + quota.Instant(lease.Late), Term: a.Term,
	})
	it.prepaid = 0
	c.returnAgain(&one, s.now)
}

// lostOf takes the returns that are to be sent again of the buckets of a call.
//
//go:noinline
func (r *returns) lostOf(call *call) (items []item) {
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

// returned counts what has become of tokens that were given back.
func (c *Client) returned(it *item, taken bool) {
	if taken {
		c.Stats.Returned += uint64(it.back.Tokens)
	} else {
		c.Stats.Lapsed += uint64(it.back.Tokens)
	}
}

// returnAgain has a return whose call had no answer go with another, as long as its lease lasts.
func (c *Client) returnAgain(it *item, now quota.Instant) {
	if it.kind != givesBack || it.back.Term == 0 {
		return
	}
	if now >= it.back.Expiry || len(c.returns.lost) >= maxLost {
		c.returned(it, false)
		return
	}
	c.returns.lost = append(c.returns.lost, *it)
}

// mayReturn reports whether there are tokens that may go back in a call of their own: while calls
// are late, only when no request waits in one.
func (c *Client) mayReturn() bool {
	_, away := c.Health.Away()
	return len(c.returns.pending)+len(c.returns.lost) > 0 && !away && (!c.room.pressed() || c.room.calls == 0)
}

// returnDue is when the next return is due; never if there is none.
func (r *returns) due(now quota.Instant) quota.Instant {
	switch {
	case len(r.lost) > 0:
		return now
	case len(r.pending) > 0:
		return r.pending[0].at
	}
	return quota.Forever
}

// sendReturns sends what is due and has not gone with another call. While calls are late it waits
// for one.
func (c *Client) sendReturns(now quota.Instant) {
	r := &c.returns
	for c.mayReturn() && r.due(now) <= now {
		items := c.gatherReturns(now, 0, wire.MaxItems, false)
		if len(items) == 0 {
			return
		}
		call := &call{sent: now, items: items}
		c.send(call)
	}
}
