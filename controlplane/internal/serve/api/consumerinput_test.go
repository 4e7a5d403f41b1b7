package api_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

const byConsumer = `
version: weir/v1
tiers: [free, premium]
identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}
policies:
  - {name: api, partition: [consumer], limit: {quota: 100, window: 1m}}
  - {name: log, partition: [consumer, method], algorithm: sliding_log, limit: {quota: 10, window: 1m}}
  - {name: dear, partition: [consumer], limit: {quota: 10, window: 1m}, cost: 5}
  - {name: all, partition: [client_ip], limit: {quota: 100, window: 1m}}
`

func withPolicies(t *testing.T) *plane {
	p := newPlane(t)
	if w := p.do(call{who: "root", method: "PUT", path: "/v1/policyset", header: map[string]string{"If-Match": `"0"`}, body: byConsumer}); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return p
}

var whatever = map[string]string{"If-Match": "*"}

func TestAConsumerHasMoreThanATier(t *testing.T) {
	p := withPolicies(t)
	soon := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	body := fmt.Sprintf(`{"tier": "premium", "banned": {"reason": "abuse", "expires_at": %q}, "bypass": {"reason": "probe"},
		"overrides": [{"policy": "api", "limit": {"quota": 500, "window": "60s", "burst": 50}, "reason": "launch"},
			{"policy": "log", "limit": [{"quota": 20, "window": "1m"}, {"quota": 2, "window": "1s"}], "expires_at": %q},
			{"policy": "dear", "limit": "unlimited"}]}`, soon.Format(time.RFC3339), soon.Format(time.RFC3339))
	put := call{who: "ed", method: "PUT", path: "/v1/consumers/alice?dry_run=true", header: whatever, body: body}
	w := p.do(put)
	if w.Code != 200 || w.Header().Get("ETag") != "" {
		t.Fatalf("a dry run: %d %v %s", w.Code, w.Header(), w.Body)
	}
	p.problem(p.do(call{who: "eyes", method: "GET", path: "/v1/consumers/alice"}), 404, "not-found")
	put.path = "/v1/consumers/alice"
	if w = p.do(put); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for _, w := range []string{w.Body.String(),
		p.do(call{who: "eyes", method: "GET", path: "/v1/consumers/alice"}).Body.String()} {
		var got api.ConsumerAnswer
		if err := json.Unmarshal([]byte(w), &got); err != nil {
			t.Fatal(err)
		}
		if got.Banned.Reason != "abuse" || !got.Banned.ExpiresAt.Equal(soon) || got.Bypass.ExpiresAt != nil ||
			len(got.Overrides) != 3 ||
			string(got.Overrides[0].Limit) != `{"quota":500,"window":"1m","burst":50}` || got.Overrides[0].Reason != "launch" ||
			string(got.Overrides[1].Limit) != `[{"quota":20,"window":"1m"},{"quota":2,"window":"1s"}]` || string(got.Overrides[2].Limit) != `"unlimited"` {
			t.Errorf("%s", w)
		}
	}
	p.problem(p.do(call{who: "ed", method: "PUT", path: "/v1/consumers/alice?dry_run=true", header: map[string]string{"If-Match": `"7"`}, body: body}), 412, "changed-meanwhile")
	key := match.ConsumerKey(keyhash.Key{1}, policy.Source{Kind: policy.SourceHeader, Name: "x-api-key"}, "alice")
	question := string(wire.AppendQuestion(nil, []keyhash.Key{key}))
	var m wire.Consumers
	w = p.do(call{who: "envoy", method: "POST", path: "/node/v1/consumers", body: question})
	if err := wire.DecodeConsumers(w.Body.Bytes(), &m); err != nil || len(m.Items) != 1 {
		t.Fatalf("%v %+v", err, m)
	}
	banned, bypass := wire.Ends(m.Items[0].Exceptions)
	if string(m.Items[0].Tier) != "premium" || m.ExceptionsRevision != 1 || !m.HasExceptions ||
		banned != soon.UnixMilli() || bypass != wire.ForGood {
		t.Errorf("%+v: banned until %d, bypass until %d", m, banned, bypass)
	}
	for filter, want := range map[string]int{"?banned=true": 1, "?tier=premium": 1, "?tier=free": 0,
		"?banned=true&tier=free": 0, "?banned=false": 1} {
		list := decoded[api.ConsumersAnswer](t, p.do(call{who: "eyes", method: "GET", path: "/v1/consumers" + filter}))
		if len(list.Consumers) != want {
			t.Errorf("%s: %+v", filter, list)
		}
	}
}

