package api_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

const withKeys = `
version: weir/v1
tiers: [free, premium]
identity: {consumer: [{header: x-api-key}, {jwt: sub}], tier: [assignment], default_tier: free, client_ip: {ipv6_prefix: 64}}
policies:
  - {name: api, partition: [consumer, method], limits: {free: [{quota: 10, window: 1m}, {quota: 100, window: 1h}], premium: {quota: 100, window: 1m}}}
  - {name: address, partition: [client_ip], limit: {quota: 5, window: 1h}, algorithm: sliding_window}
  - {name: here, partition: [], limit: {quota: 5, window: 1h}, mode: local}
  - {name: shared, partition: ["header:x-tenant"], if_absent: shared, limit: {quota: 5, window: 1h}}
`

func (p *plane) key(t *testing.T, c call) api.KeyAnswer {
	t.Helper()
	return decoded[api.KeyAnswer](t, p.do(c))
}

func withKeysPlane(t *testing.T) *plane {
	t.Helper()
	p := newPlane(t)
	if w := p.put(`"0"`, withKeys); w.Code != 200 {
		t.Fatal(w.Body)
	}
	return p
}

const alice = "?partition=consumer:al/i+ce&partition=method:GET&source=header:x-api-key"

// spend takes tokens, as a node, from the first of a key's buckets.
func (p *plane) spend(t *testing.T, bucket keyhash.Key, limit uint32, tokens int64) {
	t.Helper()
	p.lease(t, wire.LeaseItem{Bucket: bucket, Limit: limit, Waiting: tokens, Cost: 1})
}

// lease asks, as a node, about one bucket.
func (p *plane) lease(t *testing.T, item wire.LeaseItem) {
	t.Helper()
	request := wire.LeaseRequest{Node: "n", Boot: 1, Seq: 1, Version: 1, Items: []wire.LeaseItem{item}}
	w := p.do(call{who: "envoy", method: "POST", path: "/node/v1/leases",
		body: string(wire.AppendLeaseRequest(nil, request))})
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
}

func TestKeys(t *testing.T) {
	p := withKeysPlane(t)
	got := p.key(t, call{who: "eyes", method: "GET", path: "/v1/keys/api" + alice})
	if got.Policy != "api" || len(got.Key) != 32 || got.Where != "store" || got.Ban != nil || !got.Durable ||
		len(got.Buckets) != 3 {
		t.Fatalf("%+v", got)
	}
	for i, want := range []api.BucketAnswer{
		{Tier: "free", Limit: "10 per 1m", Burst: 10, Level: 10},
		{Tier: "free", Limit: "100 per 1h", Burst: 100, Level: 100},
		{Tier: "premium", Limit: "100 per 1m", Burst: 100, Level: 100},
	} {
		want.Bucket = got.Buckets[i].Bucket // ABucketHasOneName holds it.
		if !reflect.DeepEqual(got.Buckets[i], want) {
			t.Errorf("bucket %d is %+v, want %+v", i, got.Buckets[i], want)
		}
	}
	address := p.key(t, call{who: "eyes", method: "GET", path: "/v1/keys/address?partition=client_ip:2001:db8::1"})
	if again := p.key(t, call{who: "eyes", method: "GET",
		path: "/v1/keys/address?partition=client_ip:2001:db8::2:3"}); again.Key != address.Key ||
		address.Buckets[0].Burst != 5 {
		t.Errorf("two addresses of one network are two: %+v %+v", address, again)
	}
	if mapped, plain := p.key(t,
		call{who: "eyes", method: "GET", path: "/v1/keys/address?partition=client_ip:::ffff:10.0.0.1"}),
		p.key(t, call{who: "eyes", method: "GET", path: "/v1/keys/address?partition=client_ip:10.0.0.1"}); mapped.Key !=
		plain.Key || plain.Key == address.Key {
		t.Errorf("%+v %+v", mapped, plain)
	}
	absent := p.key(t, call{who: "eyes", method: "GET", path: "/v1/keys/shared"})
	if tenant := p.key(t, call{who: "eyes", method: "GET",
		path: "/v1/keys/shared?partition=header:x-tenant:a:b"}); tenant.Key == absent.Key {
		t.Error("who has no tenant is one")
	}
	if strings.Contains(p.log.String(), "al/i") || strings.Contains(p.log.String(), "db8") {
		t.Errorf("log %s", p.log)
	}
}

