package api_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/wire"
)

const withUsage = `
version: weir/v1
tiers: [free, premium]
identity: {consumer: [{jwt: sub}, {header: x-api-key}, {cookie: session}], tier: [assignment], default_tier: free}
policies:
  - {name: api, partition: [consumer], limits: {free: {quota: 10, window: 1h}, premium: {quota: 100, window: 1h}}}
  - {name: all, partition: [consumer, tier], limit: [{quota: 7, window: 1m}, {quota: 70, window: 1h}]}
  - {name: watched, partition: [consumer], limit: {quota: 3, window: 1h}, enforcement: shadow}
  - {name: here, partition: [consumer], limit: {quota: 10, window: 1h}, mode: local}
  - {name: paths, partition: [consumer, path], limit: {quota: 10, window: 1h}}
  - {name: asleep, partition: [consumer], limit: {quota: 10, window: 1h}, enforcement: off}
`

func usage(key string) call {
	return call{method: "GET", path: "/v1/usage", header: map[string]string{"X-Api-Key": key}}
}

// Callers see their own quota and need no token for it. An unknown key looks like an unused key.
func TestUsage(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, withUsage); w.Code != 200 {
		t.Fatal(w.Body)
	}
	if w := p.do(call{"ed", "PUT", "/v1/consumers/alice?source=header:x-api-key", map[string]string{"If-Match": `"0"`}, `{"tier": "premium"}`}); w.Code != 200 {
		t.Fatal(w.Body)
	}
	ask := func(c call) (got api.UsageAnswer) {
		t.Helper()
		w := p.do(c)
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 ||
			w.Header().Get("Cache-Control") != "no-store" {
			t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
		}
		return got
	}
	free := `{"tier":"free","limits":[{"policy":"api","limit":"10 per 1h","quota":10,"remaining":10,"full_after_seconds":0},` +
		`{"policy":"all","limit":"7 per 1m","quota":7,"remaining":7,"full_after_seconds":0},{"policy":"all","limit":"70 per 1h","quota":70,"remaining":70,"full_after_seconds":0},` +
		`{"policy":"watched","limit":"3 per 1h","quota":3,"remaining":3,"full_after_seconds":0}]}`
	for _, c := range []call{usage("nobody"), usage("bob"),
		{method: "GET", path: "/v1/usage", header: map[string]string{"Cookie": "session=alice"}}} {
		if got := strings.TrimSpace(p.do(c).Body.String()); got != free {
			t.Errorf("%v: %s", c.header, got)
		}
	}
	// Tokens that alice has used are missing for alice alone.
	k := p.key(t, call{"ed", "POST", "/v1/keys/api/reset?partition=consumer:alice&source=header:x-api-key", nil, `{"reason": "to learn the buckets"}`})
	w := p.do(call{who: "envoy", method: "GET", path: "/node/v1/snapshot?after=1&node=n&wait=5s&enforcement=0"})
	var m wire.Enforcement
	if err := wire.DecodeEnforcement(w.Body.Bytes(), &m); err != nil || len(m.Freed) != 1 || len(k.Buckets) != 2 {
		t.Fatalf("%v %+v", err, m)
	}
	p.spend(t, m.Freed[0].Bucket, 1, 30) // Both tiers share it.
	got := ask(usage("alice"))
	if got.Tier != "premium" || got.Limits[0].Quota != 100 || got.Limits[0].Remaining != 70 ||
		got.Limits[0].FullAfterSeconds <= 0 {
		t.Errorf("%+v", got)
	}
	if strings.Contains(p.log.String(), "alice") || strings.Contains(p.log.String(), "nobody") {
		t.Errorf("log %s", p.log)
	}
	p.problem(p.do(call{method: "GET", path: "/v1/usage"}), 400, "bad-request")
	p.problem(p.do(usage(strings.Repeat("x", 2000))), 400, "bad-request")
	p.problem(p.do(call{method: "GET", path: "/v1/usage?x=1"}), 400, "bad-request")
	p.store.mode.Store("away")
	p.problem(p.do(usage("bob")), 503, "store-unavailable")
	p.problem(newPlane(t).do(usage("bob")), 409, "no-consumers")
}