func TestWhatAConsumerCannotHave(t *testing.T) {
	p := withPolicies(t)
	for body, want := range map[string]string{
		`{}`: ": says nothing: give a tier, overrides, banned or bypass; weir consumers delete or DELETE forgets a consumer",
		`{"tier": "gold", "banned": {"expires_at": "2020-01-01T00:00:00Z"}}`: "tier: must be one of the tiers free, premium\nbanned.expires_at: is over",
		`{"banned": {"reason": "\u001b[31mred"}, "bypass": {"reason": " "}}`: "banned.reason: must be one line of printable text\n" +
			"bypass.reason: must say why",
		`{"overrides": [{"policy": "api", "limit": "unlimited", "reason": "a\r\nb"}]}`:                              "overrides[0].reason: must be one line of printable text",
		`{"overrides": [{"policy": "none", "limit": "unlimited"}]}`:                                                 "overrides[0].policy: is none: the policy set has no policy \"none\"",
		`{"overrides": [{"policy": "all", "limit": {"quota": 1, "window": "1s"}}]}`:                                 "overrides[0].policy: \"all\" does not count by consumer: its partition has no part consumer",
		`{"overrides": [{"policy": "api", "limit": "unlimited"}, {"policy": "api", "limit": "unlimited"}]}`:         "overrides[1].policy: is overridden already",
		`{"overrides": [{"policy": "api", "limit": "much"}]}`:                                                       "overrides[0].limit: must be a mapping like {quota: 100, window: 1m}, a list of such, or unlimited",
		`{"overrides": [{"policy": "api", "limit": {"quota": 1, "window": "1x", "bust": 1}}]}`:                      "overrides[0].limit.window: must be a whole number with a unit",
		`{"overrides": [{"policy": "api", "limit": []}]}`:                                                           "overrides[0].limit: is empty",
		`{"overrides": [{"policy": "log", "limit": {"quota": 300, "window": "1m"}}]}`:                               "overrides[0].limit: ",
		`{"overrides": [{"policy": "log", "limit": {"quota": 3, "window": "1m", "burst": 2}}]}`:                     "overrides[0].limit.burst: is for token_bucket and leaky_bucket only",
		`{"overrides": [{"policy": "dear", "limit": {"quota": 4, "window": "1m"}}]}`:                                "overrides[0].limit: has a burst of 4 where a request costs 5",
		`{"overrides": [{"policy": "api", "limit": [{"quota": 1, "window": "1s"}, {"quota": 2, "window": "1s"}]}]}`: "overrides[0].limit[1].window: is the window of another limit in the list",
	} {
		for _, dry := range []string{"", "?dry_run=true"} {
			got := p.problem(p.do(call{who: "ed", method: "PUT", path: "/v1/consumers/alice" + dry, header: whatever,
				body: body}), 422, "invalid-consumer")
			for _, line := range strings.Split(want, "\n") {
				if !strings.Contains(": "+strings.TrimPrefix(got.Problems.Error(), ": "),
					strings.TrimPrefix(line, ": ")) {
					t.Errorf("%s%s: %v\nwant %s", body, dry, got.Problems, line)
				}
			}
		}
	}
}

// A part that stood before stays when another one changes, whatever the policy set says of it now:
// a ban must begin and end beside an override that sleeps and a tier that is gone. So it is when
// she is one of many that are put at once.
func TestAPartThatStoodStays(t *testing.T) {
	partStays(t, "", func(body string) call {
		return call{who: "ed", method: "PUT", path: "/v1/consumers/alice", header: whatever, body: body}
	})
	partStays(t, "consumers[1].", func(body string) call {
		items := `{"consumers": [{"id": "bob", "tier": "free"}, {"id": "alice", ` + strings.TrimPrefix(body, "{") + `]}`
		return call{who: "ed", method: "POST", path: "/v1/consumers", header: whatever, body: items}
	})
}

