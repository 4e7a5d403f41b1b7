// Package leases grants leases: it resolves the items of a node's request under the policy set in
// force, asks the store for their tokens, and turns the grants into answers.
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

// Patience is how long a request may wait for a store that is near: the node's requests wait for
// lease.Deadline.
const Patience = 40 * time.Millisecond

// patientTrips is for how many times the way to the store and back a request waits for one that is
// far. Its answer comes too late for the requests that waited, but says what is left, and what the
// node's share has let through is charged: without it the node would know nothing.
const patientTrips = 3

// maxDelay is the longest delay of a request that an answer can carry.
const maxDelay = quota.Hour

// ErrUnavailable: the store does not answer, or has not answered lately; nothing was granted.
var ErrUnavailable = errs.New(errs.StoreUnavailable, "the store of the counters does not answer", "")

// Item is one bucket and what is asked of it.
type Item struct {
	Bucket keyhash.Key
	Kind   wire.ItemKind
	// Ask counts unless the item is a claim. Settlements and returns have its figures alone.
	Ask lease.Ask
	// Claim, Settles and Returns count for items of their kinds. The claim's Doubt is the store's
	// to say.
	Claim   inflight.Claim
	Settles Settlement
	Returns Return
	// Group, if not 0, is what the item has in common with the others of its group, which stand
	// next to each other. See Store.
	Group int
	// Twin, if not nil, is the ask for the bucket's other ledger, while a rollout counts it under
	// two versions: that ledger is charged for what this item is granted. See lease.Twins.
	Twin *lease.Ask
	// Draft: this item's own ledger is that of the draft.
	Draft bool
}

// Leading returns how many of the first items are one group. An item without a group is one alone.
func Leading(items []Item) int {
	n := 1
	for items[0].Group != 0 && n < len(items) && items[n].Group == items[0].Group {
		n++
	}
	return n
}

// Store keeps the ledgers.
type Store interface {
	// Grant answers each item in order as lease.Ledger.Grant does, or lease.WindowLedger.Grant if
	// the ask has Windows, at the store's own time. A bucket may occur more than once. After an
	// error some items may have been charged: then too little is admitted, never too much.
	//
	// The items of a group, which are asks and have no bucket twice, are granted together: all
	// waiting requests get their cost or none does. If none does, nothing is granted, and NotBefore
	// is 0 where the bucket had enough.
	//
	// A *Partial error concerns some items alone: the others were answered.
	Grant(ctx context.Context, items []Item) ([]lease.Grant, error)
}

// Partial is the error of a Grant that answered some items only, since a part of the store does not
// answer. Their groups were granted all or none without the other items.
type Partial struct {
	// Away is how long the part that keeps each item has not answered; 0 for an item that was
	// answered.
	Away []time.Duration
	// Cause is one of the failures.
	Cause error
}

// Error returns what failed.
func (p *Partial) Error() string { return "a part of the store does not answer: " + p.Cause.Error() }

// Unwrap returns the cause.
func (p *Partial) Unwrap() error { return p.Cause }

// Sets are the versions of the policy set. *policies.Service implements it.
type Sets interface {
	Active() (policies.Active, <-chan struct{})
	At(ctx context.Context, number uint64) (*policies.Compiled, error)
	Refresh(ctx context.Context) (*policies.Compiled, error)
}

// Counter counts the nodes that share the buckets. *nodes.Registry implements it.
type Counter interface {
	// Count may ask a part of the store that is away while others answer, so it may take only a
	// part of a request's patience.
	Count(ctx context.Context) int64
}

// Config is what a Service stands on. Fields must be set unless they say otherwise.
type Config struct {
	Store Store
	Sets  Sets
	Nodes Counter
	// Now is the clock by which overrides end.
	Now func() time.Time
	// Buckets is where Adjust looks and changes; it may be nil where Adjust is never called.
	Buckets Buckets
	// Overrides are the consumers' own limits; nil where consumers have none.
	Overrides Overrides
	// Regions is nil for a control plane that shares its quotas with no other region.
	Regions Regions
	// Distance is how long the store takes to answer; nil for one that is near. MostPatience bounds
	// how long a request waits for a store that is far; 0 is Patience.
	Distance     func() time.Duration
	MostPatience time.Duration
	// Breakers hold the breaker of the store, StoreName; nil for a group of the service's own.
	Breakers *breaker.Group
	// Meter, if not nil, is called for each item that was answered.
	Meter func(Use)
}

// Service grants leases. Make one with New. It is safe for concurrent use.
type Service struct {
	config Config
	// failure is how the store failed last.
	failure atomic.Pointer[error]
}

// StoreName is the name of the breaker of the store as a whole.
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
	// Tier is the tier whose limit it is; empty for a limit of all tiers.
	Tier string
	// Tokens were granted, or reported as used under an optimistic policy.
	Tokens int64
	// Returned are tokens that were granted before and were not used.
	Returned int64
	// Bucket is whose they are, and Window that of its limit.
	Bucket keyhash.Key
	Window quota.Span
	// Granted and Refused are requests that waited for this answer.
	Granted, Refused int64
}

// Grant answers a request. The error is ErrUnavailable (wrapped) or the context's.
func (s *Service) Grant(ctx context.Context, req wire.LeaseRequest) (wire.LeaseReply, error) {
	return s.GrantFor(ctx, req, lease.Deadline)
}

// GrantOnce is Grant for a caller that asks again unless it is answered: that would be charged
// twice if the store executes the first request after a request's patience. So it returns only when
// it is known what has become of the request, or the store does not answer at all. It calls late
// once a request's patience is over.
func (s *Service) GrantOnce(ctx context.Context, req wire.LeaseRequest, late func()) (wire.LeaseReply, error) {
	if !asksForNothing(req.Items) { // Nothing is charged twice by a look.
		ctx = gather.Outlast(ctx, func(error) { late() })
	}
	return s.Grant(ctx, req)
}

// patience is how long a request waits for the store.
func (s *Service) patience() time.Duration {
	if s.config.Distance == nil {
		return Patience
	}
	return max(Patience, min(patientTrips*s.config.Distance(), s.config.MostPatience))
}

// far reports whether the store answers, but so late that no node would wait for the answer to a
// trial of it, and all would take the control plane to be away.
func (s *Service) far() bool { return s.patience() > Patience }

// settledFailure is how long the store must have granted nothing until that counts: a short stall
// is no reason to send nodes elsewhere.
const settledFailure = 2 * time.Second

// Works is nil if the store grants: requests of nodes were answered lately, or a trial is now. A
// store can be followed and yet grant nothing, as one whose user has lost a right.
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

// GrantFor is Grant for requests that may use their tokens for as long as span: that long they
// count as leased. An item may have as many waiting requests as it likes; those that do not fit are
// left out.
func (s *Service) GrantFor(
	ctx context.Context, req wire.LeaseRequest, span quota.Span,
) (wire.LeaseReply, error) {
	if _, known := s.part(""); !known { // The store is not asked, and so not to blame.
		return wire.LeaseReply{}, errors.Join(ErrUnavailable, ErrPart)
	}
	if !s.config.Breakers.Allow(StoreName) {
		return wire.LeaseReply{}, ErrUnavailable
	}
	timed, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	// A caller that went away is no evidence about the store, and many that shared one call are no
	// more than one. A late answer may come at the same time as the end of the call.
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
