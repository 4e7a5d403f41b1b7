// Package leases grants leases: it resolves the items of a node's request with the policy set in
// force, asks the store for their tokens, and converts the grants to answers.
package leases

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/gather"
	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Patience is the longest wait of a request for a store that is near: the node's requests wait for
// lease.Deadline.
const Patience = 40 * time.Millisecond

// patientTrips is the longest wait for a store that is far away, in round trips to the store. The
// answer comes too late for the requests that waited. But it reports the remaining tokens, and the
// requests that the node's share let through are charged: without the answer the node would know
// nothing.
const patientTrips = 3

// maxDelay is the longest delay in an answer.
const maxDelay = quota.Hour

// ErrUnavailable means that the store does not answer, or has not answered lately; nothing was
// granted.
var ErrUnavailable = errs.New(errs.StoreUnavailable, "the store of the counters does not answer", "")

// Item is one bucket and the request for it.
type Item struct {
	Bucket keyhash.Key
	Kind   wire.ItemKind
	// Ask is used unless the item is a claim. Settlements and returns use only its figures.
	Ask lease.Ask
	// Claim, Settles and Returns are used by items of their kinds. The store sets the claim's
	// Doubt.
	Claim   inflight.Claim
	Settles Settlement
	Returns Return
	// Group is a number that the items of a group share; they are next to each other. 0 means no
	// group. See Store.
	Group int
	// Twin is the ask for the bucket's other ledger, while a rollout counts the bucket under two
	// versions; nil otherwise. That ledger is charged for the grant to this item. See lease.Twins.
	Twin *lease.Ask
	// Draft is true if the item's own ledger is the draft's.
	Draft bool
}

// Leading returns the number of items in the first group. An item without a group counts as a
// group.
func Leading(items []Item) int {
	n := 1
	for items[0].Group != 0 && n < len(items) && items[n].Group == items[0].Group {
		n++
	}
	return n
}

// Store keeps the ledgers.
type Store interface {
	// Grant answers each item in order as lease.Ledger.Grant does, or as lease.WindowLedger.Grant
	// if the ask has Windows, at the store's own time. A bucket may occur more than once. After an
	// error some items may have been charged: then too few requests are admitted, never too many.
	//
	// The items of a group are asks, each for another bucket. They are granted together: either all
	// waiting requests get their cost, or none does. In the second case nothing is granted, and
	// NotBefore is 0 for buckets that had enough tokens.
	//
	// A *Partial error concerns only some items: the other items were answered.
	Grant(ctx context.Context, items []Item) ([]lease.Grant, error)
}

// Partial is the error of a Grant that answered only some items, because a part of the store does
// not answer. Groups were granted all-or-nothing without the items of that part.
type Partial struct {
	// Away is the time for which the part that keeps each item has not answered; 0 for an answered
	// item.
	Away []time.Duration
	// Cause is one of the failures.
	Cause error
}

// Error describes the failure.
func (p *Partial) Error() string { return "a part of the store does not answer: " + p.Cause.Error() }

// Unwrap returns the cause.
func (p *Partial) Unwrap() error { return p.Cause }

// Sets provides the versions of the policy set. *policies.Service implements it.
type Sets interface {
	Active() (policies.Active, <-chan struct{})
	At(ctx context.Context, number uint64) (*policies.Compiled, error)
	Refresh(ctx context.Context) (*policies.Compiled, error)
}

// Counter counts the nodes that share the buckets. *nodes.Registry implements it.
type Counter interface {
	// Count may ask a part of the store that is away while other parts answer, so it may use only a
	// part of a request's patience.
	Count(ctx context.Context) int64
}

// Config configures a Service. All fields are required unless they say otherwise.
type Config struct {
	Store Store
	Sets  Sets
	Nodes Counter
	// Now is the clock that ends overrides.
	Now func() time.Time
	// Buckets is used by Adjust; nil if Adjust is never called.
	Buckets Buckets
	// Overrides has the limits of single consumers; nil if consumers have none.
	Overrides Overrides
	// Regions is nil for a control plane without other regions.
	Regions Regions
	// Distance returns the answer time of the store; nil for a store that is near. MostPatience
	// bounds the wait of a request for a store that is far away; 0 means Patience.
	Distance     func() time.Duration
	MostPatience time.Duration
	// Breakers has the breaker of the store, StoreName; nil for a group of the service's own.
	Breakers *breaker.Group
	// Meter, if not nil, is called for each answered item.
	Meter func(Use)
}