// partStays tries it with the calls that put makes, whose problems have paths that begin with at.
func partStays(t *testing.T, at string, put func(body string) call) {
	p := withPolicies(t)
	must := func(path, body string) {
		t.Helper()
		if w := p.do(call{who: "root", method: "PUT", path: path, header: whatever, body: body}); w.Code != 200 {
			t.Fatalf("%s %s: %d %s", path, body, w.Code, w.Body)
		}
	}
	const api = `{"policy": "api", "limit": {"quota": 500, "window": "1m", "burst": 50}, "reason": "launch"}`
	const log = `{"policy": "log", "limit": [{"quota": 20, "window": "1m"}, {"quota": 2, "window": "1s"}]}`
	must("/v1/consumers/alice", `{"tier": "premium", "overrides": [`+api+`, `+log+`]}`)
	must("/v1/policyset", strings.NewReplacer("name: api", "name: other", "tiers: [free, premium]", "tiers: [free]",
		"[consumer, method]", "[client_ip, method]").Replace(byConsumer))
	for _, body := range []string{
		`{"tier": "premium", "banned": {"reason": "abuse"}, "overrides": [` + api + `, ` + log + `]}`,
		`{"tier": "premium", "bypass": {}, "overrides": [` + log + `, ` + api + `]}`,
		`{"tier": "free", "overrides": [` + api + `, ` + log + `, {"policy": "dear", "limit": "unlimited"}]}`,
		`{"overrides": [` + api + `, ` + log + `]}`,
	} {
		if w := p.do(put(body)); w.Code != 200 {
			t.Fatalf("%s%s: %d %s", at, body, w.Code, w.Body)
		}
		w := p.do(call{who: "eyes", method: "GET", path: "/v1/consumers/alice"})
		if !strings.Contains(w.Body.String(), `"policy":"api","limit":{"quota":500,"window":"1m","burst":50},"reason":"launch"`) ||
			!strings.Contains(w.Body.String(), `[{"quota":20,"window":"1m"},{"quota":2,"window":"1s"}]`) {
			t.Errorf("after %s\n%s", body, w.Body)
		}
	}
	// A part that changes must fit the present policy set, and so must a part that was taken back.
	for body, want := range map[string]string{
		`{"tier": "premium", "overrides": [` + api + `, ` + log + `]}`:        "tier: must be one of the tiers free",
		`{"overrides": [` + strings.Replace(api, "500", "501", 1) + `]}`:      "overrides[0].policy: is none: the policy set has no policy \"api\"",
		`{"overrides": [` + strings.Replace(api, "launch", "other", 1) + `]}`: "overrides[0].policy: is none",
		`{"overrides": [` + api + `, ` + api + `]}`:                           "overrides[1].policy: is overridden already",
	} {
		got := p.problem(p.do(put(body)), 422, "invalid-consumer")
		if len(got.Problems) != 1 || !strings.HasPrefix(got.Problems[0].String(), at+want) {
			t.Errorf("%s%s: %v\nwant %s", at, body, got.Problems, want)
		}
	}
	p.store.mode.Store("away")
	p.problem(p.do(put(`{"banned": {}, "overrides": [`+api+`]}`)), 503, "store-unavailable")
	p.store.mode.Store("")
	must("/v1/policyset", byConsumer)
	must("/v1/consumers/alice", `{"tier": "premium", "overrides": [`+api+`]}`)
}

