package redisstore_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/gather"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// A connection may take longer to be made than a call may take. That costs only the first calls
// their answers, because their connections are made all the same.
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

// The measured distance of Redis follows the real distance, in both directions.
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

// A caller that asks again unless it is answered learns its grant, also after its patience: alone,
// and in a call with other callers. These wait no longer than they like.
func TestALateAnswerSaysWhatWasGranted(t *testing.T) {
	t.Parallel()
	const back, patience = 300 * time.Millisecond, 100 * time.Millisecond
	way := startWay(t, redistest.Start(t).Addr())
	s := openURL(t, "redis://"+way.addr(), slog.New(slog.DiscardHandler))
	p := params(t, 100, quota.Hour, 100)
	for range 3 { // There are connections.
		together(t, s, [][]leases.Item{{want(p, 1, 1)}, {want(p, 1, 1)}}, nil)
	}
	way.back.Store(int64(back))
	for _, callers := range []int{1, 3} {
		var lates atomic.Int64
		requests := make([][]leases.Item, callers)
		for i := range requests {
			requests[i] = []leases.Item{want(p, byte(10*callers+i), 2)}
		}
		begin := time.Now()
		ask := func(i int) context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			t.Cleanup(cancel)
			if i == 2 {
				return ctx
			}
			return gather.Outlast(ctx, func(err error) {
				if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took < patience {
					t.Errorf("after %v: %v", took, err)
				}
				lates.Add(1)
			})
		}
		var answers []answer
		if callers == 1 {
			grants, err := s.Grant(ask(0), requests[0])
			answers = []answer{{grants, err}}
		} else {
			answers = together(t, s, requests, ask)
		}
		for i, a := range answers {
			if granted := a.err == nil && a.grants[0].Waiting == 2; granted != (i < 2) {
				t.Errorf("%d callers, %d: %+v", callers, i, a)
			}
		}
		if want := int64(min(callers, 2)); lates.Load() != want || time.Since(begin) < back {
			t.Errorf("%d callers: %d late after %v", callers, lates.Load(), time.Since(begin))
		}
	}
}
