package app

import (
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/api"
	"github.com/weir-proxy/weir/controlplane/internal/grpcserver"
	"github.com/weir-proxy/weir/controlplane/internal/rlqs"
	"github.com/weir-proxy/weir/controlplane/internal/rls"
	"github.com/weir-proxy/weir/controlplane/internal/settings"
)

const (
	// forQuotas is the name of the listener for the rate_limit_quota filters in the log.
	forQuotas = "quotas"
	// quotaProbe finds an Envoy that has gone: what is sent to it may arrive when it is too late.
	quotaProbe = time.Second
	// quotaStreams bounds the streams of that listener; an Envoy has one for each domain.
	quotaStreams = 10_000
)

// quotas opens the listener for the rate_limit_quota filters of Envoy, unless it has no address.
func (a *App) quotas(s settings.Settings, config api.Config) error {
	if s.Listeners.RLQS == "" {
		return nil
	}
	tokens := config.Tokens
	if s.Listeners.RLQSOpen {
		tokens = nil
	}
	server, err := grpcserver.New(grpcserver.Config{
		Name: forQuotas, Address: s.Listeners.RLQS, TLS: s.Listeners.TLS, Clients: s.Listeners.RLQSClients,
		Tokens: tokens, Rate: s.Limits.Node, Connections: s.Limits.Connections,
		AtOnce: callsAtOnce, Streams: quotaStreams, Patience: callTime,
		Message: rlqs.MaxReport, Probe: quotaProbe,
		Metrics: config.Metrics, Tracing: config.Tracing, Log: config.Log, Now: config.Now,
	})
	if err != nil {
		return err
	}
	a.listeners = append(a.listeners, server)
	service := rlqs.New(rlqs.Config{
		Sets: config.Policies, Secrets: config.Hub, Orders: config.Enforcement, Leases: config.Leases,
		Consumers: rls.Knowing(config.Consumers, config.Now), Meter: config.Metrics, Log: config.Log, Now: config.Now,
	})
	service.Register(server)
	config.Metrics.Quotas(service.Load)
	a.followers = append(a.followers, service.Run)
	return nil
}
