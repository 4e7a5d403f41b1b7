// Package controlplanetest is a control plane without a network, a file or a clock of its own, for
// simulations: the real services of policies and leases over a model of the store, which can fail
// on command as stores fail.
package controlplanetest

import (
	"context"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// ControlPlane has some replicas of the control plane over one store. New makes it. It is for one
// goroutine.
type ControlPlane struct {
	Store *Store
	// Consumers, if set, are the records of consumers; a replica finds them when it begins.
	Consumers *Consumers

	now      func() time.Time
	luck     func() float64
	nodes    int64
	versions *versions
	replicas []replica
}

type replica struct {
	policies *policies.Service
	leases   *leases.Service
}

// secret keys the hash of partition keys.
var secret = [16]byte{}

// New starts replicas over the store; they report that `nodes` nodes share the buckets. A replica
// leaves a store alone that does not answer: now is the wall clock for it, and luck draws its
// random part from [0, 1).
func New(store *Store, replicas int, nodes int64, now func() time.Time, luck func() float64) *ControlPlane {
	c := &ControlPlane{
		Store: store, now: now, luck: luck, nodes: nodes,
		versions: &versions{}, replicas: make([]replica, replicas),
	}
	for i := range c.replicas {
		c.Restart(i)
	}
	return c
}

// Count implements leases.Counter.
func (c *ControlPlane) Count(context.Context) int64 { return c.nodes }

// Restart begins a replica anew: it only knows the content of the store.
func (c *ControlPlane) Restart(i int) {
	p := policies.New(policies.Config{Store: c.versions, Now: c.now})
	config := leases.Config{
		Store: c.Store, Sets: p, Nodes: c, Now: c.now, Breakers: breaker.NewGroup(c.now, c.luck, nil),
	}
	if c.Consumers != nil {
		config.Overrides = c.Consumers
		c.Consumers.set = func() *policy.Set { return c.Current(0).Set }
	}
	c.replicas[i] = replica{p, leases.New(config)}
}

// Put makes a document, in JSON or YAML, the next version, at one replica; other replicas learn of
// it when they must. It returns the snapshot for the nodes, and the policy set in it.
func (c *ControlPlane) Put(i int, document []byte) (snapshot []byte, set *policy.Set, err error) {
	return c.PutPartly(i, document, policies.Everyone)
}

// Current is the policy set in force at the i-th replica.
func (c *ControlPlane) Current(i int) *policies.Compiled {
	current, _ := c.replicas[i].policies.Current()
	return current
}

// PutPartly is Put for a share of the nodes, in percent.
func (c *ControlPlane) PutPartly(i int, document []byte, percent int) (snapshot []byte, set *policy.Set, err error) {
	change := policies.Change{Any: true, Document: document, Format: policydoc.Sniff(document), Nodes: percent}
	out, err := c.replicas[i].policies.Put(context.Background(), change)
	if err != nil {
		return nil, nil, err
	}
	return wire.AppendSnapshot(nil, wire.Snapshot{Version: out.Version, Secret: secret, Set: out.Set}), out.Set, nil
}

// Roll gives the version that is rolled out to a share of the nodes: to all of them, which ends the
// rollout, or to none, which takes it back.
func (c *ControlPlane) Roll(i, percent int) error {
	_, err := c.replicas[i].policies.Roll(context.Background(), policies.RollChange{Any: true, Nodes: percent})
	return err
}

// Snapshot returns the version that a node ought to have.
func (c *ControlPlane) Snapshot(i int, node string) (snapshot []byte, draft bool) {
	_, _ = c.replicas[i].policies.Refresh(context.Background())
	active, _ := c.replicas[i].policies.Active()
	v := active.For(node)
	snapshot = wire.AppendSnapshot(nil, wire.Snapshot{Version: v.Version.Number, Secret: secret, Set: v.Set})
	return snapshot, v == active.Draft
}

// Lease answers a lease request with an HTTP status and a body, as the API of a replica does.
func (c *ControlPlane) Lease(i int, body []byte) (status int, reply []byte) {
	request, err := wire.DecodeLeaseRequest(body)
	if err != nil {
		return 400, nil
	}
	r, err := c.replicas[i].leases.Grant(context.Background(), request)
	if err != nil {
		return 503, nil
	}
	return 200, wire.AppendLeaseReply(nil, r)
}

// Grant answers a lease request of a caller that runs in the first replica.
func (c *ControlPlane) Grant(ctx context.Context, req wire.LeaseRequest) (wire.LeaseReply, error) {
	return c.replicas[0].leases.Grant(ctx, req)
}

// GrantFor answers a lease request of a caller that runs in a replica, and may use its tokens
// for as long as span.
func (c *ControlPlane) GrantFor(i int, req wire.LeaseRequest, span quota.Span) (wire.LeaseReply, error) {
	return c.replicas[i].leases.GrantFor(context.Background(), req, span)
}

// versions are the stored versions, which no failure loses.
type versions struct {
	all   []policies.Version
	state policies.State
}

// State implements policies.Store.
func (v *versions) State(context.Context) (policies.State, error) { return v.state, nil }

// Roll implements policies.Store.
func (v *versions) Roll(_ context.Context, step policies.Step) error {
	if step.From.Current != v.state.Current || step.From.Revision != v.state.Revision {
		return errs.Conflict
	}
	for _, one := range step.Versions {
		if one.Document == nil {
			one.Document = v.all[one.Number-1].Document
			v.all[one.Number-1] = one
			continue
		}
		v.all = append(v.all, one)
	}
	v.state = step.To
	if r := v.state.Rollout; r != nil {
		v.state.DraftDigest = v.all[r.Version-1].Digest
	}
	return nil
}

// Load implements policies.Store.
func (v *versions) Load(_ context.Context, number uint64) (policies.Version, error) {
	if number == 0 || number > uint64(len(v.all)) {
		return policies.Version{}, policies.ErrNotFound
	}
	return v.all[number-1], nil
}

// Append implements policies.Store.
func (v *versions) Append(_ context.Context, expected uint64, next policies.Version, _ audit.Entry) error {
	if expected != v.state.Current || v.state.Rollout != nil || next.Number != uint64(len(v.all))+1 {
		return errs.Conflict
	}
	v.all = append(v.all, next)
	v.state.Current, v.state.Newest, v.state.Digest = next.Number, next.Number, next.Digest
	return nil
}

// List implements policies.Store.
func (v *versions) List(_ context.Context, before uint64, limit int) (list []policies.Version, err error) {
	for i := len(v.all) - 1; i >= 0 && len(list) < limit; i-- {
		if before == 0 || v.all[i].Number < before {
			list = append(list, v.all[i])
		}
	}
	return list, nil
}