// A consumer that is known by its address is found by it, however the address is written.
func TestConsumersByTheirAddress(t *testing.T) {
	p := newPlane(t)
	const set = `{version: weir/v1, identity: {consumer: [{header: x-api-key}, client_ip]},
		policies: [{name: api, partition: [consumer], limit: {quota: 5, window: 1m}}]}`
	if w := p.do(call{who: "root", method: "PUT", path: "/v1/policyset", header: map[string]string{"If-Match": `"0"`}, body: set}); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	key := func(value string) string {
		return p.key(t, call{who: "eyes", method: "GET",
			path: "/v1/keys/api?source=client_ip&partition=consumer:" + value}).Key
	}
	if key("2001:db8::1") != key("2001:DB8:0:0:9::") || key("10.0.0.1") != key("::ffff:10.0.0.1") ||
		key("10.0.0.1") == key("10.0.0.2") {
		t.Error("addresses of one client are several, or those of several are one")
	}
	ban := call{who: "ed", method: "PUT", path: "/v1/consumers/10.0.0.1?source=client_ip", header: map[string]string{"If-Match": `"0"`}, body: `{"banned": {}}`}
	if w := p.do(ban); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	consumer := match.ConsumerKey(keyhash.Key{1}, policy.Source{Kind: policy.SourceClientIP}, "\x0a\x00\x00\x01")
	w := p.do(call{who: "envoy", method: "POST", path: "/node/v1/consumers",
		body: string(wire.AppendQuestion(nil, []keyhash.Key{consumer}))})
	var m wire.Consumers
	if err := wire.DecodeConsumers(w.Body.Bytes(), &m); err != nil || len(m.Items) != 1 ||
		len(m.Items[0].Exceptions) == 0 {
		t.Errorf("a node hears of no ban: %v %+v", err, m)
	}
	for _, path := range []string{"/v1/consumers/ten?source=client_ip",
		"/v1/keys/api?source=client_ip&partition=consumer:ten"} {
		p.problem(p.do(call{who: "eyes", method: "GET", path: path}), 400, "bad-request")
	}
}

// A consumer's own limit is the one by which its buckets are looked at, changed and described.
// Whatever nodes know of consumers by then, all others are too.
func TestKeysOfAConsumerWithALimitOfItsOwn(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: api, partition: [consumer], limit: {quota: 10, window: 1h}, mode: strict}
  - {name: all, partition: [], limit: {quota: 10, window: 1h}, mode: strict}
