package leasing

import (
	"slices"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Outcome is how a ticket ended.
type Outcome uint8

const (
	// Waiting is a ticket that has not ended.
	Waiting Outcome = iota
	// Granted tokens may be used until Until.
	Granted
	// Refused is a ticket whose bucket has no tokens before Until.
	Refused
	// Failed is a ticket without an answer.
	Failed
	// Spared is a ticket whose bucket spent none of the tokens that it had, because another bucket
	// of the same request had too few, or because the need Looks: then it has them from Until on.
	Spared
)

// Ticket is what a request waits for at one bucket.
type Ticket struct {
	// Stream identifies the request to the caller. A ticket of no request but of a trial has the
	// number of that as Trial; no request waits for it.
	Stream  uint32
	Trial   uint32
	Need    Need
	Outcome Outcome
	// Until is when the tokens of a Granted ticket and the refusal of a Refused one end.
	Until quota.Instant
	// Suspended: a Refused ticket is of a limit whose quota is 0.
	Suspended bool
	// Doubt: the bucket of a Refused ticket may lack tokens that were not used.
	Doubt bool
	// Term is that of the tokens of a Granted ticket, by which they can go back; 0: they cannot.
	Term lease.Term
	// Since is when the failure of a Failed ticket began.
	Since quota.Instant
	// Level is what the bucket holds behind the request, for its client.
	Level int64
	// FullAt is when the bucket will be full, for the client.
	FullAt quota.Instant
	// Deadline is when the request stops waiting; 0: Ask sets it.
	Deadline quota.Instant
	// Delay is how long a leaky bucket holds a Granted request back.
	Delay quota.Span
	// Name is that of the reservation of a ticket that is Granted or Charged, if its need Reserves;
	// else 0.
	Name uint64
	// Charged: the tokens were granted, but too late. The caller sets it where it is late itself.
	Charged bool

	// inHand: the tokens of a Granted ticket are of those that the node held, from a lease.
	inHand bool
	from   lease.Lease
	// lateCall is the call that carried a Failed ticket, whose answer may still come.
	lateCall *call
}

// request is the tickets of one request that waits.
type request struct {
	stream   uint32
	trial    uint32
	deadline quota.Instant
	tickets  []*Ticket
	line     *line
	// call carries the request; nil: none does.
	call *call
	// ended: the request does not wait any more, and its tickets may belong to another one.
	ended bool
}

// line is the requests that wait for one bucket. One call at a time carries the first ones. A
// request for several buckets has a line for itself.
type line struct {
	// need is the newest for the bucket.
	need Need
	// several: the one request in this line waits for more than one bucket. trial: trials wait in
	// it, and no requests.
	several, trial bool
	// optimistic are the buckets of that request that are, while a call carries it.
	optimistic []keyhash.Key
	// waiting are the requests that no call carries, the first one first.
	waiting []*request
	// call carries requests of this line; nil: none does.
	call *call
	// parts are the items of the call whose answers are to be taken in, and waitOn the requests of
	// the others that keep waiting.
	parts  int
	waitOn []*request
	// asks: these ask once more at once.
	asks bool
	// keep is how many tokens to ask for beyond what requests wait for. kept is the call that
	// carried such last as an item of their own.
	keep int64
	kept *call
	// spent are tokens of the bucket that were used: the next call for it says so.
	spent [2]lease.Spent
	// isReady: the queue's ready has the line; isKept: its kept has it.
	isReady, isKept bool
}

// call is one message under way. Its items may be of different buckets and lines.
type call struct {
	seq   uint64
	sent  quota.Instant
	items []item
	// asks counts the lines whose requests wait for the answer.
	asks int
	// full: a line had no space in the call, and those behind it must not overtake it.
	full bool
	// purpose is why the call leaves.
	purpose purpose
	// late: the call has failed for the requests that waited in it, and may be answered yet.
	late bool
	// held are debts that wait for the answer.
	held []heldDebt
	// lostAt is when a late call is given up, because one that left after it was answered; 0: none
	// was.
	lostAt quota.Instant
	// waits is how many answers are held that the call has brought. over: nothing more is heard of
	// it.
	waits int
	over  bool
}

// purpose is why a call leaves.
type purpose uint8

const (
	// forRequests: requests wait for it, or it carries debts, returns or tokens to keep.
	forRequests purpose = iota
	// forTrials: nothing but trials wait for it.
	forTrials
	// forReports, forSettlements and forClaims: it has items of that kind alone, beside returns.
	forReports
	forSettlements
	forClaims
	// forProbe: it only finds out whether the control plane answers.
	forProbe
)

// itemKind is the purpose of an item.
type itemKind uint8

const (
	// asks: tokens for waiting requests of the need's cost, and tokens to keep.
	asks itemKind = iota
	// charges: to charge a debt, as so many waiting requests or used tokens.
	charges
	// reportsUse: to count the used tokens of an optimistic bucket.
	reportsUse
	// settles: to make a reservation cost as much as its request.
	settles
	// givesBack: to take back tokens, or to hear that they were used.
	givesBack
	// claims: permits, so many waiting and to keep beyond those to hold, of which the lent ones
	// last.
	claims
	// probes: nothing.
	probes
	// done: its answer was taken in, and nothing is to be sent again.
	done
)

// item is the part of a call about one bucket. Its kind says which fields count.
type item struct {
	kind itemKind
	need Need
	// waiting, keep and used are as the kind says.
	waiting, keep, used int64
	// name names the reservations of the waiting requests, or a return.
	name uint64

	// joined: this item, that asks, and the next are granted together or not at all.
	joined bool
	// soon: what its requests are granted is used within lease.Soon.
	soon bool
	// line is where the waiters wait; nil if there are none.
	line    *line
	waiters []*request
	// spent are used tokens of the bucket, which an item before this one says.
	spent [2]lease.Spent
	// prepaid are tokens that a late answer has charged and that have paid no debt: they are for
	// requests of the call that have not gone on yet.
	prepaid int64

	// debt is the debt that the item charges; owed are reservations that it asks for.
	debt *debt
	owed []*Reservation
	// reported is the name of a report: when its tokens were first to be reported.
	reported quota.Instant
	// settled is the reservation that the item settles.
	settled *Reservation
	// back are the tokens that it gives back.
	back lease.Lease
	// claim is the number of a claim.
	claim      uint64
	hold, lent int64
}

// open are the waiters that have not ended meanwhile.
func (it *item) open() []*request {
	ended := func(r *request) bool { return r.ended }
	if !slices.ContainsFunc(it.waiters, ended) {
		return it.waiters
	}
	return slices.DeleteFunc(slices.Clone(it.waiters), ended)
}

// carry adds an item of a need. It is not inlined, for the size of the filter.
//
//go:noinline
func (c *call) carry(kind itemKind, need *Need) *item {
	c.items = append(c.items, item{kind: kind})
	it := &c.items[len(c.items)-1]
	it.need = *need
	return it
}

// deadline is for how long what its requests are granted counts as leased.
func (it *item) deadline() quota.Span {
	if it.soon {
		return lease.Soon
	}
	return lease.Deadline
}

// ask is the item as the rules of leases see it.
func (it *item) ask() lease.Ask {
	return lease.Ask{
		Params: it.need.Params, Version: it.need.Version, Waiting: it.waiting, Cost: it.need.Cost,
		Keep: it.keep, Used: it.used, Reserved: it.name,
	}
}

// message is the item as it travels.
func (it *item) message() wire.LeaseItem {
	m := wire.LeaseItem{
		Bucket: it.need.Bucket, Limit: it.need.Limit,
		Waiting: it.waiting, Cost: it.need.Cost, Keep: it.keep, Used: it.used, Joined: it.joined, Soon: it.soon,
		ExceptionsRevision: it.need.ExceptionsRevision, Consumer: it.need.Consumer, Position: it.need.Position,
		Root: it.need.Root, Quota: it.need.Quota, Burst: it.need.Burst, Reserved: it.name,
	}
	switch {
	case it.used > 0:
		m.Kind = wire.KindReport
	case it.kind == settles:
		r := it.settled
		m.Kind, m.Reserved, m.Nth = wire.KindSettle, r.Name>>nameBits<<nameBits, int64(r.Name&(1<<nameBits-1))
		m.Actual = r.actual
	case it.kind == givesBack:
		m.Kind, m.Term, m.Returned, m.Used = wire.KindReturn, it.back.Term, it.back.Tokens, it.back.Used
	case it.kind == claims:
		m.Kind, m.Seq, m.Hold, m.Lent = wire.KindClaim, it.claim, it.hold, it.lent
	}
	return m
}

// sameSet reports whether items are all of a policy set. Those of several do not travel together.
func sameSet(items []item, version uint64) bool {
	return len(items) == 0 || items[0].need.Version == version
}

// lasts reports whether what the call carries may be charged twice if it is sent again: its answer
// is awaited although it is late. Settlements, returns and claims of permits have names, and trials
// and probes charge nothing that counts.
func (c *call) lasts() bool { return c.purpose == forRequests || c.purpose == forReports }

const (
	// callLife is how long Envoy awaits the answer to a call that carries what is charged. A
	// control plane that stands still for less charges each call once: its late answer says so.
	callLife = 5 * quota.Second
	// maxLate bounds the late calls whose answers are awaited for so long.
	maxLate = 64
)

// timeout is how long an answer may take, where so many calls are late.
func (c *call) timeout(late int) quota.Span {
	switch {
	case c.purpose == forProbe:
		return lease.Deadline
	case c.lasts() && late < maxLate:
		return callLife
	}
	return callTimeout
}

// lateAt is from when on the call counts as one without an answer.
func (c *call) lateAt() quota.Instant {
	if c.asks > 0 {
		return c.sent + quota.Instant(lease.Deadline)
	}
	return c.sent + quota.Instant(callTimeout)
}

// Reservation is what the control plane has granted a request before its cost was known, by its
// Name.
type Reservation struct {
	Need Need
	Name uint64
	// Tally counts its settlement; nil where no request has used it.
	Tally Tally

	// actual is what it has cost, which became known at since.
	actual int64
	since  quota.Instant
	// sent: a call has carried the settlement before.
	sent bool
	// owes: it is part of a debt of the share, as long as it is not charged. asked: a call asks for
	// it; known: it was settled meanwhile.
	owes, asked, known bool
}

// Owes reports whether the request has taken its tokens from the share, and the control plane has
// not charged them.
func (r *Reservation) Owes() bool { return r.owes }

// Tally counts settlements.
type Tally interface {
	// CountSettled counts a reservation that was settled, and what its bucket gave back in parts of
	// a token, below 0 what it took.
	CountSettled(back int64)
}
