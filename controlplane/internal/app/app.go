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

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/access/certs"
	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/push"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/rollouts"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/grant/regions"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/ground/every"
	"github.com/weir-proxy/weir/controlplane/internal/ground/storetime"
	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
	"github.com/weir-proxy/weir/controlplane/internal/observe/metrics"
	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/observe/tracing"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policyfiles"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/controlplane/internal/store"
	"github.com/weir-proxy/weir/controlplane/internal/store/localstore"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
)

// heapRoom is the least size of new memory, in bytes, at which the garbage collector runs.
const heapRoom = 32 << 20

// App is a control plane. New makes it. Run it, and Close it in any case.
type App struct {
	// room is never written or read, so it takes no memory. The collector runs when the new memory
	// is as large as the old memory. Without room the old memory is small, and the collector would
	// run many times a second.
	room        []byte
	log         *slog.Logger
	store       store.Store
	hub         *push.Hub
	penalties   *penalties.Service
	enforcement *enforcement.Service
	// regions and document are nil for a control plane that shares its quotas with no other region.
	regions  *regions.Service
	document *redisstore.Store
	tracing  *tracing.Tracing
	tokens   *auth.Ring
	metrics  *metrics.Metrics
	// watch follows the tokens file; nil without a file.
	watch *auth.Watch
	// files puts the policy set of files into force; nil if requests change the policy set.
	files     *policyfiles.Watch
	neighbour neighbour
	// clock is the store's clock. Everything that expires uses it.
	clock *storetime.Clock
	// polled is the time when the store was last followed, in Unix nanoseconds.
	polled    atomic.Int64
	listeners []listener
	// calling follows the policy set for the gRPC services; nil without any.
	calling *calls.Follower
	// looks read the state of the store before the listeners serve.
	looks []func() error
	// followers run while the listeners serve.
	followers []func(context.Context)
	// drainTime is the time that requests are still served while /readyz says no. leaving ends at
	// its start.
	drainTime time.Duration
	leaving   context.Context
	leave     context.CancelFunc
	stop      context.CancelFunc
	once      sync.Once
	closeErr  error
}

