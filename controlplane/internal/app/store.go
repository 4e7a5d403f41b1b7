package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/controlplane/internal/localstore"
	"github.com/weir-proxy/weir/controlplane/internal/metrics"
	"github.com/weir-proxy/weir/controlplane/internal/redisstore"
	"github.com/weir-proxy/weir/controlplane/internal/settings"
	"github.com/weir-proxy/weir/shared/lease"
)

func open(s settings.Settings, log *slog.Logger) (store, error) {
	if s.RedisURL != "" {
		return redisstore.Open(s.RedisURL, log)
	}
	return localstore.Open(s.DataDir, log, localstore.Options{})
}

// timed measures the store on the path of requests.
type timed struct {
	leases.Store
	metrics *metrics.Metrics
}

func (t timed) Grant(ctx context.Context, items []leases.Item) ([]lease.Grant, error) {
	start := time.Now()
	grants, err := t.Store.Grant(ctx, items)
	t.metrics.Store("grant", time.Since(start), err)
	return grants, err
}
