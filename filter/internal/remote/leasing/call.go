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

// Ticket is the wait of a request for the tokens of one bucket.
type Ticket struct {
	// Stream identifies the request to the caller. A ticket of a trial has the trial's number in
	// Trial; no request waits for it.
	Stream  uint32
	Trial   uint32
	Need    Need
	Outcome Outcome
	// Until is when the tokens of a Granted ticket expire, or when the refusal of a Refused ticket
	// ends.
	Until quota.Instant
	// Suspended: the ticket was Refused because the quota of its limit is 0.
	Suspended bool
	// Doubt: the bucket of a Refused ticket may lack tokens that were not used.
	Doubt bool
	// Term is the lease term of a Granted ticket's tokens. They go back under it. 0: they cannot go
	// back.
	Term lease.Term
	// Since is when the failure of a Failed ticket began.
	Since quota.Instant
	// Level is the number of tokens left in the bucket after this request, for the client's
	// headers.
	Level int64
	// FullAt is when the bucket will be full, for the client's headers.
	FullAt quota.Instant
	// Deadline is when the request stops waiting; 0: Ask sets it.
	Deadline quota.Instant
	// Delay is the time for which a leaky bucket holds a Granted request back.
	Delay quota.Span
	// Name is the name of the reservation, if the need Reserves and the ticket is Granted or
	// Charged; else 0.
	Name uint64
	// Charged: the tokens were granted, but the answer came too late. The caller sets it too if the
	// caller itself is late.
	Charged bool

	// inHand: the tokens of a Granted ticket come from the tokens in hand, which are of the lease
	// from.
	inHand bool
	from   lease.Lease
	// lateCall is the call of a Failed ticket whose answer may still come.
	lateCall *call
}

// request holds the tickets of one request that waits.
type request struct {
	stream   uint32
	trial    uint32
	deadline quota.Instant
	tickets  []*Ticket
	line     *line
	// call is the call that carries the request; nil: no call carries it.
	call *call
	// ended: the request no longer waits. Its tickets may belong to another request by now.
	ended bool
}

// line is the queue of the requests that wait for one bucket. Only one call at a time carries its
// first requests. A request for several buckets has a line for itself.
type line struct {
	// need is the newest need for the bucket.
	need Need
	// several: the line's only request waits for more than one bucket. trial: only trials wait in
	// the line.
	several, trial bool
	// optimistic are the optimistic buckets of a request for several buckets, while a call carries
	// it.
	optimistic []keyhash.Key
	// waiting are the requests that no call carries, in order of arrival.
	waiting []*request
	// call carries requests of this line; nil: no call does.
	call *call
	// parts is the number of the call's items for this line whose answers are still missing. waitOn
	// are requests of the answered items that keep waiting.
	parts  int
	waitOn []*request
	// asks: the requests in waitOn ask again at once.
	asks bool
	// keep is the number of tokens to keep, beyond the tokens for waiting requests. kept is the
	// call that last carried tokens to keep in an item of their own.
	keep int64
	kept *call
	// spent are used tokens of the bucket. The next call for the bucket reports them.
	spent [2]lease.Spent
	// isReady: the line is in queue.ready or queue.trials. isKept: it is in queue.kept.
	isReady, isKept bool
}

// call is one message under way. Its items can be about different buckets and lines.
type call struct {
	seq   uint64
	sent  quota.Instant
	items []item
	// asks counts the lines whose requests wait for the answer.
	asks int
	// full: some line had no space in the call. Lines behind it must not overtake it.
	full bool
	// purpose is the reason for the call.
	purpose purpose
	// late: the call has failed for its waiting requests, but its answer may still come.
	late bool
	// held are debts that wait until this call has ended.
	held []heldDebt
	// lostAt is when a late call is given up, because a later call was answered; 0: no later call
	// was answered.
	lostAt quota.Instant
	// waits is the number of this call's answers in Client.held. over: no answer can come any more.
	waits int
	over  bool
}

// purpose is the reason for a call.
type purpose uint8

const (
	// forRequests: requests wait for it, or it carries debts, returns or tokens to keep.
	forRequests purpose = iota
	// forTrials: only trials wait for it.
	forTrials
	// forReports, forSettlements and forClaims: beside returns, it has only items of that kind.
	forReports
	forSettlements
	forClaims
	// forProbe: it only checks that the control plane answers.
	forProbe
)

// itemKind is the purpose of an item.
type itemKind uint8

const (
	// asks requests tokens: waiting times the need's cost, and keep tokens to keep.
	asks itemKind = iota
	// charges charges a debt: as waiting requests, or as used tokens.
	charges
	// reportsUse reports the used tokens of an optimistic bucket.
	reportsUse
	// settles sets the cost of a reservation to the real cost of its request.
	settles
	// givesBack returns tokens, or reports that tokens were used.
	givesBack
	// claims claims waiting permits for waiting requests and keep permits to keep, beside hold. Of
	// hold, lent permits surely last until the answer.
	claims
	// probes asks for no tokens.
	probes
	// done: the answer was read, and nothing is sent again.
	done
)

