package redisstore_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/redisstore"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/test/redistest"
)

// A connection takes longer to be made than a call may take: that costs the first calls their
// answers, and no others, because their connections are made all the same.
func TestConnectionsAreMadeBeyondTheTimeOfACall(t *testing.T) {
	t.Parallel()
	const back, patience = 300 * time.Millisecond, 500 * time.Millisecond
	way := startWay(t, redistest.Start(t).Addr())
	way.back.Store(int64(back))
	s := openURL(t, "redis://"+way.addr(), slog.New(slog.DiscardHandler))
	ask := spread(params(t, 100, quota.Hour, 100), 1, 1)[:1]
	granted := 0
	for range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if _, err := s.Grant(ctx, ask); err == nil {
			granted++
		}
		cancel()
		if granted == 3 {
			return
		}
	}
	t.Errorf("%d of 40 calls were answered within %v, of a Redis that takes %v", granted, patience, back)
}

// How far Redis is follows what is seen, in both directions.
func TestTheRoundTripIsMeasured(t *testing.T) {
	t.Parallel()
	way := startWay(t, redistest.Start(t).Addr())
	s := openURL(t, "redis://"+way.addr(), slog.New(slog.DiscardHandler), redisstore.Now(time.Now))
	if s.RoundTrip() != 0 {
		t.Errorf("%v before any look", s.RoundTrip())
	}
	for _, back := range []time.Duration{0, 150 * time.Millisecond, 0} {
		way.back.Store(int64(back))
		var took []time.Duration
		for range 12 {
			begin := time.Now()
			watch(t, s)
			took = append(took, time.Since(begin))
		}
		longest := slices.Max(took[len(took)-5:])
		if got := s.RoundTrip(); got < back || got == 0 || got > longest {
			t.Errorf("%v after looks at a Redis %v away, which took up to %v", got, back, longest)
		}
	}
}
