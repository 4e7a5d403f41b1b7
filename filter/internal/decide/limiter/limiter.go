// Package limiter turns the policies that apply to a request into one decision: check every bucket,
// ask the control plane for missing tokens, then charge. So a refused request is charged nowhere,
// unless another request took the tokens in between; ChargedInVain counts such charges.
//
// Read decide.go first: it is the path of a request, from Begin to a decision. finish.go has the
// ends of requests, and the tokens that a refused request gives back. deciders.go lists the
// deciders of the modes, of limits of requests in flight, of adaptive limits and of the steps of
// on_failure; failure.go has on_failure. Files whose names end in change have the changes to a
// bucket of this node's own; the changes to leased and optimistic buckets are in leasing/spend.go
// and leasing/optimistic.go. shadow.go starts the trials beside a request, and trial.go runs them.
package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/decide/delay"
	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/filter/internal/load/overload"
	"github.com/weir-proxy/weir/filter/internal/load/penalties"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Stats counts decisions, for the filter's metrics.
type Stats struct {
	// Banned, Exempt, Unlimited, Bypassed, Allowed and Refused count requests by outcome. No
	// enforced policy applies to an Unlimited request. An enforced policy would apply to a Bypassed
	// request, but operators have switched that policy off, or all policies.
	Banned, Exempt, Unlimited, Bypassed, Allowed, Refused uint64
	// The Shadow counts are per policy in shadow.
	ShadowAllowed, ShadowRefused, ShadowUndetermined uint64
	// The Candidate counts are per policy, for draft limits beside the enforced limits.
	CandidateAllowed, CandidateRefused, CandidateUndetermined uint64
	// Contended counts hits whose bucket was changed by other workers at every attempt to charge
	// it.
	Contended uint64
	// ChargedInVain counts buckets that charged a request before another bucket refused it.
	ChargedInVain uint64
	// Waited counts requests that waited for tokens of the control plane. Delayed counts requests
	// that leaky buckets held back.
	Waited, Delayed uint64
	// TooManyWaiting counts requests that could not wait, because the maximum of requests waits
	// already.
	TooManyWaiting uint64
	// Unanswered counts requests that asked for tokens, and places in flight that were asked for,
	// if on_failure decided although the control plane is there: it was too slow, a part of its
	// store is away, or its answer could not be used.
	Unanswered uint64
	// Gone counts requests whose client disconnected before the decision.
	Gone uint64
	// Decided counts decisions by source: each hit of an allowed request, and the refusing hit of a
	// refused request.
	Decided [len(policy.Sources)]uint64
	// Settled counts the outcomes of reservations.
	Settled Settled
}

// Settled counts the outcomes of reservations, for the filter's metrics.
type Settled struct {
	// Reserved, Refunded and Overspent are tokens: taken before the cost was known, given back, and
	// taken because the cost was higher. Tokens that a bucket earned back by itself are not
	// counted.
	Reserved, Refunded, Overspent uint64
	// Settled counts reservations whose cost became known. Missing counts reservations whose
	// response had no cost. Kept counts reservations that keep their first charge, mostly because
	// their requests ended without a whole response.
	Settled, Missing, Kept uint64
	// KeptBy counts the Kept reservations by the ending of their requests.
	KeptBy [Endings]uint64
}

// Limiter decides for one VM.
type Limiter struct {
	Stats Stats
	// Ahead is the time by which Unix time is ahead of the instants of requests. Calendar windows
	// begin by Unix time.
	Ahead quota.Span

	matcher   match.Matcher
	store     *bucketstore.Store
	leases    *leasing.Client // nil without a control plane: every policy is local then
	flights   *inflight.Book
	penalties *penalties.Box
	guards    *overload.Guards
	delays    delay.Queue
	// refunded are parts of a token that were given back and do not make a whole token yet.
	refunded int64
	together []*leasing.Ticket

	// The changes of buckets are fields, because an argument to the store would be allocated on the
	// heap for each request.
	local   tokenChange
	figures figuresChange
	window  windowChange
	turn    releaseTurn
	full    full
	spend   leasing.Spend
	use     leasing.Use
	seat    inflight.Seat
	asking  overload.Ask

	settling   settling
	trials     trials
	looked     looked
	knownWaits knownWaits
}

// Config has the parts that a limiter needs.
type Config struct {
	Store *bucketstore.Store
	// Flights are the requests in flight.
	Flights *inflight.Book
	// Leases asks the control plane; nil: this node's own buckets decide every policy.
	Leases *leasing.Client
	// Penalties are the penalties of callers; nil: there are none.
	Penalties *penalties.Box
	// Guards are the adaptive limits; nil: they let every request through.
	Guards *overload.Guards
}

// Objects returns the count of requests with a claim that is an object where a policy expects a
// value.
func (l *Limiter) Objects() *uint64 { return &l.matcher.Objects }

// New makes a limiter.
func New(c Config) *Limiter {
	return &Limiter{
		store: c.Store, flights: c.Flights, leases: c.Leases, penalties: c.Penalties, guards: c.Guards,
		delays: delay.Queue{Bound: leasing.MaxWaiting},
	}
}