// During a rollout a caller sees the limits of the tier that it has in each version.
func TestUsageGoesByTheTiersOfEachVersion(t *testing.T) {
	const header = "version: weir/v1\nidentity: {consumer: [{header: x-api-key}]"
	plain := header + "}\npolicies:\n  - {name: a, partition: [consumer], limit: {quota: 9, window: 1h}}\n"
	tiers := func(names, byDefault, partition, limits string) string {
		return header + ", tier: [assignment], default_tier: " + byDefault + "}\ntiers: [" + names + "]\n" +
			"policies:\n  - {name: a, partition: [" + partition + "], " + limits + "}\n"
	}
	const each = "limits: {free: {quota: 3, window: 1h}, gold: {quota: 30, window: 1h}}"
	const renamed = "limits: {basic: {quota: 4, window: 1h}, gold: {quota: 30, window: 1h}}"
	const one = "limit: {quota: 5, window: 1h}"
	free, gold := tiers("free, gold", "free", "consumer", each), tiers("free, gold", "gold", "consumer", each)
	for _, c := range []struct{ current, draft, tier, want string }{
		{plain, free, "", "9 v1, 3 v2"},
		{free, plain, "free", "3 v1, 9 v2"},
		{free, tiers("basic, gold", "basic", "consumer", renamed), "free", "3 v1, 4 v2"},
		{free, gold, "free", "3 v1, 30 v2"},
		{free, free + "# the same\n", "free", "3 v0"},
		{tiers("free, gold", "free", "consumer, tier", one), tiers("free, gold", "gold", "consumer, tier", one), "free",
			"5 v1, 5 v2"},
	} {
		p := newPlane(t)
		if w := p.put(`"0"`, c.current); w.Code != 200 {
			t.Fatal(w.Body)
		}
		draft := call{"ed", "PUT", "/v1/policyset?nodes=50", map[string]string{"If-Match": `"1"`}, c.draft}
		if w := p.do(draft); w.Code != 200 {
			t.Fatal(w.Body)
		}
		got := decoded[api.UsageAnswer](t, p.do(usage("alice")))
		var lines []string
		for _, l := range got.Limits {
			lines = append(lines, fmt.Sprintf("%d v%d", l.Quota, l.Version))
		}
		if all := strings.Join(lines, ", "); all != c.want || got.Tier != c.tier {
			t.Errorf("tier %q: %s, want %q: %s; of\n%s\n%s", got.Tier, all, c.tier, c.want, c.current, c.draft)
		}
	}
}

// During a rollout that finds consumers elsewhere a caller is found by each version as its Envoys
// find it: a caller of the draft alone is answered too.
func TestUsageFindsCallersAsEachVersionDoes(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, otherHeader("x-a")); w.Code != 200 {
		t.Fatal(w.Body)
	}
	draft := call{"ed", "PUT", "/v1/policyset?nodes=50", map[string]string{"If-Match": `"1"`}, otherHeader("x-b")}
	if w := p.do(draft); w.Code != 200 {
		t.Fatal(w.Body)
	}
	p.must("PUT", "/v1/consumers/bob?source=header:x-b", `{"banned": {"reason": "abuse"}}`)
	for _, c := range []struct{ a, b, want string }{
		{"alice", "", "9 v1"}, {"", "alice", "9 v2"}, {"alice", "alice", "9 v1, 9 v2"}, {"", "bob", "9 v2, ban v2"},
		{"alice", "bob", "9 v1, 9 v2, ban v2"},
	} {
		header := map[string]string{}
		for name, value := range map[string]string{"X-A": c.a, "X-B": c.b} {
			if value != "" {
				header[name] = value
			}
		}
		got := decoded[api.UsageAnswer](t, p.do(call{method: "GET", path: "/v1/usage", header: header}))
		var words []string
		for _, l := range got.Limits {
			words = append(words, fmt.Sprintf("%d v%d", l.Quota, l.Version))
		}
		for _, one := range got.Standing {
			words = append(words, fmt.Sprintf("%s v%d", one.What, one.Version))
		}
		if all := strings.Join(words, ", "); all != c.want {
			t.Errorf("x-a %q, x-b %q: %s, want %s", c.a, c.b, all, c.want)
		}
	}
	got := p.problem(p.do(call{method: "GET", path: "/v1/usage"}), 400, "bad-request")
	if want := "in one of: header:x-a header:x-b"; !strings.HasSuffix(got.Detail, want) {
		t.Errorf("a caller without a key hears %q, want %q", got.Detail, want)
	}
}

// During a rollout a question is charged to the key of each version: beside a header that only the
// other version reads, which anyone can invent, a key has no more questions.
func TestUsageIsChargedToTheKeyOfEachVersion(t *testing.T) {
	p := newPlaneWith(t, func(c *api.Config) {
		c.TokenRate = 30
		now := time.Unix(1_000_000, 0)
		c.Now = func() time.Time { return now }
	})
	if w := p.put(`"0"`, otherHeader("x-a")); w.Code != 200 {
		t.Fatal(w.Body)
	}
	draft := call{"ed", "PUT", "/v1/policyset?nodes=50", map[string]string{"If-Match": `"1"`}, otherHeader("x-b")}
	if w := p.do(draft); w.Code != 200 {
		t.Fatal(w.Body)
	}
	got := map[int]int{}
	for n := range 300 {
		r := httptest.NewRequest("GET", "/v1/usage", nil)
		r.RemoteAddr = fmt.Sprintf("10.0.%d.%d:1", n/100, n%100)
		r.Header.Set("X-A", fmt.Sprint("invented ", n))
		r.Header.Set("X-B", "bob")
		w := httptest.NewRecorder()
		p.handler.ServeHTTP(w, r)
		got[w.Code]++
	}
	if got[200] == 0 || got[429] < 200 || got[200]+got[429] != 300 {
		t.Errorf("300 questions at once get %v, want most refused with 429", got)
	}
}
