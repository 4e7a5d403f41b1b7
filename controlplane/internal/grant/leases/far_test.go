package leases_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/wire"
)

// silent is a store that does not answer.
type silent struct{}

func (silent) Grant(ctx context.Context, _ []leases.Item) ([]lease.Grant, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A request waits for the store as long as it is far, within the setting. A probe that would come
// too late finds out by the last look at the store whether that works.
func TestPatienceFollowsTheDistance(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct{ distance, most, waits, probe time.Duration }{
		{0, 250 * ms, 40 * ms, 40 * ms},
		{5 * ms, 250 * ms, 40 * ms, 40 * ms},
		{20 * ms, 250 * ms, 60 * ms, 0},
		{80 * ms, 250 * ms, 240 * ms, 0},
		{200 * ms, 250 * ms, 250 * ms, 0},
		{80 * ms, 40 * ms, 40 * ms, 40 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.put(1, leased)
			w.current = 1
			config := w.config(time.Now)
			config.Store, config.MostPatience = silent{}, c.most
			config.Distance = func() time.Duration { return c.distance }
			s := leases.New(config)
			for tokens, want := range map[int64]time.Duration{1: c.waits, 0: c.probe} {
				begin := time.Now()
				request := wire.LeaseRequest{Version: 1, Items: []wire.LeaseItem{item(1, 0, tokens, 0)}}
				_, err := s.Grant(t.Context(), request)
				if took := time.Since(begin); took != want || errors.Is(err, leases.ErrUnavailable) != (want > 0) {
					t.Errorf("a store %v away is waited for %v, want %v, for %d tokens: %v",
						c.distance, took, want, tokens, err)
				}
			}
		})
	}
}
