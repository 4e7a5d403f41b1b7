// Package app joins the control plane's parts and runs them.
package app

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/api"
	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/decisions"
	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/controlplane/internal/localstore"
	"github.com/weir-proxy/weir/controlplane/internal/metrics"
	"github.com/weir-proxy/weir/controlplane/internal/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/controlplane/internal/push"
	"github.com/weir-proxy/weir/controlplane/internal/redisstore"
	"github.com/weir-proxy/weir/controlplane/internal/regions"
	"github.com/weir-proxy/weir/controlplane/internal/settings"
	"github.com/weir-proxy/weir/shared/policy"
)

// store is everything that a store must be.
type store interface {
	policies.Store
	nodes.Store
	leases.Store
	consumers.Store
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

// Time-outs of the server. A client that is slower is cut off; the long poll extends its own.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 15 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 90 * time.Second // longer than proxies keep theirs, so that they close first
	maxHeader     = 32 << 10
	// drainTime is how long requests in flight have at shutdown.
	drainTime = 10 * time.Second
)

// App is one control plane. Make one with New, then Run it; Close it in any case.
type App struct {
	log   *slog.Logger
	store store
	hub   *push.Hub
	// regions and document are nil for a control plane that shares its quotas with no other region.
	regions  *regions.Service
	document *redisstore.Store
	listener net.Listener
	server   *http.Server
	stop     context.CancelFunc

	once     sync.Once
	closeErr error
}

// New opens the store and the listener. Nothing is served before Run.
func New(s settings.Settings, version string, log *slog.Logger) (*App, error) {
	var m *metrics.Metrics // Breakers change only once something is asked of the store.
	breakers := breaker.NewGroup(time.Now, rand.Float64, func(c breaker.Change) { m.Transition(c); announce(log, c) })
	st, err := open(s, breakers, log)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	a := &App{log: log, store: st, listener: listener}
	stopping, stop := context.WithCancel(context.Background())
	a.stop = stop

	sets := policies.New(st, time.Now)
	registry, people := nodes.New(st, time.Now), consumers.New(st, time.Now)
	var candidate [16]byte
	crand.Read(candidate[:]) // It never fails.
	a.hub = push.New(sets, people, st, candidate, log)
	if err := a.join(s.Regions, sets); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	m = metrics.New(version, a.gauges(sets, registry))
	m.Breaker(leases.StoreName, breaker.Closed)
	granting := leases.New(timed{st, m}, sets, registry, time.Now).Observe(breakers, func(p *policy.Policy, tokens int64) {
		m.Tokens(p.Name, p.Mode.String(), tokens)
	})
	granting.Overriding(people)
	if a.regions != nil {
		granting.In(a.regions)
	}
	recent := decisions.New(st, sets, crand.Text(), time.Now)
	handler, err := api.New(api.Config{
		Policies: sets, Consumers: people, Audit: st, Decisions: recent, Nodes: registry, Leases: granting, Hub: a.hub, Regions: a.regions,
		Tokens: s.Tokens, Metrics: m, Log: log, Now: time.Now, Stopping: stopping, Version: version,
	})
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	a.server = &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return a, nil
}

func (a *App) gauges(sets *policies.Service, registry *nodes.Registry) metrics.Gauges {
	return metrics.Gauges{
		Nodes: func() float64 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			return float64(registry.Count(ctx))
		},
		Version: func() float64 {
			if current, _ := sets.Current(); current != nil {
				return float64(current.Version.Number)
			}
			return 0
		},
		Census: func() metrics.Census {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			c := metrics.Census{Versions: map[uint64]int{}, States: map[string]int{}}
			for _, n := range registry.Active(ctx) {
				c.Versions[n.Applied]++
				c.States[cmp.Or(n.State, policy.StepGround.String())]++
			}
			return c
		},
		Ready: func() float64 {
			if a.hub.Ready() != nil {
				return 0
			}
			return 1
		},
		Regions: func() float64 {
			if a.regions != nil {
				if view := a.regions.View(); view.Trouble != "" || view.Age < 0 {
					return 0
				}
			}
			return 1
		},
	}
}

// Addr is where the control plane listens.
func (a *App) Addr() net.Addr { return a.listener.Addr() }

// Run serves until ctx ends, then lets requests in flight finish, answers long polls, saves and closes everything. It returns
// nil after an orderly end.
func (a *App) Run(ctx context.Context) error {
	var followers sync.WaitGroup
	following, stopFollowing := context.WithCancel(context.Background())
	followers.Go(func() { a.hub.Run(following) })
	if a.regions != nil {
		followers.Go(func() { a.regions.Run(following) })
	}
	failed := make(chan error, 1)
	go func() { failed <- a.server.Serve(a.listener) }()
	a.log.Info("listening", "address", a.Addr().String())

	var err error
	select {
	case <-ctx.Done():
		a.log.Info("shutting down")
		a.stop()
		draining, cancel := context.WithTimeout(context.Background(), drainTime)
		err = a.server.Shutdown(draining)
		cancel()
	case err = <-failed:
	}
	stopFollowing()
	followers.Wait()
	return errors.Join(err, a.Close())
}

// Close ends what Run did not and closes the store. It may be called more than once.
func (a *App) Close() error {
	a.once.Do(func() {
		a.stop()
		err := a.server.Close()
		if e := a.listener.Close(); e != nil && !errors.Is(e, net.ErrClosed) {
			err = errors.Join(err, e)
		}
		if a.document != nil {
			err = errors.Join(err, a.document.Close())
		}
		a.closeErr = errors.Join(err, a.store.Close())
	})
	return a.closeErr
}
