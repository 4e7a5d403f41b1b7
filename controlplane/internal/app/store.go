package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/observe/metrics"
	"github.com/weir-proxy/weir/controlplane/internal/observe/tracing"
	"github.com/weir-proxy/weir/controlplane/internal/store"
	"github.com/weir-proxy/weir/controlplane/internal/store/localstore"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/shared/lease"
)

var (
	_ store.Store = (*localstore.Store)(nil)
	_ store.Store = (*redisstore.Store)(nil)
)

// openStore opens the store that the settings name.
func openStore(
	s settings.Settings, breakers *breaker.Group, traces *tracing.Tracing, m *metrics.Metrics, log *slog.Logger,
) (store.Store, error) {
	if s.RedisURL != "" {
		options := []redisstore.Option{
			redisstore.LostFill(s.LostFill), redisstore.Breakers(breakers), redisstore.Calls(m.Batch),
			redisstore.Now(time.Now), redisstore.MayEvict(s.RedisMayEvict),
		}
		if provider := traces.Provider(); provider != nil {
			options = append(options, redisstore.Traced(provider))
		}
		return openRedis(s.RedisURL, log, options)
	}
	return localstore.Open(s.DataDir, log, localstore.Options{LostFill: &s.LostFill})
}

// openRedis opens a Redis. It refuses a Redis that answers and cannot hold the state.
func openRedis(url string, log *slog.Logger, options []redisstore.Option) (store.Store, error) {
	s, err := redisstore.Open(url, log, options...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	if err := s.Inspect(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// logBreakerChange logs a change of a breaker once. The trials of an open breaker are logged for
// debugging alone.
func logBreakerChange(log *slog.Logger, c breaker.Change) {
	facts := []any{"server", c.Name, "from", c.From.String(), "to", c.To.String()}
	switch {
	case c.From == breaker.Closed:
		log.Warn("a part of the store does not answer; calls skip it for a time", append(facts, "error", c.Cause)...)
	case c.To == breaker.Closed:
		log.Info("a part of the store answers again, or is gone", append(facts, "after", c.After.String())...)
	default:
		log.Debug("a part of the store is tried", append(facts, "after", c.After.String(), "error", c.Cause)...)
	}
}

// timed measures the store on the path of requests.
type timed struct {
	leases.Store
	metrics *metrics.Metrics
}

func (t timed) Grant(ctx context.Context, items []leases.Item) ([]lease.Grant, error) {
	start := time.Now()
	grants, err := t.Store.Grant(ctx, items)
	result := metrics.OK
	if partial := (*leases.Partial)(nil); errors.As(err, &partial) {
		result = metrics.Partial
	} else if err != nil {
		result = metrics.Error
	}
	t.metrics.Store("grant", time.Since(start), result)
	return grants, err
}
