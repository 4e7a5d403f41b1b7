package rlqs_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/rlqs"
	"github.com/weir-proxy/weir/shared/quota"
)

// open allows every bucket.
type open struct{}

func (open) Stand(context.Context, rlqs.ID) rlqs.Standing {
	return rlqs.Standing{Verdict: rlqs.Allowed}
}
func (open) Take(context.Context, []rlqs.Ask) {}

// sink takes the actions for a filter, and forgets them.
type sink struct{}

func (sink) Offer([]rlqs.Action) {}

// A stream that is open for a month, with tenants that come and go, is as good as a new one: the
// bound is on the buckets that live.
func TestAStreamOfAMonthTakesNewBuckets(t *testing.T) {
	const each, tenants = 200, 50
	e := rlqs.NewEngine(open{}, rlqs.Room{All: 1000, Each: each}, func() int64 { return 0 })
	filter := e.Join(sink{})
	now := quota.Instant(1)
	clock := func() quota.Instant { return now }
	id := func(day, n int) rlqs.ID {
		name := fmt.Sprint("tenant ", day, " ", n)
		return rlqs.ID{Domain: "d", Name: name, Entries: map[string]string{"tenant": name}}
	}
	most := 0
	for day := range 30 {
		for hour := range 24 {
			for n := range tenants {
				if !e.Report(now, filter, id(day, n), 1) {
					t.Fatalf("day %d, hour %d: tenant %d is ignored with %d buckets", day, hour, n, e.Holders())
				}
			}
			most = max(most, e.Holders())
			for end := now + quota.Instant(quota.Hour); now < end; now = min(max(e.Due(), now+1), end) {
				e.Turn(t.Context(), clock)
			}
		}
	}
	if most < tenants || most > each {
		t.Errorf("at most %d buckets lived", most)
	}
	for n := range each + 1 {
		if taken := e.Report(now, filter, id(99, n), 1); n == each && taken {
			t.Error("there is no bound")
		}
	}
}