`); w.Code != 200 {
		t.Fatal(w.Body)
	}
	w := p.do(call{"ed", "PUT", "/v1/consumers/alice", map[string]string{"If-Match": `"0"`},
		`{"overrides": [{"policy": "api", "limit": {"quota": 500, "window": "1h"}}]}`})
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	secret, err := p.hub.Secret()
	if err != nil {
		t.Fatal(err)
	}
	consumer := match.ConsumerKey(secret, policy.Source{Kind: policy.SourceHeader, Name: "x-api-key"}, "alice")
	bucketOf := func(path string) keyhash.Key { // Nodes hear of buckets that a reset has filled.
		t.Helper()
		p.key(t, call{"ed", "POST", path, nil, `{"reason": "to begin with"}`})
		var m wire.Enforcement
		w := p.do(call{who: "envoy", method: "GET", path: "/node/v1/snapshot?after=1&node=n&wait=5s&enforcement=0"})
		if err := wire.DecodeEnforcement(w.Body.Bytes(), &m); err != nil || len(m.Freed) == 0 {
			t.Fatalf("%d %v %+v", w.Code, err, m)
		}
		return m.Freed[len(m.Freed)-1].Bucket
	}
	spend := func(it wire.LeaseItem) {
		t.Helper()
		it.Cost, it.ExceptionsRevision = 1, 1
		w := p.do(call{who: "envoy", method: "POST", path: "/node/v1/leases", body: string(wire.AppendLeaseRequest(nil,
			wire.LeaseRequest{Node: "n", Boot: 1, Seq: 1, Version: 1, Items: []wire.LeaseItem{it}}))})
		if w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	const own = "/v1/keys/api?partition=consumer:alice"
	spend(wire.LeaseItem{Bucket: bucketOf("/v1/keys/api/reset?partition=consumer:alice"), Waiting: 20, Position: 1,
		Consumer: keyhash.Key(consumer)})
	spend(wire.LeaseItem{Bucket: bucketOf("/v1/keys/all/reset"), Limit: 1, Waiting: 3})
	for path, want := range map[string][2]int64{own: {500, 480}, "/v1/keys/api?partition=consumer:bob": {10, 10},
		"/v1/keys/all": {10, 7}} {
		got := p.key(t, call{who: "eyes", method: "GET", path: path})
		if len(got.Buckets) != 1 || got.Buckets[0].Burst != want[0] || got.Buckets[0].Level != want[1] {
			t.Errorf("%s: %+v, want a burst of %d and a level of %d", path, got.Buckets, want[0], want[1])
		}
	}
	usage := decoded[api.UsageAnswer](t, p.do(call{method: "GET", path: "/v1/usage",
		header: map[string]string{"X-Api-Key": "alice"}}))
	if len(usage.Limits) != 1 || usage.Limits[0].Quota != 500 || usage.Limits[0].Remaining != 480 {
		t.Errorf("%+v", usage)
	}
}

// Used tokens are given back, at most all of them. Nodes hear which buckets to ask about again, and
// the audit has it all.
func TestKeysAreResetAndGranted(t *testing.T) {
	p := withKeysPlane(t)
	const path = "/v1/keys/shared?partition=header:x-tenant:acme"
	freed := func(after uint64) (m wire.Enforcement) {
		t.Helper()
		w := p.do(call{who: "envoy", method: "GET", path: "/node/v1/snapshot?after=1&node=n&wait=5s&enforcement=" + strings.Trim(etagOf(after), `"`)})
		if err := wire.DecodeEnforcement(w.Body.Bytes(), &m); err != nil {
			t.Fatalf("%d %v", w.Code, err)
		}
		return m
	}
	// Learn the bucket from the message that nodes get after the first reset.
	if got := p.key(t, call{"ed", "POST", strings.Replace(path, "shared?", "shared/reset?", 1), nil, `{"reason": "to begin with"}`}); got.Buckets[0].Level != 5 {
		t.Errorf("%+v", got)
	}
	m := freed(0)
	if len(m.Freed) != 1 || !m.Freed[0].Full {
		t.Fatalf("%+v", m)
	}
	p.spend(t, m.Freed[0].Bucket, 5, 4)
	time.Sleep(100 * time.Millisecond) // Until then the tokens of waiting requests count as leased.
	if got := p.key(t, call{who: "eyes", method: "GET", path: path}); got.Buckets[0].Level != 1 ||
		got.Buckets[0].Used != 4 || got.Buckets[0].Leased != 0 {
		t.Fatalf("%+v", got)
	}
	got := p.key(t, call{"ed", "POST", strings.Replace(path, "shared?", "shared/grant?", 1), nil, `{"tokens": 3, "reason": "sorry"}`})
	if b := got.Buckets[0]; b.Given != 3 || b.Level != 4 {
		t.Errorf("%+v", got)
	}
	if m = freed(m.Revision); len(m.Freed) != 2 || m.Freed[1].Full {
		t.Errorf("%+v", m)
	}
	got = p.key(t, call{"ed", "POST", strings.Replace(path, "shared?", "shared/grant?", 1), nil, `{"tokens": 300, "reason": "very sorry"}`})
	if b := got.Buckets[0]; b.Given > 1 || b.Level != 5 {
		t.Errorf("%+v", got)
	}
	// A local policy's buckets are the nodes'.
	here := p.key(t, call{"ed", "POST", "/v1/keys/here/reset", nil, `{"reason": "again"}`})
	if here.Where != "nodes" || len(here.Buckets) != 0 {
		t.Errorf("%+v", here)
	}
	if m = freed(m.Revision); len(m.Freed) != 4 || !m.Freed[3].Full {
		t.Errorf("%+v", m)
	}
	p.problem(p.do(call{"ed", "POST", "/v1/keys/here/grant", nil, `{"tokens": 1, "reason": "x"}`}), 409, "local-policy")
	w := p.do(call{who: "eyes", method: "GET", path: "/v1/audit"})
	for _, want := range []string{`"key.reset"`, `"key.grant"`, `"reason":"very sorry"`, `keys/shared/` + got.Key, `keys/here/`} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("the audit lacks %s: %s", want, w.Body)
		}
	}
}

