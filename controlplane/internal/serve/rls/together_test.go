package rls_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/controlplane/internal/serve/rls"
	"github.com/weir-proxy/weir/shared/wire"
)

// slowly answers as another does, after a while. It keeps how many items each request had.
type slowly struct {
	next     rls.Leases
	requests []int
	// fails is the request that gets no answer, counted from 1.
	fails int
}

var errAway = errors.New("the store is away")

func (l *slowly) Grant(ctx context.Context, req wire.LeaseRequest) (wire.LeaseReply, error) {
	time.Sleep(time.Millisecond)
	l.requests = append(l.requests, len(req.Items))
	if l.fails == len(l.requests) {
		return wire.LeaseReply{}, errAway
	}
	return l.next.Grant(ctx, req)
}

// Calls that come while one is with the store share the next request: each is all or nothing by
// itself, as if it had come alone.
func TestCallsShareARequest(t *testing.T) {
	const document = `
version: weir/v1
policies:
  - {name: user, match: {domain: d}, partition: ["descriptor:user"], limit: {quota: 2, window: 1d}, mode: strict}
  - name: path
    match: {domain: d, descriptors: [{name: path, present: true}]}
    partition: ["descriptor:path"]
    limit: {quota: 4, window: 1d}
    mode: strict
    on_failure: [deny]
`
	for name, c := range map[string]struct {
		fails    int
		want     []string
		requests []int
	}{
		"answered": {0, []string{"OK", "OK", "OK", "OVER_LIMIT", "OK", "OVER_LIMIT"}, []int{2, 10}},
		"no answer": {2, []string{"OK", "OVER_LIMIT", "OVER_LIMIT", "OVER_LIMIT", "OVER_LIMIT", "OVER_LIMIT"},
			[]int{2, 10}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := begin(t, document)
				store := &slowly{next: w.plane, fails: c.fails}
				service := rls.New(rls.Config{
					Leases: store, View: func() *calls.View { return w.view }, Now: func() time.Time { return start },
				})
				got := make([]string, len(c.want))
				var callers sync.WaitGroup
				for i, user := range []string{"a", "a", "b", "a", "c", "b"} {
					callers.Go(func() {
						out, err := service.ShouldRateLimit(t.Context(), request("d", "user="+user+"|path=/"))
						if err != nil {
							t.Error(err)
							return
						}
						got[i] = rlspb.RateLimitResponse_Code_name[int32(out.OverallCode)]
					})
					time.Sleep(100 * time.Microsecond)
				}
				callers.Wait()
				if fmt.Sprint(got) != fmt.Sprint(c.want) || !slices.Equal(store.requests, c.requests) {
					t.Errorf("got %v with requests of %v items, want %v with %v", got, store.requests, c.want,
						c.requests)
				}
			})
		})
	}
}
