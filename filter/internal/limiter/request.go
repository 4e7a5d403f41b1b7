package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/inflight"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/filter/internal/overload"
	"github.com/weir-proxy/weir/filter/internal/ruleset"
	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Status is where a request stands.
type Status uint8

const (
	// Unlimited: no enforced policy applies to the request, or it is exempt.
	Unlimited Status = iota
	// Bypassed: operators have switched off everything, or each enforced policy that applies.
	Bypassed
	// Banned: the request is refused, whatever its buckets hold.
	Banned
	// Allowed: all buckets have let it through, and are charged.
	Allowed
	// Refused: a bucket has not, or the request lacks what a policy needs.
	Refused
	// Paused: the request waits, for the control plane or for places in flight. Resume it each time
	// that a ticket or a seat of it has ended.
	Paused
	// Delayed: it is allowed, and goes on when Release names it.
	Delayed
	// undecided: its deciding goes on. No caller of the limiter sees it.
	undecided
)

// Request is one request on its way to a decision. The zero value is ready for Begin. It can be
// reused for another request once it is neither Paused nor Delayed.
type Request struct {
	// Stream identifies the request to its caller.
	Stream uint32
	// Hits are the limits that apply, in the document's order, with what the headers need.
	Hits []Hit
	// Refusing is the index of the hit that refuses a Refused request, Reason why it does, Source
	// what decided so.
	Refusing int
	Reason   policy.Reason
	Source   policy.DecisionSource
	// Ban is what a Banned request is banned by. BanEnds is when that ends by itself, in Unix
	// milliseconds, 0 for never. BannedKey is the partition key of a match.KeyBan; zero of others.
	Ban       match.Ban
	BanEnds   int64
	BannedKey keyhash.Key
	// Delay is how long leaky buckets hold an allowed request back; 0 for one that goes on at once.
	Delay quota.Span
	// Costs are those that are known later, in the order of the limits.
	Costs []Cost
	// Lasting: an Allowed or Delayed request must be ended by End when its stream is over.
	Lasting bool

	rules *ruleset.Rules
	// paused: the request waits, and refers to the memory of its rules.
	paused bool
	// refuses: it is refused, and waits only until it is known for how long.
	refuses bool
	// deadline is when the request stops waiting, however often it must ask; 0 before it asks.
	deadline quota.Instant
	// shadows are the hits of policies in shadow and of candidates.
	shadows []match.Hit
	// counted are limits of requests in flight that operators have lifted for now.
	counted []match.Hit
	// subjects are the caller by the policies that have penalties.
	subjects []match.Subject
	// bypassed: operators have switched off a policy that applies.
	bypassed bool
	// own are the limits that the consumer has in place of policies', as of exceptionsRevision.
	own                []policy.Limit
	consumer           keyhash.Key
	exceptionsRevision uint64
	// places are those that the request takes in flight, those of policies in shadow among them.
	places []inflight.Place
	// entries are what adaptive limits have let through, those in shadow among them. rank is the
	// request's importance: they shed the least important first.
	entries []overload.Entry
	rank    adaptive.Rank
	// reserved is what it has taken before its cost is known.
	reserved []*reservation
	// trial: this is no request but a trial of one. trials are those of this request that must know
	// when it ends, or who made it.
	trial  *trial
	trials []*trial
}

// bound is a limit that applies to the request, with what the rules say of it. That stays where it
// is until the request is decided: the memory of the rules is kept while a request waits.
type bound struct {
	match.Hit
	rule *match.Policy
	// limit decides: the policy's, or the consumer's own.
	limit *policy.Limit
	// commit is how the cost becomes known later; nil if it is known.
	commit *policy.Commit
}

