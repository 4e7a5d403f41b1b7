// Package leases answers what nodes ask of buckets: it turns the items of a request into asks under the current policy set and
// has the store grant them.
package leases

import (
	"context"
	"errors"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// patience is how long a request may wait for the store: the node gives up after lease.Deadline, and a grant that comes too
// late is lost.
const patience = 40 * time.Millisecond

// ErrUnavailable: the store does not answer, or has not answered lately; nothing was granted.
var ErrUnavailable = errors.New("the store of the counters does not answer")

// Item is one bucket and what is asked of it.
type Item struct {
	Bucket [16]byte
	Ask    lease.Ask
}

// Store keeps the ledgers.
type Store interface {
	// Grant answers each item in order as lease.Ledger.Grant does, at the store's own time. A bucket may occur more than
	// once. On an error some items may have been charged: too little is admitted then, never too much.
	Grant(ctx context.Context, items []Item) ([]lease.Grant, error)
}

// Sets tells what policy sets mean. *policies.Service is one.
type Sets interface {
	Current() (*policies.Compiled, <-chan struct{})
	At(ctx context.Context, number uint64) (*policies.Compiled, error)
	Refresh(ctx context.Context) (*policies.Compiled, error)
}

// Counter tells how many nodes share the buckets. *nodes.Registry is one.
type Counter interface {
	Count(ctx context.Context) int64
}

// Service grants leases. Make one with New. It is safe for concurrent use.
type Service struct {
	store   Store
	sets    Sets
	nodes   Counter
	now     func() time.Time
	breaker breaker
}

// New makes a Service; now is the clock by which a store that does not answer is left alone for a while.
func New(store Store, sets Sets, nodes Counter, now func() time.Time) *Service {
	return &Service{store: store, sets: sets, nodes: nodes, now: now}
}

// Grant answers a request. The error is ErrUnavailable (wrapped) or the context's.
func (s *Service) Grant(ctx context.Context, req wire.LeaseRequest) (wire.LeaseReply, error) {
	if !s.breaker.allow(s.now()) {
		return wire.LeaseReply{}, ErrUnavailable
	}
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	reply, err := s.grant(timed, req)
	if err == nil || ctx.Err() == nil { // A caller that went away says nothing about the store.
		s.breaker.report(s.now(), err == nil)
	}
	if err != nil {
		return wire.LeaseReply{}, errors.Join(ErrUnavailable, err)
	}
	return reply, nil
}

func (s *Service) grant(ctx context.Context, req wire.LeaseRequest) (wire.LeaseReply, error) {
	reply := wire.LeaseReply{Seq: req.Seq, Nodes: s.nodes.Count(ctx), Items: make([]wire.LeaseAnswer, len(req.Items))}
	for i := range reply.Items {
		reply.Items[i].State = wire.ItemUnknown
	}
	current, _ := s.sets.Current()
	if current == nil || req.Version > current.Version.Number {
		var err error
		if current, err = s.refresh(ctx); err != nil {
			return reply, err
		}
	}
	meant, err := s.meant(ctx, current, req.Version)
	if err != nil || meant == nil {
		return reply, err
	}
	open := make([]int, len(req.Items))
	for i := range open {
		open[i] = i
	}
	if open, err = s.pass(ctx, req, meant, current, open, reply); err != nil || len(open) == 0 {
		return reply, err
	}
	// Another replica has granted under a newer version already.
	if current, err = s.refresh(ctx); err != nil || current == nil {
		return reply, err
	}
	_, err = s.pass(ctx, req, meant, current, open, reply)
	return reply, err
}

// refresh returns the newest version that this build can read, nil if there is none.
func (s *Service) refresh(ctx context.Context) (*policies.Compiled, error) {
	current, err := s.sets.Refresh(ctx)
	if errors.Is(err, policies.ErrUnreadable) {
		current, _ = s.sets.Current()
		return current, nil
	}
	return current, err
}

// meant is the policy set that the request's indexes refer to, nil if it is not known.
func (s *Service) meant(ctx context.Context, current *policies.Compiled, number uint64) (*policies.Compiled, error) {
	if current == nil || number == 0 {
		return nil, nil
	}
	if number == current.Version.Number {
		return current, nil
	}
	meant, err := s.sets.At(ctx, number)
	if errors.Is(err, policies.ErrNotFound) || errors.Is(err, policies.ErrUnreadable) {
		return nil, nil
	}
	return meant, err
}

// pass has the store grant the open items under the current set, fills in the answers and returns the items for which the
// current set was too old.
func (s *Service) pass(ctx context.Context, req wire.LeaseRequest, meant, current *policies.Compiled, open []int, reply wire.LeaseReply) ([]int, error) {
	var items []Item
	var index []int
	for _, i := range open {
		if a, ok := ask(req.Items[i], meant, current, reply.Nodes); ok {
			items = append(items, Item{req.Items[i].Bucket, a})
			index = append(index, i)
		}
	}
	if len(items) == 0 {
		return nil, nil
	}
	grants, err := s.store.Grant(ctx, items)
	if err != nil {
		return nil, err
	}
	var stale []int
	for k, g := range grants {
		if g.Stale {
			stale = append(stale, index[k])
			continue
		}
		reply.Items[index[k]] = wire.LeaseAnswer{
			State: wire.ItemGranted, Waiting: g.Waiting, Keep: g.Keep, NotBefore: g.NotBefore, Level: g.Level,
		}
	}
	return stale, nil
}

// ask is what an item asks for under the current figures, whatever the node believes them to be. It reports false for a limit
// that is not known, or none that the centre grants.
func ask(it wire.LeaseItem, meant, current *policies.Compiled, nodes int64) (lease.Ask, bool) {
	p, limit, ok := meant.Resolve(it.Limit, current)
	if !ok || p.Mode == policy.ModeLocal {
		return lease.Ask{}, false
	}
	a := lease.Ask{
		Params: limit.Params, Version: current.Version.Number, Waiting: it.Waiting, Cost: it.Cost, Deadline: lease.Deadline,
		Keep: min(it.Keep, limit.Params.Burst), Nodes: nodes,
	}
	if p.Mode == policy.ModeStrict {
		a.Keep = 0 // No token idles on a node.
	}
	return a, true
}

// LostFill is the share of its burst, in percent, with which a bucket starts whose state the store has lost.
const LostFill = 50

// Doubtful is how long after a store has lost its state an absent bucket may be one that was in use: the time in which any
// ledger of these figures becomes forgettable.
func Doubtful(p quota.Params) quota.Span { return p.Window() + 2*lease.TTL(p) + 2*lease.Deadline }
