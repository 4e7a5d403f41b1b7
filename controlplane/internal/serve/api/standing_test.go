package api_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/wire"
)

const standingSet = `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
banned: {client_ips: [203.0.113.0/24]}
policies:
  - {name: api, partition: [consumer], limit: {quota: 10, window: 1m}, penalty: {after: {refusals: 5, within: 1m}, for: 1m}}
  - {name: login, partition: [client_ip], limit: {quota: 10, window: 1m}}
`

// standingIn returns an answer's standing of a caller before any limit: kind, policy and reason.
func (p *plane) standingIn(c call) []string {
	p.t.Helper()
	got := decoded[struct{ Standing []api.StandingAnswer }](p.t, p.do(c))
	said := []string{}
	for _, one := range got.Standing {
		said = append(said, strings.Join(strings.Fields(fmt.Sprint(one.What, " ", one.Policy, " ", one.Reason)), " "))
	}
	return said
}

// must makes a change that has to succeed.
func (p *plane) must(method, path, body string) {
	p.t.Helper()
	header := map[string]string{"If-Match": "*"}
	if strings.Contains(path, "/consumers/") && method == "PUT" {
		header["If-Match"] = `"0"`
	}
	if w := p.do(call{"root", method, path, header, body}); w.Code >= 300 {
		p.t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
}

// Whatever stands before the limits is said first, of each caller, in the order in which requests
// meet it; to the caller itself without a reason.
func TestWhatStandsBeforeALimitIsSaidFirst(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, standingSet); w.Code != 200 {
		t.Fatal(w.Body)
	}
	p.must("PUT", "/v1/consumers/bad", `{"banned": {"reason": "abuse"}}`)
	p.must("PUT", "/v1/consumers/vip", `{"bypass": {"reason": "pays"}}`)
	p.must("POST", "/v1/keys/api/ban?partition=consumer:key", `{"reason": "floods"}`)
	p.must("POST", "/v1/keys/login/ban?partition=client_ip:192.0.2.1", `{"reason": "scans"}`)
	p.punish(t, "late")
	p.says(map[string][]string{
		"consumer=bad": {"ban abuse"}, "consumer=vip": {"bypass pays"}, "consumer=key": {"ban api floods"},
		"consumer=late": {"penalty api"}, "consumer=nobody": {}, "": {},
		"policy=api&partition=consumer:bad": {"ban abuse"}, "policy=api&partition=consumer:key": {"ban api floods"},
		"policy=login&partition=client_ip:192.0.2.1":   {"ban login scans"},
		"policy=login&partition=client_ip:203.0.113.9": {"ban banned.client_ips of the policy set"},
		"policy=login&partition=client_ip:192.0.2.2":   {},
	})
	for who, want := range map[string][]string{"bad": {"ban"}, "vip": {"bypass"}, "key": {"ban api"},
		"late": {"penalty api"}, "nobody": {}} {
		if got := p.standingIn(usage(who)); !slices.Equal(got, want) {
			t.Errorf("/v1/usage of %s: %q, want %q", who, got, want)
		}
	}
	p.must("PUT", "/v1/enforcement", `{"orders": [{"state": "off", "reason": "night"}]}`)
	p.says(map[string][]string{"consumer=bad": {"off night", "ban abuse"}, "consumer=nobody": {"off night"}})
	p.must("PUT", "/v1/enforcement", `{"orders": [{"state": "shadow", "policy": "api", "reason": "look"},
		{"state": "enforce", "policy": "login", "reason": "on"}]}`)
	p.says(map[string][]string{"consumer=bad": {"ban abuse", "shadow api look"},
		"policy=login&partition=client_ip:192.0.2.2": {}, "policy=api&partition=consumer:x": {"shadow api look"}})
}

// says checks the standing of callers in the answers of why.
func (p *plane) says(want map[string][]string) {
	p.t.Helper()
	for query, want := range want {
		query = strings.ReplaceAll(query, ":", url.QueryEscape(":"))
		if got := p.standingIn(call{"eyes", "GET", "/v1/decisions?" + query, nil, ""}); !slices.Equal(got, want) {
			p.t.Errorf("?%s: %q, want %q", query, got, want)
		}
	}
}

