package policies_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
)

func load(t *testing.T, text string) *policy.Set {
	t.Helper()
	set, err := policydoc.Load([]byte("version: weir/v1\n"+text), policydoc.YAML)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// A diff names where requests hold the figures of a limit, of which its text has the most.
func TestCompareFiguresOfRequests(t *testing.T) {
	limit := func(figures string) *policy.Set {
		return load(t, "policies: [{name: a, partition: [], mode: local, limit: {window: 1m, "+figures+"}}]")
	}
	before := limit("quota: {jwt: rpm, max: 60, default: 6}")
	for figures, want := range map[string]string{
		"quota: 60": "limit at most 60 per 1m, quota by jwt:rpm else 6 → 60 per 1m",
		"quota: {jwt: plan.rpm, max: 60, default: 6}": "limit at most 60 per 1m, quota by jwt:rpm else 6 → at most " +
			"60 per 1m, quota by jwt:plan.rpm else 6",
		"quota: {jwt: rpm, max: 60, default: 6}, burst: {header: b, trusted: true, max: 9, " +
			"default: 1}": "limit at most 60 per 1m, quota by jwt:rpm else 6 → " +
			"at most 60 per 1m burst 9, quota by jwt:rpm else 6, burst by header:b else 1",
		"quota: {jwt: rpm, max: 60, default: 6}": "no change in meaning",
	} {
		if got := policies.Compare(before, limit(figures)).String(); got != want && got != "a: "+want {
			t.Errorf("%s: %q, want %q", figures, got, want)
		}
	}
}

func TestCompare(t *testing.T) {
	before := load(t, `policies:
  - {name: a, partition: [], limit: {quota: 1, window: 1m}}
  - {name: b, partition: [], limit: {quota: 1, window: 1m}}
  - {name: c, partition: [], limit: {quota: 1, window: 1m}}`)
	after := load(t, `
exempt: {paths: [/healthz]}
banned: {client_ips: [203.0.113.0/24]}
headers: {legacy: x-ratelimit}
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: d, partition: [], limit: {quota: 1, window: 1m}}
  - {name: c, partition: [], limit: {quota: 1, window: 60s, burst: 1}, mode: leased}
  - {name: a, partition: [], limit: {quota: 2, window: 1m}, mode: strict}`)
	want := policies.Diff{
		Added: []string{"d"}, Removed: []string{"b"}, Changed: []string{"a"},
		Settings: []string{"identity", "headers", "exempt", "banned"},
		Changes: []policies.FieldChange{
			{Of: "identity", Setting: true, Field: "consumer", After: "header:x-api-key"},
			{Of: "headers", Setting: true, Field: "legacy", Before: "off", After: "x-ratelimit"},
			{Of: "exempt", Setting: true, Field: "paths", Added: []string{"/healthz"}},
			{Of: "banned", Setting: true, Field: "client_ips", Added: []string{"203.0.113.0/24"}},
			{Of: "a", Field: "limit", Before: "1 per 1m", After: "2 per 1m"},
			{Of: "a", Field: "mode", Before: "leased", After: "strict"},
		},
		Words: []string{
			"~ identity: consumer none → header:x-api-key",
			"~ headers: legacy off → x-ratelimit",
			"~ exempt: paths with /healthz",
			"~ banned: client_ips with 203.0.113.0/24",
			"+ d: 1 per 1m; leased",
			"~ a: limit 1 per 1m → 2 per 1m; mode leased → strict",
			"- b",
		},
	}
	got := policies.Compare(before, after)
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) ||
		got.String() != "1 added, 1 removed, 1 changed, identity, headers, exempt, banned changed" {
		t.Errorf("%+v\n%s", got, got)
	}
	if same := policies.Compare(before, before); same.String() != "no change in meaning" || len(same.Words) > 0 {
		t.Error(same)
	}
}

// A value that reads like the word for no value is quoted.
func TestNoneIsNotNothing(t *testing.T) {
	for change, want := range map[[2]string]string{
		{"", "none"}: `tier none → "none"`, {"none", ""}: `tier "none" → none`,
	} {
		if got := (policies.FieldChange{Field: "tier", Before: change[0], After: change[1]}).String(); got != want {
			t.Errorf("%q: %s, want %s", change, got, want)
		}
	}
}

