package api_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

const withCosts = `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - name: tokens
    partition: [consumer]
    limit: {quota: 100, window: 1h}
    mode: strict
    cost: {reserve: {header: x-max, max: 80, missing: 10}, commit: {metadata: ai/total}}
  - name: rows
    partition: [consumer]
    algorithm: sliding_log
    limit: {quota: 100, window: 1h}
    cost: {reserve: 5, commit: {header: x-rows}, missing: 0}
  - {name: plain, partition: [consumer], limit: {quota: 100, window: 1h}}
`

// owes reserves, as a node, 80 tokens of one of alice's buckets, and settles them with the
// request's cost.
func (p *plane) owes(t *testing.T, bucket keyhash.Key, limit uint32, actual int64) {
	t.Helper()
	for _, item := range []wire.LeaseItem{
		{Bucket: bucket, Limit: limit, Waiting: 1, Cost: 80, Reserved: 7},
		{Kind: wire.KindSettle, Bucket: bucket, Limit: limit, Cost: 1, Reserved: 7, Nth: 1, Actual: actual},
	} {
		p.lease(t, item)
	}
}

// Operators and callers see how a policy charges requests whose costs are known later, the owed
// tokens, and the time when the next request is let in: for windows and for token buckets.
func TestWhatIsOwedIsShown(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, withCosts); w.Code != 200 {
		t.Fatal(w.Body)
	}
	secret, err := p.hub.Secret()
	if err != nil {
		t.Fatal(err)
	}
	set, err := policydoc.Load([]byte(withCosts), policydoc.YAML)
	if err != nil {
		t.Fatal(err)
	}
	source := policy.Source{Kind: policy.SourceHeader, Name: "x-api-key"}
	var refusals []wire.Refusal
	for i, actual := range []int64{125, 130} {
		bucket := match.NewPartition(secret, set, &set.Policies[i],
			[]match.Value{{Text: []byte("alice"), Source: source}}).Bucket("", set.Policies[i].Limits, 0, false)
		p.owes(t, bucket, uint32(i), actual)
		refusals = append(refusals, wire.Refusal{Limit: uint32(i), Cost: 5, CallerCount: wire.CallerCount{
			Policy: uint32(i), Bucket: bucket, Count: 1,
			Identity: wire.Identity{Consumer: match.ConsumerKey(secret, source, "alice")}}})
	}
	time.Sleep(100 * time.Millisecond) // Until then the tokens of waiting requests count as leased.
	tokens := `"settles":{"reserve":"header:x-max up to 80, else 10","commit":"metadata ai/total","missing":"reserved","unfinished":"reserved, at least 10"}`
	rows := `"settles":{"reserve":"5","commit":"header x-rows","missing":"0","unfinished":"reserved"}`

	used := decoded[api.UsageAnswer](t, p.do(usage("alice")))
	if len(used.Limits) != 3 {
		t.Fatalf("%+v", used)
	}
	// 26 tokens at 100 in an hour are 936 s, and of a window a whole one must pass.
	for i, want := range []struct {
		owed    int64
		after   float32
		settles string
	}{{25, 936, tokens}, {30, 3600, rows}} {
		l := used.Limits[i]
		if l.Remaining != 0 || l.Owed != want.owed || !about(l.AdmitsAfterSeconds, want.after) ||
			!says(l, want.settles) {
			t.Errorf("usage: %+v, want %+v", l, want)
		}
		k := p.key(t, call{who: "eyes", method: "GET", path: "/v1/keys/" + l.Policy + "?partition=consumer:alice"})
		if b := k.Buckets[0]; b.Level != 0 || b.Used != 100+want.owed || b.Owed != want.owed ||
			!about(b.AdmitsAfterSeconds, want.after) || !says(b, want.settles) {
			t.Errorf("key: %+v, want %+v", b, want)
		}
	}
	if l := used.Limits[2]; l.Settles != nil || l.Owed != 0 || l.AdmitsAfterSeconds != 0 {
		t.Errorf("a policy whose costs are known: %+v", l)
	}

	if w := p.postReport(&wire.Decisions{Node: []byte("n"), Version: 1, Refusals: refusals}); w.Code != 204 {
		t.Fatal(w.Code, w.Body)
	}
	why := decoded[api.DecisionsAnswer](t, p.do(call{"eyes", "GET", "/v1/decisions?consumer=alice", nil, ""}))
	if len(why.Decisions) != 2 {
		t.Fatalf("%+v", why)
	}
	if d := why.Decisions[0]; d.Policy != "rows" || !says(d, rows) || d.Now == nil || d.Now.Owed != 30 ||
		d.Now.Of != 100 || !about(d.Now.AdmitsAfterSeconds, 3600) {
		t.Errorf("%+v", d)
	}
	if d := why.Decisions[1]; d.Policy != "tokens" || !says(d, tokens) || d.Now == nil || d.Now.Owed != 25 ||
		d.Now.Tokens != 0 || !about(d.Now.AdmitsAfterSeconds, 1080) { // Its 5 tokens come in 180 s.
		t.Errorf("%+v", d)
	}
}

// about allows for the time of the store, which is real here.
func about(got, want float32) bool { return got > want-60 && got <= want+1 }

func says(answer any, text string) bool {
	raw, err := json.Marshal(answer)
	return err == nil && strings.Contains(string(raw), text)
}