// punish has a node report a penalty of a consumer under the policy api.
func (p *plane) punish(t *testing.T, consumer string) {
	t.Helper()
	k := p.key(t, call{"root", "GET", "/v1/keys/api?partition=consumer:" + consumer, nil, ""})
	key, err := keyhash.Parse(k.Key)
	if err != nil {
		p.t.Fatal(err)
	}
	until := time.Now().Add(time.Minute).UnixMilli()
	w := p.postReport(&wire.Offences{Node: []byte("envoy-1"), Items: []wire.Offence{
		{Key: key, Policy: []byte("api"), Version: 1, Level: 1, Until: until, Forgotten: until + 60_000}}})
	if w.Code != 204 {
		p.t.Fatal(w.Code, w.Body)
	}
	p.must("GET", "/v1/penalties", "")
	for range 200 {
		if list := p.do(call{"root", "GET", "/v1/penalties", nil, ""}); strings.Contains(list.Body.String(), k.Key) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	p.t.Fatal("the penalty is not listed")
}

// Each answer to an operator names the orders that are in force beside the policy set, also an
// order to enforce a policy that the set has in shadow. No other answer does.
func TestOrdersAreNamedOnEachAnswer(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, standingSet); w.Code != 200 {
		t.Fatal(w.Body)
	}
	named := func(c call) string { return p.do(c).Header().Get(api.OrdersHeader) }
	versions := call{"eyes", "GET", "/v1/versions", nil, ""}
	if got := named(versions); got != "" {
		t.Errorf("without orders: %q", got)
	}
	p.must("PUT", "/v1/enforcement", `{"orders": [{"state": "off", "percent": 25, "reason": "a"},
		{"state": "shadow", "policy": "api", "reason": "b", "expires_at": "2099-01-01T00:00:00Z"},
		{"state": "enforce", "policy": "login", "reason": "c"}]}`)
	want := "off for everything, 25 % of the keys, without an end; in shadow for policy api until " +
		"2099-01-01T00:00:00Z"
	missing := call{"root", "PATCH", "/v1/policies/nobody", map[string]string{"If-Match": "*"}, "{}"}
	for _, c := range []call{versions, missing} {
		if got := named(c); got != want {
			t.Errorf("%s: %q, want %q", c.path, got, want)
		}
	}
	// An order that enforces is named by the answer that puts a policy in shadow, or would.
	p.must("PUT", "/v1/enforcement", `{"orders": [{"state": "enforce", "reason": "c"}]}`)
	if got := named(versions); got != "" {
		t.Errorf("where all is enforced: %q", got)
	}
	const all = "enforced for everything whatever the policy set says, without an end"
	shadow := strings.Replace(standingSet, "login,", "login, enforcement: shadow,", 1)
	for _, query := range []string{"?dry_run=true", ""} {
		w := p.do(call{"ed", "PUT", "/v1/policyset" + query, map[string]string{"If-Match": "*"}, shadow})
		if got := w.Header().Get(api.OrdersHeader); w.Code != 200 || got != all {
			t.Errorf("%s: %d %q, want %q", query, w.Code, got, all)
		}
	}
	if got := named(versions); got != all {
		t.Errorf("afterwards: %q", got)
	}
	poll := call{"envoy", "GET", "/node/v1/snapshot?node=n&boot=1", nil, ""}
	for _, c := range []call{usage("bob"), poll, {method: "GET", path: "/readyz"}} {
		if got := named(c); got != "" {
			t.Errorf("%s: %q", c.path, got)
		}
	}
}

