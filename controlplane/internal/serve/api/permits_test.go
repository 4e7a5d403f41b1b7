package api_test

import (
	"reflect"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

const withPermits = `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: jobs, partition: [consumer], limit: [{quota: 10, window: 1m}, {in_flight: 20}]}
`

// An operator sees which nodes hold how many permits, and a caller sees how many more requests it
// may have in flight. A reset and a grant change the level of the quota beside it, and no permits.
func TestWhoHoldsPermits(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, withPermits); w.Code != 200 {
		t.Fatal(w.Body)
	}
	secret, err := p.hub.Secret()
	if err != nil {
		t.Fatal(err)
	}
	set, err := policydoc.Load([]byte(withPermits), policydoc.YAML)
	if err != nil {
		t.Fatal(err)
	}
	source := policy.Source{Kind: policy.SourceHeader, Name: "x-api-key"}
	alice := match.NewPartition(secret, set, &set.Policies[0], []match.Value{{Text: []byte("alice"), Source: source}})
	claim := func(node string, boot uint64, bucket keyhash.Key, hold, need int64) {
		t.Helper()
		body := string(wire.AppendLeaseRequest(nil,
			wire.LeaseRequest{Node: node, Boot: boot, Version: 1, Items: []wire.LeaseItem{
				{Kind: wire.KindClaim, Bucket: bucket, Limit: 1, Waiting: need, Seq: 1, Hold: hold},
			}}))
		if w := p.do(call{who: "envoy", method: "POST", path: "/node/v1/leases", body: body}); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	places := alice.Bucket("", set.Policies[0].Limits, 1, false)
	claim("b\x1b", 1<<63, places, 0, 3)
	claim("a", 0xab, places, 3, 0)
	claim("idle", 1, places, 0, 0)
	const path = "/v1/keys/jobs"
	for _, c := range []call{
		{who: "eyes", method: "GET", path: path + "?partition=alice"},
		{who: "ed", method: "POST", path: path + "/reset?partition=alice", body: `{"reason": "a test"}`},
		{who: "ed", method: "POST", path: path + "/grant?partition=alice", body: `{"reason": "a test", "tokens": 5}`},
	} {
		got := p.key(t, c).Buckets
		for i := range got[1].Holders {
			h := &got[1].Holders[i]
			if h.EndsAfterSeconds <= 0 || h.EndsAfterSeconds > 10 || got[1].FullAfterSeconds < h.EndsAfterSeconds {
				t.Errorf("%s: ends after %v", c.path, h.EndsAfterSeconds)
			}
			h.EndsAfterSeconds = 0
		}
		got[1].FullAfterSeconds = 0
		got[0].Bucket, got[1].Bucket = "", "" // ABucketHasOneName holds them.
		want := []api.BucketAnswer{{Limit: "10 per 1m", Burst: 10, Level: 10}, {
			Limit: "20 in flight", Burst: 20, Level: 14, Used: 6, Leased: 6,
			Holders: []api.HolderAnswer{{Node: "a", Boot: "ab", Permits: 3},
				{Node: "b?", Boot: "8000000000000000", Permits: 3}},
		}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s %s: %+v, want %+v", c.method, c.path, got, want)
		}
	}
	if got := p.key(t, call{who: "eyes", method: "GET", path: path + "?partition=bob"}).Buckets[1]; got.Level != 20 ||
		len(got.Holders) > 0 {
		t.Errorf("of another caller: %+v", got)
	}
}
