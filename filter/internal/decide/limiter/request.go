package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/filter/internal/load/overload"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Status is the state of a request.
type Status uint8

const (
	// Unlimited: no enforced policy applies to the request, or it is exempt.
	Unlimited Status = iota
	// Bypassed: operators have switched off everything, or each enforced policy that applies.
	Bypassed
	// Banned: the request is refused, whatever its buckets have left.
	Banned
	// Allowed: all buckets have allowed and charged it.
	Allowed
	// Refused: a bucket has refused it, or the request lacks a value that a policy needs.
	Refused
	// Paused: the request waits for the control plane or for places in flight. Call Resume each
	// time that a ticket or seat of the request has ended.
	Paused
	// Delayed: the request is allowed, and goes on when Release returns it.
	Delayed
	// undecided: the decision continues. No caller of the limiter sees it.
	undecided
)

// Request is one request on its way to a decision. The zero value is ready for Begin. It can be
// reused for another request once it is neither Paused nor Delayed.
type Request struct {
	// Stream identifies the request to its caller.
	Stream uint32
	// Hits are the limits that apply, in the document's order, with the figures for headers.
	Hits []Hit
	// Refusing is the index of the hit that refuses a Refused request. Reason is the reason, and
	// Source the source of that decision.
	Refusing int
	Reason   policy.Reason
	Source   policy.DecisionSource
	// Ban is the kind of a Banned request's ban. BanEnds is when the ban ends by itself, in Unix
	// milliseconds, 0 for never. BannedKey is the partition key of a match.KeyBan; zero for other
	// bans.
	Ban       match.Ban
	BanEnds   int64
	BannedKey keyhash.Key
	// Delay is the time for which leaky buckets hold an allowed request back; 0 if it goes on at
	// once.
	Delay quota.Span
	// Costs are the costs that become known later, in the order of the limits.
	Costs []Cost
	// Lasting: an Allowed or Delayed request must be ended by End when its stream is over.
	Lasting bool

	rules *ruleset.Rules
	// paused: the request waits, and refers to the memory of its rules.
	paused bool
	// refuses: the request is refused, and waits only until its wait is known.
	refuses bool
	// deadline is when the request stops waiting, however often it must ask; 0 before it asks.
	deadline quota.Instant
	// shadows are the hits of policies in shadow and of candidates.
	shadows []match.Hit
	// counted are limits of requests in flight that operators have lifted for now.
	counted []match.Hit
	// subjects are the caller as the policies with penalties identify it.
	subjects []match.Subject
	// bypassed: operators have switched off a policy that applies.
	bypassed bool
	// own are the consumer's own limits, which replace limits of policies, as of
	// exceptionsRevision.
	own                []policy.Limit
	consumer           keyhash.Key
	exceptionsRevision uint64
	// places are the request's places in flight, including places for policies in shadow.
	places []inflight.Place
	// entries are the request's entries in adaptive limits, including adaptive limits in shadow.
	// rank is the request's importance: adaptive limits shed the least important requests first.
	entries []overload.Entry
	rank    adaptive.Rank
	// reserved are the request's reservations, taken before its cost is known.
	reserved []*reservation
	// trial: this is a trial and no request. trials are the trials of this request that must know
	// when it ends, or who made it.
	trial  *trial
	trials []*trial
}

// bound is a limit that applies to the request, resolved by the rules. The pointers stay valid
// until the request is decided: the memory of the rules is kept while a request waits.
type bound struct {
	match.Hit
	rule *match.Policy
	// limit is the limit that decides: the policy's limit, or the consumer's own limit.
	limit *policy.Limit
	// commit defines how the cost becomes known later; nil if it is known.
	commit *policy.Commit
}