// The words for one change in one policy or setting, and the summary if it is the only change.
func TestWords(t *testing.T) {
	const head = "tiers: [free, gold]\nidentity: {consumer: [{header: k}], tier: [assignment], default_tier: free}\n"
	one := func(fields string) string {
		return head + "policies:\n  - {name: api, partition: [client_ip], " + fields + "}"
	}
	whole := func(fields string) string { return strings.Replace(one(fields), "[client_ip]", "[]", 1) }
	const limit = "limit: {quota: 100, window: 1m}"
	for _, c := range []struct{ before, after, want string }{
		{one(limit), one("limit: {quota: 80, window: 1m, burst: 20}, mode: strict"),
			"api: limit 100 per 1m → 80 per 1m burst 20; mode leased → strict"},
		{one(limit), one("limit: [{quota: 5, window: 1s}, {quota: 100, window: 1m}]"),
			"api: limit 100 per 1m → 5 per 1s and 100 per 1m"},
		{one(limit), one("limits: {free: {quota: 60, window: 1m}, gold: unlimited}"),
			"api: limits.free none → 60 per 1m; limits.gold none → unlimited; limit 100 per 1m → none"},
		{one("limits: {free: {quota: 60, window: 1m}, gold: unlimited}"),
			one("limits: {free: {quota: 60, window: 1m}, gold: {quota: 9, window: 1s}}"),
			"api: limits.gold unlimited → 9 per 1s"},
		{one(limit), one(limit + ", match: {hosts: [a, b], methods: [GET], headers: [{name: x, prefix: y}]}"), `api: match.hosts with a, b; match.methods with GET; match.headers with x prefix "y"`},
		{one(limit), one(limit + ", match: {client_ips: [10.0.0.0/8], tiers: [gold], headers: [{name: x, " +
			"absent: true}]}"), "api: match.headers with x absent; match.client_ips with 10.0.0.0/8; match.tiers " +
			"with gold"},
		{one(limit + ", match: {paths: [/a, /b]}"), one(limit + ", match: {paths: [/b, /c]}"),
			"api: match.paths with /c without /a"},
		{one(limit + ", match: {paths: [/a, /b]}"), one(limit + ", match: {paths: [/b, /a]}"), "api: changed"},
		{one(limit), strings.Replace(one(limit), "[client_ip]", "[consumer, 'header:X']", 1),
			"api: partition client_ip → consumer, header:x"},
		{one(limit), strings.Replace(one(limit), "[client_ip]", "[]", 1),
			"api: partition client_ip → one bucket for all"},
		{one(limit), one(limit + ", algorithm: sliding_window"),
			"api: algorithm token_bucket → sliding_window; subwindows none → 10"},
		{one(limit + ", algorithm: fixed_window"), one(limit + ", algorithm: fixed_window, align: utc"),
			"api: align key → utc"},
		{one(limit + ", algorithm: leaky_bucket, mode: local"),
			one(limit + ", algorithm: leaky_bucket, mode: local, max_wait: 5s"),
			"api: max_wait 1s → 5s; limit 100 per 1m burst 1 → 100 per 1m burst 8"},
		{one(limit), one(limit + ", candidate: {limit: {quota: 80, window: 1m}}"),
			"api: candidate.limit none → 80 per 1m"},
		{one(limit), one(limit + ", cost: {header: c, max: 50}"), "api: cost 1 → header:c up to 50, else 1"},
		{one(limit), one(limit + ", cost: {header: c, max: 50, invalid: deny}"),
			"api: cost 1 → header:c up to 50, else deny"},
		{one(limit), one(limit + ", on_failure: {then: deny}, if_absent: deny"),
			"api: if_absent skip → deny; on_failure each Envoy's even share for 30s, then allow → deny"},
		{one(limit), one(limit + ", penalty: {after: {refusals: 5, within: 1m}, shadow: true}"),
			"api: penalty none → 5 refusals in 1m: 1m, × 2 up to 1d, forget 1h, jitter 10 %, shadow"},
		{one(limit + ", enforcement: shadow"), one(limit + ", enforcement: {enforce: 25}"),
			"api: enforcement shadow → enforce 25 %"},
		{one(limit), one(limit + ", response: {status: 503, body: \"a\nb\"}"), `api: response.status none → 503; response.body none → "a b"`},
		{one(limit), one(limit + ", response: {body: " + strings.Repeat("é", 200) + "}"),
			"api: response.body none → \"" + strings.Repeat("é", 59) + "…"},
		{one(limit + ", response: {body: " + strings.Repeat("é", 200) + "}"),
			one(limit + ", response: {body: " + strings.Repeat("é", 200) + "b}"),
			"api: response.body …" + strings.Repeat("é", 10) + "\" → …" + strings.Repeat("é", 10) + "b\""},
		{"responses: {quota: {headers: {a: b" + strings.Repeat("é", 60) + "}}}",
			"responses: {quota: {headers: {a: b" + strings.Repeat("é", 61) + "}}}",
			"responses: quota.headers with …" + strings.Repeat("é", 11) + " without …" + strings.Repeat("é", 10)},
		{head + "policies: []", one(limit + ", algorithm: sliding_log, enforcement: shadow"),
			"api added: 100 per 1m; leased, sliding_log, enforcement shadow"},
		{head + "policies: []", one("limits: {free: {quota: 60, window: 1m}}"),
			"api added: limits.free 60 per 1m, limits.gold 60 per 1m; leased"},
		{one(limit), head + "policies: []", "api removed"},
		{"priorities: [{name: a, match: {paths: [/a]}}, {name: b}]\n" + one(limit),
			"priorities: [{name: a, match: {paths: [/a]}}, {name: b}]\n" + one(limit+", reserve: {a: 20%}"),
			"api: reserve none → a 20 %"},
		{whole("adaptive: {min: 2, max: 9}, mode: local"),
			whole("adaptive: {min: 2, max: 20, latency: p50}, mode: local, shed_by: [latency, orca]"),
			"api: adaptive 2 to 9 in flight by p90 → 2 to 20 in flight by p50; shed_by latency → latency, orca"},
		{"priorities: [{name: a, match: {paths: [/a]}}, {name: b}]",
			"priorities: [{name: b}, {name: a, match: {paths: [/a], methods: [GET, PUT]}}]",
			"priorities: classes a paths /a, b → b, a methods GET|PUT paths /a"},
		{"banned: {client_ips: [10.0.0.0/8, '2001:db8::/32', 192.0.2.1]}",
			"banned: {client_ips: [10.0.0.0/8, 10.0.0.0/7]}",
			"banned: client_ips with 10.0.0.0/7 without 10.0.0.0/8, 192.0.2.1, 2001:db8::/32"},
		{"responses: {quota: {body: a}}",
			"responses: {quota: {status: 503, body: a, headers: {X-A: b}}, ban: {content_type: text/html, body: c}}",
			`responses: quota.status none → 503; quota.headers with x-a: b; ban.body none → "c"; ` +
				`ban.content_type none → "text/html"`},
		{"exempt: {methods: [OPTIONS]}", "exempt: {methods: [OPTIONS, A, B, C, D, E, F, G]}",
			"exempt: methods with A, B, C, D, E and 2 more"},
		{"identity: {client_ip: {trusted_hops: 1}}", "identity: {client_ip: {ipv6_prefix: 56}}",
			"identity: client_ip.trusted_hops 1 → 0; client_ip.ipv6_prefix 64 → 56"},
		{head, strings.Replace(head, "[free, gold]", "[gold, free]", 1), "identity, tiers changed"},
	} {
		if got := policies.Compare(load(t, c.before), load(t, c.after)).String(); got != c.want {
			t.Errorf("%s\n%s\nis %q\nwant %q", c.before, c.after, got, c.want)
		}
	}
}

