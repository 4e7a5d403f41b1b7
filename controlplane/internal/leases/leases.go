// Package leases answers what nodes ask of buckets: it turns the items of a request into asks under the current policy set and
// has the store grant them.
package leases

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// patience is how long a request may wait for the store: the node gives up after lease.Deadline, and a grant that comes too
// late is lost.
const patience = 40 * time.Millisecond

// maxDelay is the longest delay of a request that an answer can tell of.
const maxDelay = quota.Hour

// ErrUnavailable: the store does not answer, or has not answered lately; nothing was granted.
var ErrUnavailable = errors.New("the store of the counters does not answer")

// Item is one bucket and what is asked of it.
type Item struct {
	Bucket keyhash.Key
	Ask    lease.Ask
	// Joined: this item and the next belong to one group, see Store.
	Joined bool
	// Twin, if not nil, is the other ledger of the bucket, with its figures and their version: it is charged for what this item is
	// granted. Draft says that this item's own ledger is that of a draft. See lease.Twins.
	Twin  *lease.Ask
	Draft bool
}

// Groups numbers the groups of joined items: the number of each item's group. An item that is joined with none is a group alone.
func Groups(items []Item) []int {
	groups := make([]int, len(items))
	for i := 1; i < len(items); i++ {
		groups[i] = groups[i-1]
		if !items[i-1].Joined {
			groups[i]++
		}
	}
	return groups
}

// Store keeps the ledgers.
type Store interface {
	// Grant answers each item in order as lease.Ledger.Grant does, or lease.WindowLedger.Grant if the ask has Windows, at the
	// store's own time. A bucket may occur more than once. On an error some items may have been charged: too little is admitted
	// then, never too much.
	//
	// Of a group of joined items, which has no bucket twice, all waiting requests get their cost or none does; then nothing is
	// granted, and NotBefore is 0 where the bucket had it all.
	//
	// A *Partial error is of some items alone: the others were answered.
	Grant(ctx context.Context, items []Item) ([]lease.Grant, error)
}

// Partial is the error of a Grant that answered some items only. What keeps the others does not answer; their groups were granted all
// or none without them.
type Partial struct {
	// Away is by item for how long what keeps it has not answered; 0 for an item that was answered.
	Away []time.Duration
	// Cause is one of the failures.
	Cause error
}

// Error says what failed.
func (p *Partial) Error() string { return "a part of the store does not answer: " + p.Cause.Error() }

// Unwrap is the cause.
func (p *Partial) Unwrap() error { return p.Cause }

// Sets tells what policy sets mean. *policies.Service is one.
type Sets interface {
	InForce() (policies.Force, <-chan struct{})
	At(ctx context.Context, number uint64) (*policies.Compiled, error)
	Refresh(ctx context.Context) (*policies.Compiled, error)
}

// Counter tells how many nodes share the buckets. *nodes.Registry is one.
type Counter interface {
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
	// Breakers hold the breaker of the store, StoreName; nil for a group of the service's own.
	Breakers *breaker.Group
	// Meter, if not nil, is called for each item that was answered.
	Meter func(Use)
}

// Service grants leases. Make one with New. It is safe for concurrent use.
type Service struct{ config Config }

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
	return &Service{c}
}

// Use is what became of one item.
type Use struct {
	Policy *policy.Policy
	// Tier is the one whose limit it is; empty if the limit is everybody's.
	Tier string
	// Tokens were granted, or of an optimistic policy reported to have been used.
	Tokens int64
	// Granted and Refused are requests that waited for this answer.
	Granted, Refused int64
}

// Grant answers a request. The error is ErrUnavailable (wrapped) or the context's.
func (s *Service) Grant(ctx context.Context, req wire.LeaseRequest) (wire.LeaseReply, error) {
	if !s.config.Breakers.Allow(StoreName) {
		return wire.LeaseReply{}, ErrUnavailable
	}
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	reply, err := s.grant(timed, req)
	if err == nil || ctx.Err() == nil { // A caller that went away says nothing about the store.
		s.config.Breakers.Report(StoreName, err)
	}
	if err != nil {
		return wire.LeaseReply{}, errors.Join(ErrUnavailable, err)
	}
	return reply, nil
}