// A change that ends after some of the buckets says which were changed, since a second grant would
// give them their tokens twice. Nodes ask again about these.
func TestSomeBucketsOfAKeyAreChanged(t *testing.T) {
	p := withKeysPlane(t)
	for _, c := range []struct {
		verb, body string
		changes    int
		detail     string
		freed      int
	}{
		{"grant", `{"tokens": 3, "reason": "x"}`, 1, "1 of 2 buckets has been changed (premium, 100 per 1m), then the store does not answer; " +
			"to grant again gives these their tokens twice: look with weir keys get first", 1},
		{"reset", `{"reason": "x"}`, 1, "1 of 2 buckets has been changed (premium, 100 per 1m), then the store does not answer; " +
			"reset again, which is no harm to these", 2},
		{"grant", `{"tokens": 3, "reason": "x"}`, 0, "the store does not answer; try again", 2},
	} {
		p.store.changes, p.store.unable = c.changes, errors.New("secret internals")
		w := p.do(call{"ed", "POST", "/v1/keys/api/" + c.verb + alice, nil, c.body})
		if got := p.problem(w, 503, "store-unavailable"); got.Detail != c.detail {
			t.Errorf("%s after %d changes: %s", c.verb, c.changes, got.Detail)
		}
		var m wire.Enforcement
		w = p.do(call{who: "envoy", method: "GET", path: "/node/v1/snapshot?after=1&node=n&wait=5s&enforcement=0"})
		if err := wire.DecodeEnforcement(w.Body.Bytes(), &m); err != nil || len(m.Freed) != c.freed {
			t.Errorf("%s after %d changes: nodes hear of %+v, %v", c.verb, c.changes, m.Freed, err)
		}
	}
}

// The store answers, and yet a bucket cannot be changed or looked at: the answer says why.
func TestWhyABucketIsNotChanged(t *testing.T) {
	p := withKeysPlane(t)
	for err, want := range map[error]string{
		leases.ErrBusy: "the bucket was used at each of 1000 attempts to change it, " +
			"and nothing has been changed in it: try again, or ban the key first",
		leases.ErrStale: "the policy set is being changed just now: try again",
		leases.ErrPart:  "this region does not know its share of the limits: weir get regions says why",
	} {
		p.store.unable = err
		got := p.problem(p.do(call{"ed", "POST", "/v1/keys/shared/reset", nil, `{"reason": "x"}`}), 503, "store-unavailable")
		if got.Detail != want {
			t.Errorf("%v: %s", err, got.Detail)
		}
	}
}