// Hit is one limit's part in the decision.
type Hit struct {
	bound
	// need is the hit's need at the control plane, for leased, strict and optimistic limits.
	need leasing.Need
	// Remaining is the number of whole tokens left, for a refused request too.
	Remaining int64
	// Reset is the time until the bucket is full. Retry is the wait of a refusing hit.
	Reset, Retry quota.Span
	// Known: Remaining and Reset are the bucket's figures, as far as this node can know. False if
	// the node knows nothing of the bucket.
	Known bool

	decider *decider
	// source is the source of the decision, for metrics and log fields: the decider, or the control
	// plane.
	source policy.DecisionSource
	// passed: the hit has let the request through, and is charged if its decider charges.
	passed bool
	// missing: only the control plane can let the request through. lacks: the bucket has too few
	// tokens as far as this node knows. inHand is the number of tokens in hand then.
	missing, lacks bool
	inHand         int64
	// asked: the ticket is asking the control plane.
	asked  bool
	ticket leasing.Ticket
	// view is the knowledge so far whether the bucket allows the request, for candidates.
	view view
	// least is the number of tokens that the bucket must have for the request, for a hit that a
	// trial only looks at.
	least int64
	// reason is the reason of a refusing hit. doubt: its bucket may lack tokens that were not used.
	reason policy.Reason
	doubt  bool
	// ahead is the number of tokens to keep, to be asked for by aheadBy.
	ahead   int64
	aheadBy quota.Instant
	// spent are used tokens of the bucket. The ask for tokens to keep reports them.
	spent [2]lease.Spent

	// seat is the hit's place in flight, or its seat in the queue for a place. awaits: the hit must
	// wait for a place.
	seat   inflight.Seat
	awaits bool

	// since is when the control plane stopped answering, for a hit that on_failure decides.
	since quota.Instant
	// holds is the level of the whole bucket as far as this node knows; heard: the node knows it.
	holds int64
	heard bool
	// empty: the share starts without a token.
	empty bool

	// queued: the bucket is a leaky bucket, in which the request takes a turn.
	queued bool
	// release is when a leaky bucket lets the request go on; 0 for other buckets.
	release quota.Instant
	// params are the figures of a leaky bucket of this node's own, and after its state after the
	// request.
	params quota.Params
	after  quota.State
}

// Cost is a request's reservation at one bucket, and its actual cost there. Actual is below 0 while
// it is not known.
type Cost struct{ Reserved, Actual int64 }

// view is the knowledge about a hit so far. The greatest view of several hits counts.
type view uint8

const (
	uncounted view = iota
	allows
	// unknown: its tokens are missing and the control plane has not answered, or the bucket was not
	// checked.
	unknown
	refuses
)

// none is the index for no hit.
const none = -1

// reset prepares the struct for a new request.
func (req *Request) reset(rules *ruleset.Rules) {
	req.rules, req.paused, req.deadline, req.Delay, req.bypassed = rules, false, 0, 0, false
	req.Hits, req.shadows, req.subjects = req.Hits[:0], req.shadows[:0], req.subjects[:0]
	req.Lasting, req.refuses, req.places = false, false, req.places[:0]
	req.counted = req.counted[:0]
	req.entries, req.trials = req.entries[:0], req.trials[:0]
	req.reserved, req.Costs = req.reserved[:0], req.Costs[:0]
}

// isWaiting reports whether a ticket or a seat of the request is still open.
func (req *Request) isWaiting() bool {
	for i := range req.Hits {
		h := &req.Hits[i]
		if h.asked && h.ticket.Outcome == leasing.Waiting || h.seat.State == inflight.Waiting {
			return true
		}
	}
	return false
}

// Asked reports whether the request waits for tokens of the control plane, or has waited for them.
func (req *Request) Asked() bool { return req.deadline != 0 }

// Reserves reports whether the request has taken tokens before its cost is known.
func (req *Request) Reserves() bool { return len(req.reserved) > 0 }

// lasts reports whether the request must give something back when its stream is over.
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

// longerWait returns the index of the hit with the longer wait, the lower index if the waits are
// equal. A may be none.
func (req *Request) longerWait(a, b int) int {
	if a == none || req.Hits[b].Retry > req.Hits[a].Retry || req.Hits[b].Retry == req.Hits[a].Retry && b < a {
		return b
	}
	return a
}

// LimitOf returns the limit that decides a hit: the policy's limit, or the consumer's own limit.
func (req *Request) LimitOf(m *match.Hit) *policy.Limit {
	if m.Own > 0 {
		return &req.own[m.Own-1]
	}
	return req.rules.Index.Limit(m.Limit)
}

// holdsAtMost returns the highest level that the whole bucket may have, as far as this node knows.
func (h *Hit) holdsAtMost() int64 {
	if h.heard {
		return h.holds
	}
	return h.limit.Params.Burst
}

// generation returns a number that orders changes of a bucket's figures on this node. The figures
// of a later policy set win. Within one policy set the figures known for the consumer win over the
// figures of the document: a VM that does not know the consumer yet uses the latter.
func (req *Request) generation(m *match.Hit) uint64 {
	g := req.rules.Generation << 1
	if m.Certainty < match.Guessed {
		g++
	}
	return g
}

// Rules returns the policy set that decides the request.
func (req *Request) Rules() *ruleset.Rules { return req.rules }
