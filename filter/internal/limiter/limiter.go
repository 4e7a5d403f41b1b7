// Package limiter turns the policies that apply to a request into one decision: look at every
// bucket, ask the control plane for what is missing, then charge, so that a refused request is
// charged nowhere but where another request took the tokens in between; ChargedInVain counts those.
//
// Read decide.go first: it is the path of a request, from Begin to a decision. finish.go has how
// requests end, and what they give back. deciders.go lists the deciders of the modes, of limits of
// requests in flight, of adaptive limits and of the steps of on_failure; failure.go is on_failure.
// The files whose names end in change have what becomes of the entry of one bucket of this node's
// own; those of leased and optimistic buckets are in leasing/spend.go and leasing/optimistic.go.
// shadow.go has what is tried beside a request, and trial.go how.
package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/delay"
	"github.com/weir-proxy/weir/filter/internal/inflight"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/filter/internal/overload"
	"github.com/weir-proxy/weir/filter/internal/penalties"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Stats counts decisions, for the filter's metrics.
type Stats struct {
	// Banned, Exempt, Unlimited, Bypassed, Allowed and Refused count requests by how they ended. No
	// enforced policy applies to an Unlimited one. One would to a Bypassed one, but operators have
	// switched it off, or everything.
	Banned, Exempt, Unlimited, Bypassed, Allowed, Refused uint64
	// The Shadow counts are by policy, of policies in shadow.
	ShadowAllowed, ShadowRefused, ShadowUndetermined uint64
	// The Candidate counts are by policy, of draft limits beside the enforced ones.
	CandidateAllowed, CandidateRefused, CandidateUndetermined uint64
	// Contended counts hits whose bucket changed at every attempt to charge it.
	Contended uint64
	// ChargedInVain counts buckets that a request was charged at before another bucket refused it.
	ChargedInVain uint64
	// Waited counts requests that waited for tokens of the control plane, Delayed those that leaky
	// buckets held back.
	Waited, Delayed uint64
	// TooManyWaiting counts requests that had to do without waiting, because as many wait as may.
	TooManyWaiting uint64
	// Unanswered counts requests that asked for tokens, and each place in flight that was asked
	// for, that went by on_failure although the control plane is there: it was too slow, a part of
	// its store is away, or its answer could not be used.
	Unanswered uint64
	// Gone counts requests whose client disconnected before the decision.
	Gone uint64
	// Decided counts what decided: each hit of an allowed request, and of a refused one the hit
	// that refuses.
	Decided [len(policy.Sources)]uint64
	// Settled counts what became of reservations.
	Settled Settled
}

// Settled counts what became of reservations, for the filter's metrics.
type Settled struct {
	// Reserved, Refunded and Overspent are tokens: taken before the cost was known, given back, and
	// taken when the cost was found to be more. What came back by itself is not counted.
	Reserved, Refunded, Overspent uint64
	// Settled counts reservations whose cost became known, Missing those whose response did not say
	// it, Kept those that stay charged as they were made, mostly because their requests ended
	// without a whole response.
	Settled, Missing, Kept uint64
	// KeptBy counts those of Kept by the way in which their requests ended.
	KeptBy [Endings]uint64
}

// Limiter decides for one VM.
type Limiter struct {
	Stats Stats
	// Ahead is by how much Unix time is ahead of the instants that requests come with. Windows of
	// the calendar begin by it.
	Ahead quota.Span

	matcher   match.Matcher
	store     *bucketstore.Store
	leases    *leasing.Client // nil without a control plane: every policy is local then
	flights   *inflight.Book
	penalties *penalties.Box
	guards    *overload.Guards
	delays    delay.Queue
	// refunded is what was given back and is less than a token, in parts of one.
	refunded int64
	together []*leasing.Ticket

	// The changes of buckets are fields because what is passed to the store would be allocated for
	// each request otherwise.
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

// Config is what a limiter needs.
type Config struct {
	Store *bucketstore.Store
	// Flights are the requests in flight.
	Flights *inflight.Book
	// Leases asks the control plane; nil: every policy is decided by this node's own buckets.
	Leases *leasing.Client
	// Penalties are those of callers; nil: there are none.
	Penalties *penalties.Box
	// Guards are the adaptive limits; nil: these let everything through.
	Guards *overload.Guards
}

// Objects counts requests with a claim that is an object where a policy looks for a value.
func (l *Limiter) Objects() *uint64 { return &l.matcher.Objects }

// New makes a limiter.
func New(c Config) *Limiter {
	return &Limiter{
		store: c.Store, flights: c.Flights, leases: c.Leases, penalties: c.Penalties, guards: c.Guards,
		delays: delay.Queue{Bound: leasing.MaxWaiting},
	}
}