func TestKeysAreBanned(t *testing.T) {
	p := withKeysPlane(t)
	ban := call{"ed", "POST", "/v1/keys/api/ban" + alice, nil, `{"reason": "tries passwords", "expires_at": "2040-01-02T03:04:05Z"}`}
	got := p.key(t, ban)
	if got.Ban == nil || got.Ban.Reason != "tries passwords" || got.Ban.By != "ed" || got.Ban.Expires.Year() != 2040 ||
		len(got.Buckets) != 3 {
		t.Fatalf("%+v", got)
	}
	w := p.do(call{who: "envoy", method: "GET", path: "/node/v1/snapshot?after=1&node=n&wait=5s&enforcement=0"})
	var m wire.Enforcement
	if err := wire.DecodeEnforcement(w.Body.Bytes(), &m); err != nil || len(m.Bans) != 1 ||
		hex.EncodeToString(m.Bans[0].Key[:]) != got.Key || m.Bans[0].Expires != got.Ban.Expires.UnixMilli() {
		t.Errorf("%v %+v", err, m)
	}
	// It works without the store.
	p.store.mode.Store("away")
	p.eventually("/readyz/store", 503)
	ban.body = `{"reason": "still does"}`
	if got = p.key(t, ban); got.Durable || got.Ban.Reason != "still does" || got.Ban.Expires != nil {
		t.Errorf("%+v", got)
	}
	p.store.mode.Store("")
	p.eventually("/readyz/store", 200)
	lift := call{who: "ed", method: "DELETE", path: "/v1/keys/api/ban" + alice}
	if got = p.key(t, lift); got.Ban != nil {
		t.Errorf("%+v", got)
	}
	p.problem(p.do(lift), 404, "not-found")
	// Keys that are orders' business share their list of changes, and nothing of a value is kept.
	w = p.do(call{who: "eyes", method: "GET", path: "/v1/audit"})
	if text := w.Body.String(); strings.Count(text, `"key.ban"`) != 2 || strings.Count(text, `"key.unban"`) != 1 || strings.Contains(text, "al/i") {
		t.Errorf("audit %s", text)
	}
}

func TestThereAreSoManyBans(t *testing.T) {
	p := withKeysPlane(t)
	d := enforcement.Document{Revision: uint64(time.Now().UnixMilli()),
		Bans: enforcement.Bans{Stamp: enforcement.Stamp{ID: "many"}}}
	for n := range wire.MaxBans {
		d.Bans.List = append(d.Bans.List, enforcement.Ban{Policy: "shared", Key: fmt.Sprintf("%032x", n), Reason: "x"})
	}
	kept := enforcement.Kept{In: p.store}
	if err := kept.WriteEnforcement(t.Context(), enforcement.Write{Document: d}); err != nil {
		t.Fatal(err)
	}
	p.problem(p.do(call{"ed", "POST", "/v1/keys/shared/ban", nil, `{"reason": "one more"}`}), 409, "too-many-bans")
}