// Service grants leases. Make a Service with New. It is safe for concurrent use.
type Service struct {
	config Config
	// failure is the last error of the store.
	failure atomic.Pointer[error]
}

// StoreName is the name of the breaker of the whole store.
const StoreName = "store"

// New makes a Service.
func New(c Config) *Service {
	if c.Breakers == nil {
		c.Breakers = breaker.NewGroup(c.Now, rand.Float64, nil)
	}
	if c.Meter == nil {
		c.Meter = func(Use) {}
	}
	return &Service{config: c}
}

// Use is the outcome of one item, for metrics.
type Use struct {
	Policy *policy.Policy
	// Tier is the tier of the limit; empty for a limit of all tiers.
	Tier string
	// Tokens were granted, or were reported as used under an optimistic policy.
	Tokens int64
	// Returned are tokens that were granted before and not used.
	Returned int64
	// Bucket is the bucket of these tokens, Window the window of its limit.
	Bucket keyhash.Key
	Window quota.Span
	// Granted and Refused are requests that waited for this answer.
	Granted, Refused int64
}

// Grant answers a request. The error wraps ErrUnavailable, or is the error of the context.
func (s *Service) Grant(ctx context.Context, req wire.LeaseRequest) (wire.LeaseReply, error) {
	return s.GrantFor(ctx, req, lease.Deadline)
}

// GrantOnce grants like Grant, for a caller that repeats a request without an answer. If the store
// executed the first request after the request's patience, the caller would be charged twice. So
// GrantOnce returns only when the outcome of the request is known, or when the store does not
// answer at all. It calls late when a request's patience is over.
func (s *Service) GrantOnce(ctx context.Context, req wire.LeaseRequest, late func()) (wire.LeaseReply, error) {
	if !asksForNothing(req.Items) { // A look charges nothing, so it may be repeated.
		ctx = gather.Outlast(ctx, func(error) { late() })
	}
	return s.Grant(ctx, req)
}

// patience returns the longest wait of a request for the store.
func (s *Service) patience() time.Duration {
	if s.config.Distance == nil {
		return Patience
	}
	return max(Patience, min(patientTrips*s.config.Distance(), s.config.MostPatience))
}

// isFar reports whether the store answers so late that no node waits for a probe of it: then all
// nodes would assume that the control plane is away.
func (s *Service) isFar() bool { return s.patience() > Patience }

// settledFailure is the time without a grant after which the store counts as failed: a short stall
// is no reason to send nodes elsewhere.
const settledFailure = 2 * time.Second

// Works returns nil if the store grants: it answered requests of nodes lately, or it answers a
// trial now. A store can answer reads and still grant nothing, for instance if its user has lost a
// right.
func (s *Service) Works(ctx context.Context) error {
	if s.config.Breakers.Closed(StoreName) || s.config.Breakers.Failing(StoreName) < settledFailure {
		return nil
	}
	_, err := s.Grant(ctx, wire.LeaseRequest{})
	if cause := s.failure.Load(); err != nil && cause != nil {
		return *cause
	}
	return err
}

// GrantFor grants like Grant, for requests that may use their tokens for span: their tokens are
// leased for that time. An item may have any number of waiting requests; the requests that do not
// fit are left out.
func (s *Service) GrantFor(
	ctx context.Context, req wire.LeaseRequest, span quota.Span,
) (wire.LeaseReply, error) {
	if _, known := s.partOf(""); !known { // The store is not asked, so it is not to blame.
		return wire.LeaseReply{}, errors.Join(ErrUnavailable, ErrPart)
	}
	if !s.config.Breakers.Allow(StoreName) {
		return wire.LeaseReply{}, ErrUnavailable
	}
	timed, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	// A caller that went away is no evidence about the store, and requests that shared one call
	// count as one request. A late answer may come at the same time as the end of the call.
	var once sync.Once
	report := func(err error) {
		once.Do(func() {
			if err == nil || ctx.Err() == nil && !gather.IsShared(err) {
				s.config.Breakers.Report(StoreName, err)
			}
		})
	}
	if late, outlasts := gather.Outlasts(ctx); outlasts {
		timed = gather.Outlast(timed, func(err error) {
			report(err)
			late(err)
		})
	}
	reply, err := s.answerRequest(timed, req, span)
	report(err)
	if err != nil {
		s.failure.Store(&err)
		return wire.LeaseReply{}, errors.Join(ErrUnavailable, err)
	}
	return reply, nil
}