// Whatever field the language gets, a change of it is never silent.
func TestEveryFieldIsCompared(t *testing.T) {
	base := func() *policy.Set {
		return load(t, "tiers: [free]\nidentity: {default_tier: free}\n"+
			"policies: [{name: a, partition: [client_ip], limit: {quota: 1, window: 1m}}]")
	}
	skip := []string{"Name", "Tiers", "Roots"} // another policy; limits by tier, which TestWords has; no field
	for i := range reflect.TypeFor[policy.Policy]().NumField() {
		name := reflect.TypeFor[policy.Policy]().Field(i).Name
		if slices.Contains(skip, name) {
			continue
		}
		after := base()
		disturb(t, reflect.ValueOf(&after.Policies[0]).Elem().Field(i))
		if d := policies.Compare(base(), after); len(d.Changed) != 1 || len(d.Words) != 1 {
			t.Errorf("a change of %s: %+v", name, d)
		}
	}
}

// disturb changes a value a little.
func disturb(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Struct:
		disturb(t, v.Field(0))
	case reflect.Array:
		disturb(t, v.Index(0))
	case reflect.Slice:
		if v.Len() > 0 {
			v.Set(reflect.Append(v, v.Index(0)))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Uint8:
		v.SetUint((v.Uint() + 1) % 3)
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	default:
		t.Fatalf("a field of kind %s", v.Kind())
	}
}

// How paths are read is named as in the document, with both values.
func TestCompareHowPathsAreRead(t *testing.T) {
	const rest = "policies: [{name: a, partition: [], limit: {quota: 1, window: 1m}}]"
	before, after := load(t, rest), load(t, "match: {path_case: fold, trailing_slash: cut}\n"+rest)
	for _, c := range []struct {
		diff policies.Diff
		want string
	}{
		{policies.Compare(before, after), "[~ match: path_case keep → fold; trailing_slash keep → cut]"},
		{policies.Compare(after, before), "[~ match: path_case fold → keep; trailing_slash cut → keep]"},
	} {
		if got := fmt.Sprint(c.diff.Words); got != c.want || fmt.Sprint(c.diff.Settings) != "[match]" {
			t.Errorf("%s of %v, want %s", got, c.diff.Settings, c.want)
		}
	}
}
