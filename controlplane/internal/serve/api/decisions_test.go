package api_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const limited = `
version: weir/v1
show: [path]
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: a, partition: [consumer], limit: {quota: 10, window: 1m}}
  - {name: c, partition: [consumer], limit: {quota: 10, window: 1m}}
`

// report is a node's report: alice was refused, and another caller made requests.
func (p *plane) report() string {
	p.t.Helper()
	secret, err := p.hub.Secret()
	if err != nil {
		p.t.Fatal(err)
	}
	alice := match.ConsumerKey(secret, policy.Source{Kind: policy.SourceHeader, Name: "x-api-key"}, "alice")
	who := wire.CallerCount{Bucket: keyhash.Key{1},
		Identity: wire.Identity{Consumer: alice, Shown: append([]byte{0, 2}, "/x"...)}, Count: 3}
	return reported(&wire.Decisions{Node: []byte("envoy-1"), Version: 1,
		Counts:   []wire.RefusedCount{{Refused: 3}},
		Refusals: []wire.Refusal{{CallerCount: who, Source: 3, Cost: 1, Retry: 6 * quota.Second}},
		Callers:  []wire.CallerCount{{Bucket: keyhash.Key{2}, Count: 32, Over: 16}},
	})
}

func TestWhyACallerWasLimited(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, limited); w.Code != 200 {
		t.Fatal(w.Body)
	}
	if w := p.do(call{"envoy", "POST", "/node/v1/report", nil, p.report()}); w.Code != 204 {
		t.Fatal(w.Code, w.Body)
	}
	got := decoded[api.DecisionsAnswer](t, p.do(call{"eyes", "GET", "/v1/decisions?consumer=alice", nil, ""}))
	if len(got.Decisions) != 1 || !got.Complete {
		t.Fatalf("%+v", got)
	}
	d := got.Decisions[0]
	if d.Node != "envoy-1" || d.Policy != "a" || d.Limit != "10 per 1m" || d.From != "policy" || d.Mode != "leased" ||
		d.Source != "central" || d.Reason != "quota" ||
		d.Shown["path"] != "/x" || d.Ends == nil || d.Ends.Sub(d.At) != 6*time.Second || d.Now == nil ||
		d.Now.Tokens != 10 || d.Now.Of != 10 {
		t.Errorf("%+v", d)
	}
	for query, want := range map[string]int{"": 1, "consumer=bob": 0, "policy=c": 0,
		"policy=a&consumer=alice&source=header:x-api-key": 1, "policy=a&key=" + d.Key: 1, "policy=c&key=" + d.Key: 0,
		"key=" + strings.Repeat("0", 32): 0, "since=2099-01-01T00:00:00Z": 0} {
		got = decoded[api.DecisionsAnswer](t, p.do(call{"eyes", "GET", "/v1/decisions?" + query, nil, ""}))
		if len(got.Decisions) != want {
			t.Errorf("%s: %+v", query, got)
		}
	}
	top := decoded[api.TopAnswer](t, p.do(call{"eyes", "GET", "/v1/top", nil, ""}))
	if len(top.Callers) != 1 || top.Callers[0].Consumer != d.Consumer || top.Callers[0].Count != 3 || top.Refused != 3 {
		t.Errorf("%+v", top)
	}
	top = decoded[api.TopAnswer](t, p.do(call{"eyes", "GET", "/v1/top?by=requests&policy=a&page_size=1", nil, ""}))
	if len(top.Callers) != 1 || top.Callers[0].Count != 32 || top.Callers[0].Over != 16 {
		t.Errorf("%+v", top)
	}
	if strings.Contains(p.log.String(), "alice") {
		t.Errorf("the log names a consumer: %s", p.log.String())
	}
	p.seeSeries()
}

