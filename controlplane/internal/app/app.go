// Package app joins the control plane's parts and runs them.
package app

import (
	"context"
	crand "crypto/rand"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/api"
	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/auth"
	"github.com/weir-proxy/weir/controlplane/internal/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/decisions"
	"github.com/weir-proxy/weir/controlplane/internal/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/controlplane/internal/localstore"
	"github.com/weir-proxy/weir/controlplane/internal/metrics"
	"github.com/weir-proxy/weir/controlplane/internal/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/controlplane/internal/push"
	"github.com/weir-proxy/weir/controlplane/internal/redisstore"
	"github.com/weir-proxy/weir/controlplane/internal/regions"
	"github.com/weir-proxy/weir/controlplane/internal/settings"
	"github.com/weir-proxy/weir/controlplane/internal/tracing"
)

// store is everything that a store must be.
type store interface {
	policies.Store
	nodes.Store
	leases.Store
	consumers.Store
	enforcement.Store
	leases.Buckets
	audit.Store
	decisions.Store
	push.Secrets
	// Region is where the control planes on this store keep what their region uses.
	Region() regions.Cell
	Close() error
}

var (
	_ store = (*localstore.Store)(nil)
	_ store = (*redisstore.Store)(nil)
)

// App is one control plane. Make one with New, then Run it; Close it in any case.
type App struct {
	log    *slog.Logger
	store  store
	hub    *push.Hub
	orders *enforcement.Service
	// regions and document are nil for a control plane that shares its quotas with no other region.
	regions  *regions.Service
	document *redisstore.Store
	tracing  *tracing.Tracing
	tokens   *auth.Ring
	metrics  *metrics.Metrics
	// watch follows the tokens file; nil without one.
	watch *auth.Watch
	// polled is when the store was last followed, in Unix nanoseconds.
	polled   atomic.Int64
	doors    []door
	stop     context.CancelFunc
	once     sync.Once
	closeErr error
}

// New opens the store and the listeners. Nothing is served before Run.
func New(s settings.Settings, version string, log *slog.Logger) (*App, error) {
	var m *metrics.Metrics // Breakers change only once something is asked of the store.
	breakers := breaker.NewGroup(time.Now, rand.Float64, func(c breaker.Change) { m.Transition(c); announce(log, c) })
	follow, err := tracing.Start(context.Background(), s.OTLPEndpoint, version, log)
	if err != nil {
		return nil, err
	}
	st, err := open(s, breakers, follow, log)
	if err != nil {
		return nil, errors.Join(err, follow.Stop(context.Background()))
	}
	stopping, stop := context.WithCancel(context.Background())
	a := &App{log: log, store: st, tracing: follow, stop: stop}
	a.polled.Store(time.Now().UnixNano())
	a.follow(s)
	sets := policies.New(st, time.Now).Observe(log, func() { m.Lost(metrics.LostPolicySet) })
	registry := nodes.New(st, time.Now)
	people := consumers.New(st, time.Now).Observe(log, func() { m.Lost(metrics.LostConsumers) })
	var candidate [16]byte
	crand.Read(candidate[:]) // It never fails.
	a.orders = enforcement.New(st, time.Now, log)
	a.hub = push.New(sets, people, a.orders, st, candidate, log).Observe(a.note)
	if err := a.join(s.Regions, sets); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	m = metrics.New(version, a.gauges(sets, registry))
	a.metrics = m
	m.Breaker(leases.StoreName, breaker.Closed)
	granting := leases.New(timed{st, m}, sets, registry, time.Now).With(st).Observe(breakers, func(u leases.Use) {
		m.Tokens(u.Policy.Name, u.Policy.Mode.String(), u.Tokens)
		m.Asked(u.Policy.Name, u.Tier, u.Granted, u.Refused)
	})
	granting.Overriding(people)
	if a.regions != nil {
		granting.In(a.regions)
	}
	recent := decisions.New(st, sets, crand.Text(), time.Now).Observe(m.Refused)
	err = a.open(s, api.Config{
		Policies: sets, Consumers: people, Enforcement: a.orders, Audit: st, Decisions: recent, Nodes: registry, Leases: granting, Hub: a.hub, Regions: a.regions,
		Tokens: a.tokens, TokenRate: s.Limits.API, NodeRate: s.Limits.Node, Tracing: follow,
		Metrics: m, Log: log, Now: time.Now, Stopping: stopping, Version: version, Unsaved: a.unsaved,
	})
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// follow makes the ring of tokens, and has the tokens file read for the first time.
func (a *App) follow(s settings.Settings) {
	a.tokens = auth.NewRing(s.Tokens, time.Now)
	if s.TokensFile != "" {
		a.watch = auth.NewWatch(s.TokensFile, a.tokens, a.log)
		a.watch.Look(time.Now())
	}
}

// saver is a store that saves what it counts now and then.
type saver interface {
	// Saved is how long ago it last did, and why the last try failed.
	Saved() (ago time.Duration, err error)
}

var _ saver = (*localstore.Store)(nil)

// unsaved says why the store cannot save what it counts, nil while it can.
func (a *App) unsaved() error {
	if s, ok := a.store.(saver); ok {
		_, err := s.Saved()
		return err
	}
	return nil
}

// note remembers when the store was last followed.
func (a *App) note(err error) {
	if err == nil {
		a.polled.Store(time.Now().UnixNano())
	}
}