// A batch is put as a whole or not at all, and says which of many is wrong.
func TestManyConsumersAtOnce(t *testing.T) {
	p := withPolicies(t)
	put := func(query, body string) call {
		return call{who: "ed", method: "POST", path: "/v1/consumers" + query, header: whatever, body: body}
	}
	got := p.problem(p.do(put("", `{"consumers": [{"id": "a", "tier": "free"}, {"id": "b"}, {"id": "c", "tier": "gold"}, {"id": "a", "tier": "free"},
		{"id": "d", "source": "jwt:sub", "tier": "free"}, {"id": "e", "overrides": [{"policy": "all", "limit": "unlimited"}]}]}`)), 422, "invalid-consumer")
	var paths []string
	for _, one := range got.Problems {
		paths = append(paths, one.Path)
	}
	want := "consumers[1] consumers[2].tier consumers[3].id consumers[4].id consumers[5].overrides[0].policy"
	if strings.Join(paths, " ") != want {
		t.Errorf("%v\nwant %s", got.Problems, want)
	}
	p.problem(p.do(call{who: "eyes", method: "GET", path: "/v1/consumers/a"}), 404, "not-found")
	const two = `{"consumers": [{"id": "a", "tier": "free"}, {"id": "b", "banned": {}}]}`
	if w := p.do(put("?dry_run=true", two)); w.Code != 200 || w.Body.String() != `{"written":2,"dry_run":true}`+"\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	p.problem(p.do(call{who: "eyes", method: "GET", path: "/v1/consumers/a"}), 404, "not-found")
	for range 2 {
		if w := p.do(put("", two)); w.Code != 200 || w.Body.String() != `{"written":2,"dry_run":false}`+"\n" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	if w := p.do(call{who: "eyes", method: "GET", path: "/v1/consumers/b"}); w.Code != 200 || !strings.Contains(w.Body.String(), `"banned":{}`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := p.do(call{who: "root", method: "GET", path: "/v1/audit?resource=consumers"}); !strings.Contains(w.Body.String(), `"consumers.put"`) || !strings.Contains(w.Body.String(), `{"consumers":2}`) {
		t.Errorf("%s", w.Body)
	}
	if log := p.log.String(); strings.Contains(log, `"a"`) || !strings.Contains(log, `"consumers changed"`) {
		t.Errorf("%s", log)
	}
}

// A consumer's own limit can be under a policy that only the version of a rollout has, and its tier
// can be a tier of that version. If the version is cancelled, both sleep.
func TestAConsumerHasWhatARolloutBrings(t *testing.T) {
	p := newPlane(t)
	set := func(tiers, only string) string {
		return "version: weir/v1\ntiers: [" + tiers + `]
identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}
policies:
  - {name: ` + only + `, partition: [consumer], limit: {quota: 7, window: 1h}}
`
	}
	if w := p.put(`"0"`, set("free", "old")); w.Code != 200 {
		t.Fatal(w.Body)
	}
	const body = `"tier": "gold", "overrides": [{"policy": "new", "limit": {"quota": 50, "window": "1h"}}]`
	alice := call{"ed", "PUT", "/v1/consumers/alice", whatever, "{" + body + "}"}
	p.problem(p.do(alice), 422, "invalid-consumer")
	draft := call{"ed", "PUT", "/v1/policyset?nodes=50", map[string]string{"If-Match": `"1"`}, set("free, gold", "new")}
	if w := p.do(draft); w.Code != 200 {
		t.Fatal(w.Body)
	}
	if w := p.do(alice); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	batch := call{"ed", "POST", "/v1/consumers", whatever, `{"consumers": [{"id": "bob", ` + body + `}]}`}
	if w := p.do(batch); w.Code != 200 {
		t.Errorf("in a batch: %d %s", w.Code, w.Body)
	}
	for _, who := range []string{"alice", "bob"} {
		w := p.do(call{"eyes", "GET", "/v1/keys/new?partition=" + who, nil, ""})
		if !strings.Contains(w.Body.String(), `"burst":50`) {
			t.Errorf("%s: %s", who, w.Body)
		}
	}
	for _, one := range []string{`{"tier": "golt"}`, strings.Replace(alice.body, `"new"`, `"nwe"`, 1)} {
		w := p.do(call{"ed", "PUT", "/v1/consumers/carol", whatever, one})
		if !strings.Contains(w.Body.String(), "did you mean") {
			t.Errorf("%s: %s", one, w.Body)
		}
	}
	if w := p.rollout("DELETE", "/v1/rollout", "*", ""); w.Code >= 300 {
		t.Fatal(w.Body)
	}
	alice.body = `{` + body + `, "banned": {"reason": "leaked"}}`
	if w := p.do(alice); w.Code != 200 {
		t.Errorf("a ban beside a sleeping override: %d %s", w.Code, w.Body)
	}
	alice.path = "/v1/consumers/carol"
	p.problem(p.do(alice), 422, "invalid-consumer")
}

// The maximum number of overrides may be put again unchanged: the roots that nodes get beside them
// take none of their room.
func TestOverridesThatWereAcceptedMayBePutAgain(t *testing.T) {
	p := newPlane(t)
	limits := func(each time.Duration) string { // A request in each.
		var list []string
		for i := range policy.MaxLimits {
			window := time.Duration(700*(i+1)) * time.Hour
			list = append(list, fmt.Sprintf(`{"quota": %d, "window": "%dh", "burst": %d}`, window/each, window/time.Hour,
				window/each-1))
		}
		return "[" + strings.Join(list, ", ") + "]"
	}
	var set strings.Builder
	set.WriteString("version: weir/v1\nidentity: {consumer: [{header: x-api-key}]}\npolicies:\n")
	for i := range wire.MaxOverrides {
		fmt.Fprintf(&set, "  - {name: p%02d, partition: [consumer], mode: strict, limit: %s}\n", i,
			limits(2*time.Millisecond))
	}
	put := func(path, body string) (status int, answer string) {
		w := p.do(call{who: "root", method: "PUT", path: path, header: whatever, body: body})
		return w.Code, w.Body.String()
	}
	if status, answer := put("/v1/policyset", set.String()); status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	var overrides []string
	for i := range wire.MaxOverrides {
		overrides = append(overrides, fmt.Sprintf(`{"policy": "p%02d", "limit": %s}`, i, limits(time.Millisecond)))
		path, body := fmt.Sprintf("/v1/consumers/c%d", i), `{"overrides": [`+strings.Join(overrides, ",")+`]}`
		if status, answer := put(path, body); status != 200 {
			if !strings.Contains(answer, "bytes on each node") {
				t.Errorf("%d overrides: %s", i+1, answer)
			}
			t.Logf("%d overrides are accepted", i)
			return
		}
		if status, answer := put(path, body); status != 200 {
			t.Fatalf("%d overrides, put again: %d %s", i+1, status, answer)
		}
	}
	t.Error("any number of overrides is accepted")
}
