package app

import (
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/controlplane/internal/serve/grpcserver"
	"github.com/weir-proxy/weir/controlplane/internal/serve/rlqs"
)

const (
	// forQuotas is the name of the listener for the rate_limit_quota filters in the log.
	forQuotas = "quotas"
	// quotaProbe finds an Envoy that is gone: an assignment must not wait in its connection until
	// it is too late.
	quotaProbe = time.Second
	// quotaStreams bounds the open streams; an Envoy has a stream for each domain.
	quotaStreams = 10_000
)

// listenForQuotas opens the listener for the rate_limit_quota filters of Envoy, unless it has no
// address.
func (a *App) listenForQuotas(s settings.Settings, config api.Config) error {
	if s.Listeners.RLQS == "" {
		return nil
	}
	door := grpcDoor(s, config, s.Listeners.RLQSOpen)
	door.Name, door.Address, door.Clients = forQuotas, s.Listeners.RLQS, s.Listeners.RLQSClients
	door.Streams, door.Message, door.Probe = quotaStreams, rlqs.MaxReport, quotaProbe
	server, err := grpcserver.New(door)
	if err != nil {
		return err
	}
	a.listeners = append(a.listeners, server)
	service := rlqs.New(rlqs.Config{
		View: a.followPolicies(config), Penalties: config.Penalties, Leases: config.Leases,
		Consumers: calls.Knowing(config.Consumers, config.Now), Meter: config.Metrics, Log: config.Log,
		Now: config.Wall,
	})
	service.Register(server)
	config.Metrics.Quotas(service.Load)
	a.followers = append(a.followers, service.Run)
	return nil
}