// item is the part of a call about one bucket. The kind decides which fields count.
type item struct {
	kind itemKind
	need Need
	// waiting, keep and used are counts; the kind defines their meaning.
	waiting, keep, used int64
	// name is the name of the waiting requests' reservations, or of a return.
	name uint64

	// joined: this item and the next item are granted together or not at all. Only items of the
	// kind asks have it.
	joined bool
	// soon: the requests use their granted tokens within lease.Soon.
	soon bool
	// line is the line of the waiters; nil if there are none.
	line    *line
	waiters []*request
	// spent are used tokens of the bucket, which an earlier item of the call reports.
	spent [2]lease.Spent
	// prepaid are tokens that a late answer has charged and that have paid no debt. They serve
	// requests of this call that have not gone on yet.
	prepaid int64

	// debt is the debt to charge, for the kind charges. owed are the reservations of that debt.
	debt *debt
	owed []*Reservation
	// reported is the name of a report: the instant of its first attempt.
	reported quota.Instant
	// settled is the reservation to settle.
	settled *Reservation
	// back are the tokens that the item returns, or reports as used.
	back lease.Lease
	// claim is the sequence number of a claim.
	claim      uint64
	hold, lent int64
}

// openWaiters returns the waiters that have not ended since the call left.
func (it *item) openWaiters() []*request {
	ended := func(r *request) bool { return r.ended }
	if !slices.ContainsFunc(it.waiters, ended) {
		return it.waiters
	}
	return slices.DeleteFunc(slices.Clone(it.waiters), ended)
}

// addItem appends an item for a need. It is not inlined, to keep the module small.
//
//go:noinline
func (c *call) addItem(kind itemKind, need *Need) *item {
	c.items = append(c.items, item{kind: kind})
	it := &c.items[len(c.items)-1]
	it.need = *need
	return it
}

// deadline returns the time for which the tokens granted to requests count as leased.
func (it *item) deadline() quota.Span {
	if it.soon {
		return lease.Soon
	}
	return lease.Deadline
}

// leaseAsk returns the item in the form that the lease arithmetic reads.
func (it *item) leaseAsk() lease.Ask {
	return lease.Ask{
		Params: it.need.Params, Version: it.need.Version, Waiting: it.waiting, Cost: it.need.Cost,
		Keep: it.keep, Used: it.used, Reserved: it.name,
	}
}

// wireItem returns the item in wire format.
func (it *item) wireItem() wire.LeaseItem {
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

// sameSet reports whether all items belong to a policy set version. Items of several versions never
// share a call.
func sameSet(items []item, version uint64) bool {
	return len(items) == 0 || items[0].need.Version == version
}

// awaitsLateAnswer reports whether the call's items might be charged twice if they were sent again.
// The client waits for the late answer to such a call. Settlements, returns and claims of permits
// have names, so the store knows a repetition; trials and probes charge nothing that counts.
func (c *call) awaitsLateAnswer() bool { return c.purpose == forRequests || c.purpose == forReports }

const (
	// callLife is the time that Envoy waits for the answer to a call that charges tokens. If the
	// control plane stops for less than that, each call is charged once, because its late answer
	// arrives.
	callLife = 5 * quota.Second
	// maxLate bounds the late calls that have callLife as their timeout.
	maxLate = 64
)

// timeout returns the maximum time for the answer, given the number of late calls.
func (c *call) timeout(late int) quota.Span {
	switch {
	case c.purpose == forProbe:
		return lease.Deadline
	case c.awaitsLateAnswer() && late < maxLate:
		return callLife
	}
	return callTimeout
}

// lateAt returns the instant from which the call counts as unanswered.
func (c *call) lateAt() quota.Instant {
	if c.asks > 0 {
		return c.sent + quota.Instant(lease.Deadline)
	}
	return c.sent + quota.Instant(callTimeout)
}

// Reservation is a number of tokens that the control plane granted to a request before its cost was
// known. It is identified by Name.
type Reservation struct {
	Need Need
	Name uint64
	// Tally counts its settlement; nil where no request has used it.
	Tally Tally

	// actual is the request's cost in tokens, known since since.
	actual int64
	since  quota.Instant
	// sent: a call has carried the settlement before.
	sent bool
	// owes: the reservation is part of a debt that is not charged yet. asked: a call asks to charge
	// it. known: it was settled during that call.
	owes, asked, known bool
}

// Owes reports whether the request took its tokens from the share, and the control plane has not
// charged them yet.
func (r *Reservation) Owes() bool { return r.owes }

// Tally counts settlements.
type Tally interface {
	// CountSettled counts a settled reservation. Back is the refund to the bucket in parts of a
	// token; below 0 it is an extra charge.
	CountSettled(back int64)
}