func (s *Service) grant(ctx context.Context, req wire.LeaseRequest) (wire.LeaseReply, error) {
	nodes := s.count(ctx)
	reply := wire.LeaseReply{Seq: req.Seq, Nodes: s.allNodes(nodes), Items: make([]wire.LeaseAnswer, len(req.Items))}
	if _, known := s.part(""); !known {
		return reply, errPart
	}
	for i := range reply.Items {
		reply.Items[i].State = wire.ItemUnknown
	}
	force, _ := s.config.Sets.InForce()
	if force.Now == nil || req.Version > force.Newest {
		var err error
		if force, err = s.refresh(ctx); err != nil {
			return reply, err
		}
	}
	meant, err := s.meant(ctx, force, req.Version)
	if err != nil || meant == nil {
		return reply, err
	}
	open := make([]int, len(req.Items))
	for i := range open {
		open[i] = i
	}
	people, away, err := s.know(ctx, req.Items)
	if err != nil {
		return reply, err
	}
	by := newTerms(meant, force, nodes, people)
	by.away = away
	if open, err = s.pass(ctx, req, by, open, reply); err != nil || len(open) == 0 {
		return reply, err
	}
	return reply, s.again(ctx, req, by, open, reply)
}

// again answers open items for which another replica has granted under a newer version already. If that cannot be had they are
// unavailable, and the other answers still count.
func (s *Service) again(ctx context.Context, req wire.LeaseRequest, by terms, open []int, reply wire.LeaseReply) error {
	force, err := s.refresh(ctx)
	if err == nil && force.Now == nil {
		return nil
	}
	if err == nil {
		err = errors.Join(s.refreshPart(ctx), s.refreshPeople(ctx))
	}
	people, away := by.people, time.Duration(0)
	if err == nil {
		people, away, err = s.know(ctx, req.Items)
	}
	if err != nil {
		for _, i := range open {
			reply.Items[i] = unavailable(0)
		}
		return nil
	}
	by = newTerms(by.meant, force, by.nodes, people)
	by.away, by.late = away, true
	_, err = s.pass(ctx, req, by, open, reply)
	return err
}

// count is the number of nodes. It is kept by one part of the store, which may be away while others answer.
func (s *Service) count(ctx context.Context) int64 {
	ctx, cancel := context.WithTimeout(ctx, patience/4)
	defer cancel()
	return s.config.Nodes.Count(ctx)
}

// pass has the store grant the open items under the current set, fills in the answers and returns the items for which the
// current set was too old, with the groups they belong to.
func (s *Service) pass(ctx context.Context, req wire.LeaseRequest, by terms, open []int, reply wire.LeaseReply) ([]int, error) {
	items, index := s.asks(req, by, open, reply)
	if len(items) == 0 {
		return nil, nil
	}
	grants, err := s.config.Store.Grant(ctx, items)
	var partial *Partial
	if err != nil && !errors.As(err, &partial) {
		return nil, err
	}
	groups := Groups(items)
	stale := map[int]bool{}
	for k, g := range grants {
		if partial != nil && partial.Away[k] > 0 {
			reply.Items[index[k]] = unavailable(partial.Away[k])
			continue
		}
		if g.Stale {
			stale[groups[k]] = true
			continue
		}
		reply.Items[index[k]] = wire.LeaseAnswer{
			State: wire.ItemGranted, Waiting: g.Waiting, Keep: g.Keep, NotBefore: g.NotBefore, Level: g.Level,
			Delay: min(g.Delay, maxDelay), FullAfter: g.FullAfter, Debt: s.wholeDebt(req.Items[index[k]], by, g.Debt),
		}
		s.measure(req.Items[index[k]], by, g)
	}
	var again []int
	for k, i := range index {
		if stale[groups[k]] {
			again = append(again, i)
		}
	}
	return again, nil
}

// measure tells of the tokens of an item that was answered.
func (s *Service) measure(it wire.LeaseItem, by terms, g lease.Grant) {
	if p, _, _, ok := s.resolve(it, by, by.current); ok {
		s.config.Meter(Use{
			Policy: p, Tier: by.meant.TierOf(it.Limit), Tokens: g.Waiting*it.Cost + g.Keep + it.Used,
			Granted: g.Waiting, Refused: it.Waiting - g.Waiting,
		})
		if s.config.Regions != nil {
			s.config.Regions.Want(p.Name, it.Waiting*it.Cost+it.Keep+it.Used)
		}
	}
}