func TestKeysAreRefused(t *testing.T) {
	p := withKeysPlane(t)
	const reason = `{"reason": "x"}`
	for _, c := range []struct {
		name   string
		call   call
		status int
		kind   string
	}{
		{"no such policy", call{who: "eyes", method: "GET", path: "/v1/keys/none"}, 404, "not-found"},
		{"a part is missing", call{who: "eyes", method: "GET", path: "/v1/keys/address"}, 400, "bad-request"},
		{"a part too many", call{who: "eyes", method: "GET",
			path: "/v1/keys/address?partition=client_ip:10.0.0.1&partition=method:GET"}, 400, "bad-request"},
		{"a part twice", call{who: "eyes", method: "GET",
			path: "/v1/keys/address?partition=client_ip:10.0.0.1&partition=client_ip:10.0.0.1"}, 400, "bad-request"},
		{"an empty value", call{who: "eyes", method: "GET", path: "/v1/keys/address?partition=client_ip:"}, 400,
			"bad-request"},
		{"no address", call{who: "eyes", method: "GET", path: "/v1/keys/address?partition=client_ip:localhost"}, 400,
			"bad-request"},
		{"which of two sources", call{who: "eyes", method: "GET",
			path: "/v1/keys/api?partition=consumer:a&partition=method:GET"}, 400, "bad-request"},
		{"a node reads", call{who: "envoy", method: "GET", path: "/v1/keys/here"}, 403, "forbidden"},
		{"nobody reads", call{method: "GET", path: "/v1/keys/here"}, 401, "unauthorized"},
		{"no such key route", call{who: "eyes", method: "GET", path: "/v1/keys/here?x=1"}, 400, "bad-request"},
	} {
		t.Run(c.name, func(t *testing.T) { p.problem(p.do(c.call), c.status, c.kind) })
	}
	for path, body := range map[string]string{"reset": reason, "grant": `{"tokens": 1, "reason": "x"}`, "ban": reason} {
		path := "/v1/keys/shared/" + path
		post := func(who, path, body string, header ...string) call {
			c := call{who: who, method: "POST", path: path, body: body}
			if len(header) > 0 {
				c.header = map[string]string{header[0]: header[1]}
			}
			return c
		}
		for _, c := range []struct {
			name   string
			call   call
			status int
			kind   string
		}{
			{"nobody", post("", path, body), 401, "unauthorized"},
			{"a viewer", post("eyes", path, body), 403, "forbidden"},
			{"no policy", post("ed", strings.Replace(path, "shared", "none", 1), body), 404, "not-found"},
			{"no reason", post("ed", path, `{}`), 400, "bad-request"},
			{"an empty reason", post("ed", path, strings.Replace(body, `"x"`, `" "`, 1)), 400, "bad-request"},
			{"too large", post("ed", path, strings.Repeat(" ", 5000)), 413, "too-large"},
			{"encoded", post("ed", path, body, "Content-Encoding", "gzip"), 415, "unsupported-media-type"},
		} {
			t.Run(path+" "+c.name, func(t *testing.T) { p.problem(p.do(c.call), c.status, c.kind) })
		}
	}
	p.problem(p.do(call{"ed", "POST", "/v1/keys/here/ban", nil, `{"reason": "x", "expires_at": "2020-01-01T00:00:00Z"}`}), 400, "bad-request")
	p.problem(p.do(call{who: "ed", method: "DELETE", path: "/v1/keys/address/ban"}), 400, "bad-request")
	p.problem(p.do(call{method: "DELETE", path: "/v1/keys/here/ban"}), 401, "unauthorized")
	p.problem(p.do(call{who: "eyes", method: "DELETE", path: "/v1/keys/here/ban"}), 403, "forbidden")
	p.problem(p.do(call{who: "ed", method: "DELETE", path: "/v1/keys/here/ban",
		header: map[string]string{"Content-Encoding": "gzip"}}), 415, "unsupported-media-type")
	blind := newPlaneOn(t, "away", func(*api.Config) {})
	blind.problem(blind.do(call{"ed", "POST", "/v1/keys/shared/ban", nil, reason}), 503, "store-unavailable")
	blind.problem(blind.do(call{who: "ed", method: "DELETE", path: "/v1/keys/shared/ban"}), 503, "store-unavailable")
	blind.problem(blind.do(call{who: "eyes", method: "GET", path: "/v1/keys/shared"}), 503, "store-unavailable")
	p.store.mode.Store("away")
	p.problem(p.do(call{"ed", "POST", "/v1/keys/shared/reset", nil, reason}), 503, "store-unavailable")
	p.problem(p.do(call{"ed", "POST", "/v1/keys/shared/grant", nil, `{"tokens": 1, "reason": "x"}`}), 503, "store-unavailable")
}

// A bucket has one name, wherever it is shown: keys finds the buckets that top and why name.
func TestABucketHasOneName(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, limited); w.Code != 200 {
		t.Fatal(w.Body)
	}
	k := p.key(t, call{"eyes", "GET", "/v1/keys/a?partition=consumer:alice", nil, ""})
	if len(k.Buckets) != 1 {
		t.Fatalf("%+v", k)
	}
	bucket, err := keyhash.Parse(k.Buckets[0].Bucket)
	if err != nil {
		t.Fatal(err)
	}
	who := wire.CallerCount{Bucket: bucket, Count: 3}
	w := p.postReport(&wire.Decisions{Node: []byte("envoy-1"), Version: 1,
		Counts: []wire.RefusedCount{{Refused: 3}}, Refusals: []wire.Refusal{{CallerCount: who, Source: 3, Cost: 1}}})
	if w.Code != 204 {
		t.Fatal(w.Code, w.Body)
	}
	for _, path := range []string{"/v1/top?policy=a", "/v1/decisions?policy=a&partition=consumer:alice"} {
		w := p.do(call{"eyes", "GET", path, nil, ""})
		if !strings.Contains(w.Body.String(), `"key":"`+bucket.String()+`"`) {
			t.Errorf("%s does not know %s: %s", path, bucket, w.Body)
		}
	}
}
