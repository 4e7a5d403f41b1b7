package rlqs

import (
	"context"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/controlplanetest"
	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// A ban of a key comes before an exemption, also where only a policy for calls knows the key.
func TestABannedKeyIsNotExempt(t *testing.T) {
	store := &controlplanetest.Store{Now: func() quota.Instant { return 1 }}
	snapshot, set, err := controlplanetest.New(store, 1, 1, time.Now, func() float64 { return 0 }).Put(0, []byte(`
version: weir/v1
exempt: {client_ips: [10.9.0.0/16]}
policies:
  - name: users
    match: {domain: d, descriptors: [{name: remote_address, present: true}, {name: user, present: true}]}
    partition: ["descriptor:user"]
    limit: {quota: 1, window: 1h}
    mode: strict
`))
	if err != nil {
		t.Fatal(err)
	}
	hold := func(bans []wire.Ban, address, user string) held {
		t.Helper()
		view, err := calls.NewView(snapshot, set, &wire.Enforcement{Bans: bans}, 0)
		if err != nil {
			t.Fatal(err)
		}
		r := &rules{config: Config{
			View:      func() *calls.View { return view },
			Consumers: func(context.Context) match.Consumers { return nil },
		}}
		entries := map[string]string{"remote_address": address, "user": user}
		h, _ := r.holdBucket(t.Context(), ID{Domain: "d", Entries: entries})
		return h
	}
	bans := []wire.Ban{{Key: hold(nil, "10.1.1.1", "bad").hits[0].Key}}
	for _, c := range []struct {
		bans []wire.Ban
		user string
		want match.Access
	}{{nil, "bad", match.Exempt}, {bans, "bad", match.Banned}, {bans, "good", match.Exempt}} {
		if got := hold(c.bans, "10.9.1.1", c.user); got.access != c.want || len(got.hits) > 0 {
			t.Errorf("%d bans: %s has %v and %d hits, want %v", len(c.bans), c.user, got.access, len(got.hits), c.want)
		}
	}
}