// asks are the open items as the store is asked for them, and the place of each in the request; the open answers are unknown
// until the store has spoken. Of a group with an item that is not known the store is asked nothing, and its other items get
// nothing: they belong to one request. Items whose consumer cannot be looked up are left out, as the store leaves out what a part of
// it keeps that is away. Open items are whole groups.
func (s *Service) asks(req wire.LeaseRequest, by terms, open []int, reply wire.LeaseReply) (items []Item, index []int) {
	first, whole := 0, true
	for _, i := range open {
		it := req.Items[i]
		made, ok := s.item(it, by)
		for _, other := range items[first:] {
			ok = ok && other.Bucket != it.Bucket // A group that has a bucket twice is none that a node would send.
		}
		reply.Items[i] = wire.LeaseAnswer{State: wire.ItemUnknown}
		away := it.Place > 0 && by.away > 0
		switch {
		case away:
			reply.Items[i] = unavailable(by.away)
		case ok:
			items, index = append(items, made), append(index, i)
		}
		if whole = whole && (ok || away); it.Joined {
			continue
		}
		if len(items) > first {
			items[len(items)-1].Joined = false // The next one of its group may have been left out.
		}
		if !whole {
			for _, known := range index[first:] {
				reply.Items[known] = wire.LeaseAnswer{State: wire.ItemGranted}
			}
			items, index = items[:first], index[:first]
		}
		first, whole = len(items), true
	}
	return items, index
}

// item is what an item asks of the store, whatever the node believes the figures to be. It reports false for a limit that is not
// known, or none that the centre grants.
func (s *Service) item(it wire.LeaseItem, by terms) (Item, bool) {
	p, whole, turn, ok := s.resolve(it, by, by.current)
	if !ok || p.Mode == policy.ModeLocal || (p.Mode == policy.ModeOptimistic) != (it.Used > 0) || it.Joined && it.Used > 0 {
		return Item{}, false
	}
	made := Item{Bucket: it.Bucket, Joined: it.Joined, Ask: s.ask(it, by, p, whole, turn)}
	if by.other == nil {
		return made, true
	}
	other, counterpart, otherTurn, ok := s.resolve(it, by, by.other)
	if !ok || other.Mode == policy.ModeLocal || counterpart.Algorithm.Windowed() != whole.Algorithm.Windowed() {
		return made, true
	}
	twin := s.figuresOf(it, other.Name, counterpart, by.other.Version.Number, otherTurn)
	if twin.Params == made.Ask.Params && twin.Windows == made.Ask.Windows { // One ledger for both, which no epoch makes stale.
		made.Ask.Version = min(made.Ask.Version, twin.Version)
		return made, true
	}
	made.Twin, made.Draft = &twin, by.current.Version.Number != by.main
	return made, true
}

// figuresOf are a limit's figures, as of a version and a turn, as far as this region may grant it.
func (s *Service) figuresOf(it wire.LeaseItem, name string, whole policy.Limit, version, turn uint64) lease.Ask {
	part, _ := s.part(name)
	limit := part.Of(whole)
	a := lease.Ask{Params: limit.Params, Windows: limit.WindowsOf(it.Bucket), Version: figures(version, part.Epoch) + turn}
	if limit.Params != whole.Params {
		a.Hold = lease.TTL(whole.Params)
	}
	return a
}

// ask is what an item asks for under the current figures.
func (s *Service) ask(it wire.LeaseItem, by terms, p *policy.Policy, whole policy.Limit, turn uint64) lease.Ask {
	a := s.figuresOf(it, p.Name, whole, by.current.Version.Number, turn)
	a.Waiting, a.Cost, a.Deadline, a.Keep, a.Nodes = it.Waiting, it.Cost, lease.Deadline, min(it.Keep, a.Params.Burst), by.nodes
	if p.Mode == policy.ModeOptimistic {
		a.Waiting, a.Keep, a.Used = 0, 0, it.Used
	}
	if p.Mode == policy.ModeStrict {
		a.Keep = 0 // No token idles on a node.
	}
	if whole.Algorithm == quota.LeakyBucket {
		// Turns are an exact rate from when they are given out; tokens taken to be leased until the deadline would make the queue
		// look longer than it is, and delay requests that nothing is before.
		a.Deadline = 0
	}
	return a
}