// The ban of a consumer says wherever it is answered that an order lifts it, and only then.
func TestABanOfAConsumerSaysThatItIsLifted(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, standingSet); w.Code != 200 {
		t.Fatal(w.Body)
	}
	p.must("PUT", "/v1/consumers/bad", `{"banned": {"reason": "abuse"}}`)
	p.must("PUT", "/v1/consumers/vip", `{"bypass": {"reason": "pays"}}`)
	for orders, lifted := range map[string]int{
		`{"orders": []}`: 0, `{"orders": [{"state": "off", "reason": "night"}]}`: 1,
		`{"orders": [{"state": "off", "policy": "api", "reason": "night"}]}`: 0,
		`{"orders": [{"state": "shadow", "reason": "night"}]}`:               0,
	} {
		p.must("PUT", "/v1/enforcement", orders)
		for path, want := range map[string]int{"/v1/consumers": lifted, "/v1/consumers?banned=true": lifted,
			"/v1/consumers/bad": lifted, "/v1/consumers/vip": 0} {
			w := p.do(call{"eyes", "GET", path, nil, ""})
			if n := strings.Count(w.Body.String(), `"lifted":true`); w.Code != 200 || n != want {
				t.Errorf("%s under %s: %d, %d bans are lifted, want %d: %s", path, orders, w.Code, n, want, w.Body)
			}
		}
	}
}

// bansRefuse reports, as a node, refusals by bans: three requests for each key and reason.
func (p *plane) bansRefuse(reasons map[keyhash.Key]uint8) {
	p.t.Helper()
	m := wire.Decisions{Node: []byte("envoy-1"), Version: 1,
		Counts: []wire.RefusedCount{{Policy: wire.BanPolicy, Refused: 3 * int64(len(reasons))}}}
	for key, reason := range reasons {
		m.Refusals = append(m.Refusals, wire.Refusal{Reason: wire.BanReason + reason,
			CallerCount: wire.CallerCount{Policy: wire.BanPolicy, Bucket: key, Count: 3}})
	}
	if w := p.postReport(&m); w.Code != 204 {
		p.t.Fatal(w.Code, w.Body)
	}
}

// The refusals by a ban of a key are found by the key, in the form of the policy, and by no other
// key. A ban has no bucket, so it has no level.
func TestWhatABanOfAKeyRefusesIsFoundByTheKey(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, standingSet); w.Code != 200 {
		t.Fatal(w.Body)
	}
	const banned = "/v1/keys/api/ban?partition=consumer:key"
	p.must("POST", banned, `{"reason": "floods"}`)
	hash := p.key(t, call{"root", "GET", "/v1/keys/api?partition=consumer:key", nil, ""}).Key
	key, err := keyhash.Parse(hash)
	if err != nil {
		t.Fatal(err)
	}
	p.bansRefuse(map[keyhash.Key]uint8{key: uint8(match.KeyBan), {}: uint8(match.AddressBan), {1}: uint8(match.KeyBan)})
	for query, want := range map[string][]string{
		"policy=api&partition=consumer:key": {"ban_of_key " + hash}, "policy=api&key=" + hash: {"ban_of_key " + hash},
		"policy=(banned)&key=" + hash: {"ban_of_key " + hash}, "policy=api&partition=consumer:other": nil,
		"policy=api": nil, "policy=login&partition=client_ip:192.0.2.1": nil,
	} {
		got := decoded[api.DecisionsAnswer](t, p.do(call{"eyes", "GET",
			"/v1/decisions?" + strings.ReplaceAll(query, ":", "%3A"), nil, ""}))
		var found []string
		for _, d := range got.Decisions {
			found = append(found, d.Reason+" "+d.Key)
			if d.Now != nil || d.Count != 3 {
				t.Errorf("?%s: %+v", query, d)
			}
		}
		if !slices.Equal(found, want) {
			t.Errorf("?%s: %q, want %q", query, found, want)
		}
	}
}

// The refusals by a ban are in every answer about refusals, in the form of the description.
func TestWhatABanRefusesIsInEveryAnswer(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, standingSet); w.Code != 200 {
		t.Fatal(w.Body)
	}
	p.bansRefuse(map[keyhash.Key]uint8{{1}: uint8(match.AddressBan)})
	if err := p.past.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	for path, part := range map[string]string{
		"/v1/decisions": `"reason":"ban_of_address"`, "/v1/top": `"refused":3`,
		"/v1/top?policy=(banned)": `"policy":"(banned)"`, "/v1/series": `"policy":"(banned)"`,
		"/v1/series?policy=(banned)": `"total":3`,
	} {
		if w := p.do(call{"eyes", "GET", path, nil, ""}); w.Code != 200 || !strings.Contains(w.Body.String(), part) {
			t.Errorf("%s lacks %s: %d %s", path, part, w.Code, w.Body)
		}
	}
}
