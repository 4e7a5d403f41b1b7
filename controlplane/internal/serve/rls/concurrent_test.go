package rls_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/controlplane/internal/serve/rls"
	"github.com/weir-proxy/weir/shared/wire"
)

// inTurn lets one goroutine at a time ask the control plane, which is not for concurrent use.
type inTurn struct {
	mu   sync.Mutex
	next rls.Leases
}

func (l *inTurn) Grant(ctx context.Context, req wire.LeaseRequest) (wire.LeaseReply, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next.Grant(ctx, req)
}

// Concurrent calls, each with memory that other calls have used, get the tokens that sequential
// calls would get: no token more and none less.
func TestCallsAtOnce(t *testing.T) {
	w := begin(t, `
version: weir/v1
policies:
  - {name: all, match: {domain: d}, partition: [], limit: {quota: 500, window: 1d}, mode: strict}
  - {name: user, match: {domain: d}, partition: ["descriptor:user"], limit: {quota: 30, window: 1d}, mode: strict}
  - {name: draft, match: {domain: d}, partition: [], limit: {quota: 5, window: 1d}, mode: strict, enforcement: shadow}
`)
	service := rls.New(rls.Config{
		Leases: &inTurn{next: w.plane}, View: func() *calls.View { return w.view },
		Report: func(*wire.Decisions) {}, Now: func() time.Time { return start },
	})
	const users, callsOfEach = 20, 50
	var allowed [users]atomic.Int64
	var callers sync.WaitGroup
	for user := range users {
		for range 2 {
			callers.Go(func() {
				for range callsOfEach / 2 {
					out, err := service.ShouldRateLimit(context.Background(),
						request("d", "user=u"+string(rune('a'+user))))
					if err != nil {
						t.Error(err)
					} else if out.OverallCode == rlspb.RateLimitResponse_OK {
						allowed[user].Add(1)
					}
				}
			})
		}
	}
	callers.Wait()
	sum := int64(0)
	for user := range users {
		n := allowed[user].Load()
		if n > 30 {
			t.Errorf("user %d passed %d times", user, n)
		}
		sum += n
	}
	if sum != 500 {
		t.Errorf("%d calls passed of 500", sum)
	}
}