// seeSeries asks for the history after one report, of 3 refusals and 32 requests.
func (p *plane) seeSeries() {
	p.t.Helper()
	if err := p.past.Tick(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	for query, want := range map[string]float64{
		"": 3, "?outcome=requests": 32, "?by=node&node=envoy-1": 3, "?by=all&range=24h&step=1h": 3, "?policy=c": 0,
		"?outcome=tokens&policy=a": 0, "?range=24h&page_size=1&outcome=refused&outcome=requests": 32,
	} {
		got := decoded[api.SeriesAnswer](p.t, p.do(call{"eyes", "GET", "/v1/series" + query, nil, ""}))
		if !got.Complete || len(got.Series) != 1 || got.Series[0].Total != want ||
			int64(len(got.Series[0].Values))*got.StepSeconds != int64(got.Until.Sub(got.From)/time.Second) {
			p.t.Errorf("%s: %+v", query, got)
		}
	}
	for _, query := range []string{
		"?range=2h", "?step=2m", "?range=24h&step=10s", "?by=node&policy=a", "?by=policy&node=n", "?by=all&policy=a",
		"?outcome=x",
	} {
		if w := p.do(call{"eyes", "GET", "/v1/series" + query, nil, ""}); w.Code != 400 {
			p.t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
	got := decoded[api.ComparisonAnswer](p.t, p.do(call{"eyes", "GET", "/v1/series/comparison", nil, ""}))
	if got.Outcome != "refused" || got.WindowSeconds != 300 || got.All.HourAgo != nil || got.All.DayAgo != nil {
		p.t.Errorf("%+v", got)
	}
	if w := p.do(call{"eyes", "GET", "/v1/series/comparison?outcome=x", nil, ""}); w.Code != 400 {
		p.t.Errorf("%d %s", w.Code, w.Body)
	}
	of := decoded[api.DistributionAnswer](p.t, p.do(call{"eyes", "GET", "/v1/policies/a/distribution", nil, ""}))
	if of.WindowSeconds != 60 || of.Suggestion != nil || len(of.Limits) != 1 || of.Limits[0].Limit != 10 {
		p.t.Errorf("%+v", of)
	}
	for path, want := range map[string]int{"a/distribution?limit=0": 400, "a/distribution?limit=1&limit=2": 200,
		"never/distribution": 404} {
		if w := p.do(call{"eyes", "GET", "/v1/policies/" + path, nil, ""}); w.Code != want {
			p.t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := p.do(call{"envoy", "GET", "/v1/series", nil, ""}); w.Code != 403 {
		p.t.Errorf("a node's token reads the history: %d", w.Code)
	}
}

// The history has the measures of nodes for the policies in force, and for no other policies.
func TestMeasuresAreKept(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, `
version: weir/v1
policies:
  - {name: a, partition: [], limit: {in_flight: 10}, mode: local}
`); w.Code != 200 {
		t.Fatal(w.Body)
	}
	message := func(node string) string {
		return reported(&wire.Measures{Node: []byte(node), Items: []wire.Measure{
			{Policy: []byte("a"), CandidateRefused: 3, ShadowRefused: 2, Busy: 1000, Used: 70},
			{Policy: []byte("b"), Used: 1},
		}})
	}
	for body, want := range map[string]int{message("envoy-1"): 204, message(""): 400} {
		if w := p.do(call{"envoy", "POST", "/node/v1/report", nil, body}); w.Code != want {
			t.Errorf("%.20q: %d %s", body, w.Code, w.Body)
		}
	}
	if err := p.past.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]float64{
		"candidate_refused": 3, "shadow_refused": 2, "utilisation": 70, "refused": 0,
	} {
		got := decoded[api.SeriesAnswer](t, p.do(call{"eyes", "GET", "/v1/series?outcome=" + query, nil, ""}))
		if len(got.Series) != 1 || got.Series[0].Policy != "a" || got.Series[0].Total != want {
			t.Errorf("%s: %+v", query, got)
		}
	}
	if w := p.do(call{"eyes", "POST", "/node/v1/report", nil, message("envoy-1")}); w.Code != 403 {
		t.Errorf("a viewer reports measures: %d", w.Code)
	}
}

// A refusal is found by the partition key of its policy, in whatever tier and by whichever limit it
// was.
func TestWhyAnAddressWasLimited(t *testing.T) {
	p := newPlane(t)
	const doc = `
version: weir/v1
tiers: [free, gold]
identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}
policies:
  - {name: login, partition: [client_ip], limit: [{quota: 10, window: 1m}, {quota: 5, window: 1s}]}
  - {name: tiered, partition: [client_ip, method], limits: {free: {quota: 10, window: 1m}, gold: {quota: 20, window: 1m}}}
`
	if w := p.put(`"0"`, doc); w.Code != 200 {
		t.Fatal(w.Body)
	}
	set, err := policydoc.Load([]byte(doc), policydoc.YAML)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := p.hub.Secret()
	if err != nil {
		t.Fatal(err)
	}
	refused := func(name, tier string, n int, limit uint32, of uint8, values ...string) wire.Refusal {
		var texts []match.Value
		for _, v := range values {
			texts = append(texts, match.Value{Text: []byte(v)})
		}
		index := uint32(slices.IndexFunc(set.Policies, func(p policy.Policy) bool { return p.Name == name }))
		bucket := match.NewPartition(secret, set, &set.Policies[index], texts).Bucket(tier,
			set.Policies[index].LimitsOf(slices.Index(set.Tiers, tier)), n, false)
		return wire.Refusal{CallerCount: wire.CallerCount{Policy: index, Tier: of, Bucket: bucket, Count: 1},
			Limit: limit, Source: 3, Cost: 1}
	}
	address := "\xc0\x00\x02\x01"
	w := p.postReport(&wire.Decisions{Node: []byte("envoy-1"), Version: 1, Refusals: []wire.Refusal{
		refused("login", "", 1, 1, 0, address), refused("tiered", "gold", 0, 3, 2, address, "GET"),
		refused("tiered", "free", 0, 2, 1, address, "PUT"),
	}})
	if w.Code != 204 {
		t.Fatal(w.Code, w.Body)
	}
	for query, want := range map[string]string{
		"policy=login&partition=client_ip:192.0.2.1":                       "login",
		"policy=login&partition=192.0.2.1":                                 "login",
		"policy=login&partition=192.0.2.2":                                 "",
		"policy=tiered&partition=client_ip:192.0.2.1&partition=method:GET": "tiered",
		"policy=tiered&partition=client_ip:192.0.2.1&partition=method:PUT": "tiered",
		"policy=tiered&partition=client_ip:192.0.2.1&partition=method:TOP": "",
		"policy=login&partition=192.0.2.1&consumer=alice":                  "",
	} {
		var got api.DecisionsAnswer
		w := p.do(call{"eyes", "GET", "/v1/decisions?" + query, nil, ""})
		var names []string
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
		for _, d := range got.Decisions {
			if names = append(names, d.Policy); d.Now == nil {
				t.Errorf("%s: the level is missing", query)
			}
		}
		if strings.Join(names, " ") != want {
			t.Errorf("%s: refusals of %v, want %q", query, names, want)
		}
	}
	p.problem(p.do(call{"eyes", "GET", "/v1/decisions?partition=client_ip:192.0.2.1", nil, ""}), 400, "bad-request")
	p.problem(p.do(call{"eyes", "GET", "/v1/decisions?policy=none&partition=x", nil, ""}), 404, "not-found")
	if log := p.log.String(); strings.Contains(log, "192.0.2") {
		t.Errorf("the log names an address: %s", log)
	}
}

func TestBadQuestionsAboutDecisions(t *testing.T) {
	p := newPlane(t)
	for _, path := range []string{"/v1/decisions?page_token=eA", "/v1/decisions?consumer=", "/v1/decisions?since=x",
		"/v1/top?by=name", "/v1/top?page_token="} {
		p.problem(p.do(call{"eyes", "GET", path, nil, ""}), 400, "bad-request")
	}
	p.problem(p.do(call{"eyes", "GET", "/v1/decisions?consumer=alice", nil, ""}), 409, "no-consumers")
	p.problem(p.postReport(&wire.Decisions{}), 400, "bad-request")
	if w := p.postReport(&wire.Decisions{Node: []byte("n"), Version: 9}); w.Code != 204 {
		t.Errorf("of an unknown version: %d", w.Code)
	}
}