// Hit is one limit's part in the decision.
type Hit struct {
	bound
	// need is what it needs of a bucket that the control plane keeps, of leased, strict and
	// optimistic limits.
	need leasing.Need
	// Remaining is the whole tokens left, of a refused request too.
	Remaining int64
	// Reset is the time until the bucket is full, Retry the wait that a refusing hit asks for.
	Reset, Retry quota.Span
	// Known: Remaining and Reset are the bucket's, as far as this node can know. They are not if
	// nothing has been heard of the bucket.
	Known bool

	decider *decider
	// source is what decides, for metrics and log fields: the decider, or the control plane.
	source policy.DecisionSource
	// passed: it has let the request through, and is charged if its decider charges.
	passed bool
	// missing: only the control plane can let it through. lacks: the bucket has too few tokens as
	// far as this node knows, which holds inHand of them.
	missing, lacks bool
	inHand         int64
	// asked: it is being asked, by the ticket.
	asked  bool
	ticket leasing.Ticket
	// view is what is known so far of whether the bucket allows the request, for candidates.
	view view
	// least is what the bucket must hold for the request, of a hit that a trial only looks at.
	least int64
	// reason is why the hit refuses. doubt: its bucket may lack tokens that were not used.
	reason policy.Reason
	doubt  bool
	// ahead is how many tokens to ask for beyond the request's own, by aheadBy.
	ahead   int64
	aheadBy quota.Instant
	// spent are tokens of the bucket that were used: that ask says so.
	spent [2]lease.Spent

	// seat is its place in flight, or its turn to get one. awaits: it is to wait for one.
	seat   inflight.Seat
	awaits bool

	// since is when the control plane stopped answering, of a hit that on_failure decides.
	since quota.Instant
	// holds is what the whole bucket holds by this node's knowledge, if heard: it has any.
	holds int64
	heard bool
	// empty: the share starts without a token.
	empty bool

	// queued: the bucket is a leaky one, in which the request takes a turn.
	queued bool
	// release is when a leaky bucket lets the request go on; 0 of others.
	release quota.Instant
	// params and after are the figures of a leaky bucket of this node's own, and its state behind
	// the request.
	params quota.Params
	after  quota.State
}

// Cost is what a request has reserved of one bucket, and what it was found to cost there; Actual is
// below 0 as long as that is not known.
type Cost struct{ Reserved, Actual int64 }

// view is what is known of a hit so far. The greatest of several hits counts.
type view uint8

const (
	uncounted view = iota
	allows
	// unknown: its tokens are missing and the control plane has not answered, or it was not looked
	// at.
	unknown
	refuses
)

// none is the index of no hit.
const none = -1

// reset begins a new request.
func (req *Request) reset(rules *ruleset.Rules) {
	req.rules, req.paused, req.deadline, req.Delay, req.bypassed = rules, false, 0, 0, false
	req.Hits, req.shadows, req.subjects = req.Hits[:0], req.shadows[:0], req.subjects[:0]
	req.Lasting, req.refuses, req.places = false, false, req.places[:0]
	req.counted = req.counted[:0]
	req.entries, req.trials = req.entries[:0], req.trials[:0]
	req.reserved, req.Costs = req.reserved[:0], req.Costs[:0]
}

// isWaiting reports whether a ticket of the request is open, or a seat.
func (req *Request) isWaiting() bool {
	for i := range req.Hits {
		h := &req.Hits[i]
		if h.asked && h.ticket.Outcome == leasing.Waiting || h.seat.State == inflight.Waiting {
			return true
		}
	}
	return false
}

// Asked reports whether the request has waited for tokens of the control plane, or does so now.
func (req *Request) Asked() bool { return req.deadline != 0 }

// Reserves reports whether the request has taken tokens before its cost is known.
func (req *Request) Reserves() bool { return len(req.reserved) > 0 }

// lasts reports whether the request has taken what must be given back when its stream is over.
func (req *Request) lasts() bool {
	return req.Reserves() || len(req.places) > 0 || len(req.entries) > 0 || len(req.trials) > 0
}

// allPassed reports whether all hits have let the request through.
func (req *Request) allPassed() bool {
	for i := range req.Hits {
		if !req.Hits[i].passed {
			return false
		}
	}
	return true
}

// later is the index of the hit that must wait longer, the first of them if both must wait as long;
// a may be none.
func (req *Request) later(a, b int) int {
	if a == none || req.Hits[b].Retry > req.Hits[a].Retry || req.Hits[b].Retry == req.Hits[a].Retry && b < a {
		return b
	}
	return a
}

// LimitOf is the limit that a hit is decided by: the policy's, or the consumer's own.
func (req *Request) LimitOf(m *match.Hit) *policy.Limit {
	if m.Own > 0 {
		return &req.own[m.Own-1]
	}
	return req.rules.Index.Limit(m.Limit)
}

// holdsAtMost is the most that the whole bucket holds by what the node knows.
func (h *Hit) holdsAtMost() int64 {
	if h.heard {
		return h.holds
	}
	return h.limit.Params.Burst
}

// generation orders what changes a bucket's figures on this node. The figures of a later policy set
// stay. Under one policy set those that are known of the consumer stay before those of the
// document, which a VM uses that does not know the consumer yet.
func (req *Request) generation(m *match.Hit) uint64 {
	g := req.rules.Generation << 1
	if m.Certainty < match.Guessed {
		g++
	}
	return g
}

// Rules is the policy set that the request is decided by.
func (req *Request) Rules() *ruleset.Rules { return req.rules }
