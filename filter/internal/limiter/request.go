package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/filter/internal/ruleset"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Status is where a request stands.
type Status uint8

// Unlimited: no policy is enforced on the request. Bypassed: neither, since operators have switched off one that applies. Banned: it is refused whatever its buckets hold. Paused: the request waits for
// the centre; Resume it when its tickets have ended. Delayed: it is allowed, and goes on when Release names it.
const (
	Unlimited Status = iota
	Bypassed
	Banned
	Allowed
	Refused
	Paused
	Delayed
)

// Reason says why a request was refused.
type Reason uint8

// The reasons of a refusal: the quota is used up; the cost exceeds the burst; a part of the partition key or a sensible cost
// is missing; the failure ladder's last step; too many requests wait already; the bucket was contended.
const (
	Quota Reason = iota
	TooDear
	Absent
	BadCost
	Failure
	TooManyWaiting
	Contended
)

// String is the reason as it shows in access logs.
func (r Reason) String() string { return policy.Reasons[r] }

// Request is one request on its way to a decision. The zero value is ready for Begin; it can be reused after Finish.
type Request struct {
	Stream uint32
	// Hits are the policies that apply, in the document's order, with what the headers need.
	Hits []Hit
	// Refusing is the index of the hit that refuses, of a Refused request, and Reason why.
	Refusing int
	Reason   Reason
	// Source is where the refusal came from.
	Source Source
	// Ban is what of a Banned request is banned.
	Ban match.Ban
	// Delay is how long leaky buckets hold an allowed request back; 0 for one that goes on at once.
	Delay quota.Span

	rules *ruleset.Rules
	held  bool
	// deadline is when the request stops waiting, however often it must ask; 0 before it asks.
	deadline quota.Instant
	matched  []match.Hit
	shadows  []match.Hit
	// own are the limits that the consumer has in place of policies', turn up to when that is known.
	own      []policy.Limit
	consumer keyhash.Key
	turn     uint64
}

// Hit is one policy's part in the decision.
type Hit struct {
	match.Hit
	// Remaining is the whole tokens left, Reset the time to a full bucket; Retry is the wait of a refusing hit. Clients of a
	// refused request are told that nothing remains for it; Left is what the refusing bucket holds.
	Remaining    int64
	Left         int64
	Reset, Retry quota.Span
	// Known: Remaining and Reset are the bucket's, as far as this node can know. What was not asked has none.
	Known bool

	by      by
	settled bool
	// since is when the control plane stopped answering, of a hit on the failure ladder; holds what the whole bucket holds by the node's
	// knowledge, if it has heard of it.
	since quota.Instant
	holds int64
	heard bool
	// empty: the share starts without a token.
	empty bool
	view  view
	// asked: the ticket is in the queue.
	asked bool
	// keep is how many tokens to ask for beyond the request's own, if it is asked for, by keepBy.
	keep   int64
	keepBy quota.Instant
	ticket leasing.Ticket
	// release is when a leaky bucket lets the request go on; 0 of others. Of a bucket of this node's own, params and after are its
	// figures and its state behind the request.
	release quota.Instant
	params  quota.Params
	after   quota.State
}

// view is what is known of a hit so far. Of several the greatest counts.
type view uint8

const (
	allows  view = iota + 1
	unknown      // its tokens are missing, and the centre has not said; or nobody has looked
	refuses
)

// by says what decides a hit.
type by uint8

const (
	byBucket by = iota // this node's own bucket
	byCredit           // tokens leased to this node, or the centre
	byTab              // this node by itself, and reports what it used
	byTicket           // tokens that came for this request
	byShare            // the failure ladder: this node's share
	byAllow            // the failure ladder: its last step
	byDeny
)

func (req *Request) policyOf(m match.Hit) *match.Policy { return req.rules.Index.Policy(m.Policy) }

// LimitOf is the limit that a hit is decided by: the policy's, or the consumer's own.
func (req *Request) LimitOf(m *match.Hit) *policy.Limit {
	if m.Own > 0 {
		return &req.own[m.Own-1]
	}
	return req.rules.Index.Limit(m.Limit)
}

// generation orders what changes a bucket's figures on this node: a later policy set's stay, and under one what is known of the
// consumer before what the document says to a VM that does not know it yet.
func (req *Request) generation(m *match.Hit) uint64 {
	g := req.rules.Generation << 1
	if m.Knows != match.Guessed {
		g++
	}
	return g
}

// Rules is the policy set that the request is decided by.
func (req *Request) Rules() *ruleset.Rules { return req.rules }

func settled(req *Request) bool {
	for i := range req.Hits {
		if !req.Hits[i].settled {
			return false
		}
	}
	return true
}

// later is the index of the hit that must wait longer.
func later(req *Request, a, b int) int {
	if a < 0 || req.Hits[b].Retry > req.Hits[a].Retry {
		return b
	}
	return a
}
