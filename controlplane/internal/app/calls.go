package app

import (
	"context"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/controlplane/internal/serve/grpcserver"
	"github.com/weir-proxy/weir/controlplane/internal/serve/rls"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// forCalls is the name of the gRPC listener in the log.
	forCalls = "calls"
	// callTime is the longest time for a call. Proxies are less patient.
	callTime = time.Second
	// callsAtOnce and streamsAtOnce bound the calls and streams that the gRPC listener answers at
	// once.
	callsAtOnce   = 8192
	streamsAtOnce = 4096
	// noteTime is the longest time that the store may take for a report of calls.
	noteTime = time.Second
)

// listenForCalls opens the listener of the gRPC rate limit service, unless it has no address.
func (a *App) listenForCalls(s settings.Settings, config api.Config) error {
	if s.Listeners.RLS == "" {
		return nil
	}
	door := grpcDoor(s, config, s.Listeners.RLSOpen)
	door.Name, door.Address, door.Clients = forCalls, s.Listeners.RLS, s.Listeners.RLSClients
	door.Streams = streamsAtOnce
	door.Patience = 0 // The service waits for nothing longer than leases are waited for.
	server, err := grpcserver.New(door)
	if err != nil {
		return err
	}
	a.listeners = append(a.listeners, server)
	enforcer := penalties.NewEnforcer(config.Penalties, rls.NodeName, nil)
	service := rls.New(rls.Config{
		Leases: config.Leases, View: a.followPolicies(config), Consumers: calls.Knowing(config.Consumers, config.Now),
		Penalties: enforcer,
		Report:    func(m *wire.Decisions) { noteDecisions(config, m) },
		Tried: func(policy string, candidate, undetermined bool) {
			config.Series.Tried(policy, rls.NodeName, candidate, undetermined)
		},
		Meter: config.Metrics.Calls(), Metadata: s.Listeners.RLSMetadata, Now: config.Wall,
	})
	service.Register(server)
	a.followers = append(a.followers, service.Run, enforcer.Run)
	return nil
}

// followPolicies returns a function that reads the policies by which the gRPC services decide. One
// follower keeps them for both services, which are one door: with either of them, this replica
// counts among the nodes that share the buckets.
func (a *App) followPolicies(config api.Config) func() *calls.View {
	if a.calling == nil {
		a.calling = calls.NewFollower(rls.NodeName, config.Hub, config.Policies, config.Now, config.Log)
		a.looks = append(a.looks, a.calling.Look)
		a.followers = append(a.followers, a.calling.Run, config.Nodes.Open)
	}
	return a.calling.View
}

// grpcDoor returns the settings that the gRPC listeners share. An open listener asks for no tokens.
func grpcDoor(s settings.Settings, config api.Config, open bool) grpcserver.Config {
	tokens := config.Tokens
	if open {
		tokens = nil
	}
	return grpcserver.Config{
		TLS: s.Listeners.TLS, Tokens: tokens, Rate: s.Limits.Node, Connections: s.Limits.Connections,
		AtOnce: callsAtOnce, Patience: callTime,
		Refused: func(address, reason string) { config.Nodes.Refuse(address, "", reason) },
		Metrics: config.Metrics, Tracing: config.Tracing, Log: config.Log, Now: config.Wall,
	}
}

// noteDecisions stores a report of refused calls like the report of an Envoy.
func noteDecisions(config api.Config, m *wire.Decisions) {
	ctx, cancel := context.WithTimeout(context.Background(), noteTime)
	defer cancel()
	if err := config.Decisions.Note(ctx, m); err != nil {
		config.Log.Debug("a report of calls is not stored", "error", err.Error())
	}
}