// New opens the store and the listeners. Nothing is served before Run.
func New(s settings.Settings, version string, log *slog.Logger) (*App, error) {
	// The metrics, the traces and the store.
	m := metrics.New(version)
	breakers := breaker.NewGroup(time.Now, rand.Float64, func(c breaker.Change) {
		m.Transition(c)
		logBreakerChange(log, c)
	})
	traces, err := tracing.Start(context.Background(), s.OTLPEndpoint, version, log)
	if err != nil {
		return nil, err
	}
	st, err := openStore(s, breakers, traces, m, log)
	if err != nil {
		return nil, errors.Join(err, traces.Stop(context.Background()))
	}
	stopping, stop := context.WithCancel(context.Background())
	leaving, leave := context.WithCancel(stopping)
	a := &App{
		room: make([]byte, heapRoom), log: log, store: st, tracing: traces, metrics: m,
		drainTime: s.Drain, leaving: leaving, leave: leave, stop: stop,
	}
	// The services on the store.
	a.clock = storetime.New(time.Now, log)
	a.polled.Store(time.Now().UnixNano())
	a.loadTokens(s)
	config := a.newServices(s, version, stopping)
	a.regions, err = a.joinRegions(s.Regions, config.Policies)
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	config.Regions = a.regions
	config.Leases = a.newLeases(config, breakers, s.StorePatience)
	config.TokenRate, config.NodeRate, config.Proxies = s.Limits.API, s.Limits.Node, s.Limits.Proxies
	// The gauges and the listeners.
	m.Read(a.newGauges(config))
	m.Breaker(leases.StoreName, breaker.Closed)
	if err := a.openListeners(s, config); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// newServices makes the services that need only the store; granting leases needs the region as
// well.
func (a *App) newServices(s settings.Settings, version string, stopping context.Context) api.Config {
	sets := policies.New(policies.Config{
		Store: a.store, Now: a.clock.Now, Log: a.log, Files: s.PolicySet,
		Lost: func() { a.metrics.Lost(metrics.LostPolicySet) },
	})
	if s.PolicySet != "" {
		a.files = policyfiles.New(policyfiles.Config{
			Path: s.PolicySet, Nodes: s.PolicySetNodes, Removes: s.PolicySetRemoves, Sets: sets, Log: a.log,
		})
	}
	known := consumers.New(consumers.Config{
		Store: consumers.Kept{In: a.store}, Now: a.clock.Now, Log: a.log,
		Lost: func() { a.metrics.Lost(metrics.LostConsumers) },
	})
	a.penalties = penalties.New(penalties.Config{
		Store: a.store, Sets: sets, Now: a.clock.Now, Meter: a.metrics, Log: a.log,
		Lost: func() { a.metrics.Lost(metrics.LostPenalties) },
	})
	a.enforcement = enforcement.New(enforcement.Kept{In: a.store}, a.clock.Now, a.log)
	a.enforcement.OnLost(func() { a.metrics.Lost(metrics.LostEnforcement) })
	var candidate [16]byte
	crand.Read(candidate[:]) // It never fails.
	a.hub = push.New(push.Config{
		Policies: sets, Consumers: known, Penalties: a.penalties, Enforcement: a.enforcement,
		Store: a.store, Candidate: candidate, Log: a.log, Now: a.clock.Now, Clock: a.clock, Polled: a.noteFollowed,
	})
	changes := audit.NewHeld(a.store, a.clock.Now)
	a.followers = append(a.followers, changes.Run)
	replica := crand.Text()
	history := series.New(series.Config{Store: a.store, Replica: replica, Now: a.clock.Now, Log: a.log})
	a.followers = append(a.followers, history.Run, func(ctx context.Context) {
		// An authority that was removed from its file no longer counts, also if no connection comes
		// and no probe asks.
		every.Period(ctx, lookAtFiles, func(context.Context) { a.wrongFiles(s.Listeners) })
	})
	watch := rollouts.Watch{Config: rollouts.Config{
		Sets: sets, History: history, Now: a.clock.Now, Stopped: a.metrics.Stopped, Log: a.log,
	}}
	a.followers = append(a.followers, watch.Run)
	recent := decisions.New(decisions.Config{
		Store: a.store, Sets: sets, Replica: replica, Now: a.clock.Now, Meter: a.metrics.Refused, Heard: history.Heard,
	})
	return api.Config{
		Policies: sets, Consumers: known, Penalties: a.penalties, Enforcement: a.enforcement, Audit: changes,
		Decisions: recent, Series: history, Nodes: nodes.New(a.store, a.clock.Now), Hub: a.hub, Tokens: a.tokens,
		Tracing: a.tracing, Metrics: a.metrics, Log: a.log, Now: a.clock.Now, Wall: time.Now,
		Stopping: stopping, Leaving: a.leaving,
		Version: version, Unsaved: a.saveError, Clock: a.clock.Warning, Neighbour: a.neighbour.Warning,
		Distance:   a.roundTripReader(),
		Dashboard:  s.DashboardURL,
		WrongFiles: func() map[string]string { return a.wrongFiles(s.Listeners) },
	}
}

// newLeases makes the service of leases over the services that there are.
func (a *App) newLeases(on api.Config, breakers *breaker.Group, patience time.Duration) *leases.Service {
	config := leases.Config{
		Store: timed{a.store, a.metrics}, Sets: on.Policies, Nodes: on.Nodes, Now: a.clock.Now,
		Buckets: a.store, Overrides: on.Consumers, Breakers: breakers,
		Distance: on.Distance, MostPatience: patience,
		Meter: func(u leases.Use) {
			a.metrics.Tokens(u.Policy.Name, u.Policy.Mode.String(), u.Tokens)
			a.metrics.Returned(u.Policy.Name, u.Policy.Mode.String(), u.Returned)
			on.Series.Granted(u.Policy.Name, u.Tokens, u.Returned)
			on.Series.Used(u.Policy, int64(u.Window), u.Bucket, u.Tokens-u.Returned)
			a.metrics.Asked(u.Policy.Name, u.Tier, u.Granted, u.Refused)
		},
	}
	if a.regions != nil { // A nil pointer in an interface is not nil.
		config.Regions = a.regions
	}
	return leases.New(config)
}

// loadTokens makes the ring of tokens, and reads the tokens file for the first time.
func (a *App) loadTokens(s settings.Settings) {
	a.tokens = auth.NewRing(s.Tokens, a.clock.Now)
	if s.TokensFile != "" {
		a.watch = auth.NewWatch(s.TokensFile, a.tokens, a.log)
		a.watch.Look(a.clock.Now())
	}
}

// saver is a store that saves its counters now and then, and has room for a limited number of
// buckets.
type saver interface {
	// Saved returns the time since the last save, and the error of the last try.
	Saved() (ago time.Duration, err error)
	// Refused returns the number of times that it had no room for a bucket.
	Refused() int64
}

var _ saver = (*localstore.Store)(nil)

// saveError returns the reason why the store cannot save its counters; nil while it can.
func (a *App) saveError() error {
	if s, ok := a.store.(saver); ok {
		_, err := s.Saved()
		return err
	}
	return nil
}

// roundTripReader returns the function that reads the store's response time; nil for a store in
// this process.
func (a *App) roundTripReader() func() time.Duration {
	if far, ok := a.store.(*redisstore.Store); ok {
		return far.RoundTrip
	}
	return nil
}

// wrongFiles returns the settings whose files cannot be used now, each with the reason.
func (a *App) wrongFiles(l settings.Listeners) map[string]string {
	wrong := map[string]string{}
	// The tokens and the policy set.
	if a.watch != nil {
		if trouble := a.watch.Trouble(); trouble != "" {
			wrong["--tokens-file"] = trouble
		}
	}
	if a.files != nil && a.files.Refused() {
		wrong["--policyset"] = "not in force, and the last good policy set is: the log says why"
		if places := a.files.Places(); places != "" {
			wrong["--policyset"] = "not in force, with mistakes in " + places + ", and the last good policy set is: " +
				"the log says why"
		}
	}
	// The certificates of the listeners, and of Redis.
	note := func(briefs []string, settings ...string) {
		for i, brief := range briefs {
			if brief != "" {
				wrong[settings[i]] = brief
			}
		}
	}
	if l.TLS != nil {
		note(l.TLS.Brief(a.log), "--tls-cert", "--tls-key")
	}
	for name, pool := range map[string]*certs.Pool{"--node-client-ca": l.NodeClients, "--rls-client-ca": l.RLSClients,
		"--rlqs-client-ca": l.RLQSClients} {
		if pool != nil {
			note(pool.Brief(a.log), name)
		}
	}
	if far, ok := a.store.(*redisstore.Store); ok {
		for parameter, brief := range far.WrongFiles() {
			wrong["--redis-url "+parameter] = brief
		}
	}
	return wrong
}

// lookAtFiles is the period of the looks at files. A removed authority of client certificates
// counts no longer than this.
const lookAtFiles = time.Second

// noteFollowed remembers when the store was last followed.
func (a *App) noteFollowed(err error) {
	if err == nil {
		a.polled.Store(time.Now().UnixNano())
	}
}
