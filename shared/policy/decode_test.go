package policy_test

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/ipaddr"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

func decode(t testing.TB, doc string) (*policy.Set, error) {
	t.Helper()
	node, err := policy.ParseJSON([]byte(doc))
	if err != nil {
		return nil, err
	}
	return policy.Decode(node)
}

func TestDecodeReadsEveryField(t *testing.T) {
	set, err := decode(t, `{
		"version": "weir/v1",
		"identity": {"client_ip": {"trusted_hops": 2, "ipv6_prefix": 56}, "consumer": [{"header": "X-API-Key"}, {"jwt": "realm.sub"}, {"cookie": "SID"}, {"query": "key"}, {"spiffe": true}, "client_ip"]},
		"headers": {"standard": "off", "legacy": "x-ratelimit", "envoy_ratelimited": "off"},
		"policies": [
			{"name": "a", "match": {
				"hosts": ["API.example.com", "*.example.com"], "methods": ["GET"], "paths": ["/v1/{id}", "/v2/**"],
				"headers": [{"name": "X-A", "equals": "1"}, {"name": "x-b", "prefix": "2"}, {"name": "x-c", "present": true}, {"name": "X-D", "absent": true}],
				"client_ips": ["2001:db8::/32", "10.0.0.0/8", "10.1.0.0/16"]},
			 "partition": ["client_ip", "consumer", "method", "host", "path", "policy_path", "header:X-Tenant",
				"cookie:SID", "query:k", "jwt:org", "spiffe"],
			 "if_absent": "shared", "algorithm": "token_bucket", "limit": {"quota": 10, "window": "2m", "burst": 20},
			 "cost": {"header": "X-Cost", "max": 5, "invalid": "deny"}, "mode": "strict",
			 "on_failure": {"local_for": "10s", "then": "deny"}, "enforcement": {"enforce": 25}, "response": {"status": 503, "body": "later"}},
			{"name": "b", "partition": [], "limit": [{"quota": 1000, "window": "1s"}, {"quota": 60, "window": "1m"}], "mode": "local"}
		]}`)
	if err != nil {
		t.Fatal(err)
	}
	want := &policy.Set{
		Identity: policy.Identity{TrustedHops: 2, IPv6Prefix: 56, Consumer: []policy.Source{
			{Kind: policy.SourceHeader, Name: "x-api-key"}, {Kind: policy.SourceJWT, Name: "realm.sub"},
			{Kind: policy.SourceCookie, Name: "SID"},
			{Kind: policy.SourceQuery, Name: "key"}, {Kind: policy.SourceSPIFFE}, {Kind: policy.SourceClientIP},
		}},
		Headers: policy.Headers{Standard: dialect.StandardOff, Legacy: dialect.XRateLimit, Unmarked: true},
		Policies: []policy.Policy{{
			Name: "a",
			Match: policy.Match{
				Hosts: []string{"api.example.com", "*.example.com"}, Methods: []string{"GET"},
				Paths: []string{"/v1/{id}", "/v2/**"},
				Headers: []policy.HeaderMatch{
					{Name: "x-a", Op: policy.HeaderEquals, Value: "1"},
					{Name: "x-b", Op: policy.HeaderPrefix, Value: "2"},
					{Name: "x-c", Op: policy.HeaderPresent}, {Name: "x-d", Op: policy.HeaderAbsent},
				},
				ClientIPs: []policy.Range{
					{First: address("10.0.0.0"), Last: address("10.255.255.255")},
					{First: address("2001:db8::"), Last: address("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff")},
				},
			},
			Partition: []policy.Part{
				{Kind: policy.PartClientIP}, {Kind: policy.PartConsumer}, {Kind: policy.PartMethod},
				{Kind: policy.PartHost},
				{Kind: policy.PartPath}, {Kind: policy.PartPolicyPath}, {Kind: policy.PartHeader, Name: "x-tenant"},
				{Kind: policy.PartCookie, Name: "SID"}, {Kind: policy.PartQuery, Name: "k"},
				{Kind: policy.PartJWT, Name: "org"}, {Kind: policy.PartSPIFFE},
			},
			IfAbsent: policy.AbsentShared,
			Limits: []policy.Limit{{Quota: 10, Window: 2 * quota.Minute,
				Params: quota.Params{Num: 1, Den: 12_000_000, Burst: 20}}},
			Cost:      policy.Cost{Fixed: 1, Source: xCost, Max: 5, Invalid: 1, DenyInvalid: true},
			Mode:      policy.ModeStrict,
			OnFailure: policy.OnFailure{{For: 10 * quota.Second, Do: policy.StepShare}, {Do: policy.StepDeny}},
			Enforced:  25, Response: policy.Response{Status: 503, Body: "later"},
		}, {
			Name: "b", Limits: []policy.Limit{
				{Quota: 1000, Window: quota.Second, Params: quota.Params{Num: 1, Den: 1000, Burst: 1000},
					Root: quota.Second},
				{Quota: 60, Window: quota.Minute, Params: quota.Params{Num: 1, Den: 1_000_000, Burst: 60}},
			},
			Cost: policy.Cost{Fixed: 1}, Mode: policy.ModeLocal, OnFailure: policy.DefaultOnFailure,
			Enforced: policy.EnforcedAll,
		}},
	}
	if !reflect.DeepEqual(set, want) {
		t.Errorf("got\n%+v\nwant\n%+v", set, want)
	}
}

func address(text string) ipaddr.Addr {
	a, _, _ := ipaddr.Parse(text)
	return a
}

// inPolicy wraps a field of a policy that is right but for it.
func inPolicy(field string) string {
	return `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":1,"window":"1s"},` + field + `}]}`
}

// A name with a dot is nothing special beside one limit.
func TestNamesWithDots(t *testing.T) {
	doc := `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":1,"window":"1s"}},{"name":"p.1s","partition":[],"limit":{"quota":1,"window":"1s"}},{"name":"q","partition":[],"limit":[{"quota":1,"window":"1s"},{"quota":9,"window":"1m"}]},{"name":"q.1h","partition":[],"limit":{"quota":1,"window":"1s"}}]}`
	if _, err := decode(t, doc); err != nil {
		t.Error(err)
	}
}

// Any number of policies may have the largest number of windows, and each window a name.
func TestManyPoliciesWithManyWindows(t *testing.T) {
	for count := 1; count <= 64; count++ {
		var list []string
		for i := range count {
			var limits []string
			for n := range policy.MaxLimits {
				limits = append(limits, fmt.Sprintf(`{"quota": 1, "window": "%ds"}`, n+1))
			}
			list = append(list, fmt.Sprintf(`{"name": "p%d", "partition": [], "limit": [%s], "mode": "local"}`, i,
				strings.Join(limits, ", ")))
		}
		for _, again := range []bool{false, true} {
			if again {
				list = append(list, `{"name": "p0.8s", "partition": [], "limit": {"quota": 1, "window": "1s"}, "mode": "local"}`)
			}
			_, err := decode(t, `{"version": "weir/v1", "policies": [`+strings.Join(list, ", ")+`]}`)
			if again != (err != nil) || again && !strings.Contains(err.Error(), "has RateLimit name two limits p0.8s") {
				t.Fatalf("%d policies, a name again %v: %v", count, again, err)
			}
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	const noJSON = "policies[0].response.body: is not valid JSON once its fields are filled in: " +
		"{policy} and {window} are texts and belong into quotes"
	for _, c := range []struct{ name, doc, want string }{
		{"no JSON", `{`, "is not valid JSON"},
		{"deep nesting", strings.Repeat("[", 40) + strings.Repeat("]", 40), "nests too deep"},
		{"no mapping", `[]`, "must be a mapping, not a list"},
		{"no version", `{}`, "version: is missing: write version: weir/v1"},
		{"another version", `{"version":"weir/v2"}`, "version: must be weir/v1, not weir/v2"},
		{"an unknown field", `{"version":"weir/v1","polices":[]}`, "polices: unknown field: did you mean policies?"},
		{"a field far from any", `{"version":"weir/v1","zzz":1}`, "zzz: unknown field"},
		{"a field twice", `{"version":"weir/v1","version":"weir/v1"}`, "version: is given twice"},
		{"an empty policy", `{"version":"weir/v1","policies":[{}]}`, "policies[0].name: is missing\n" +
			"policies[0].limit: is missing: write limit: {quota: 100, window: 1m}\n" +
			"policies[0].partition: is missing: say whose bucket it is, [] for one bucket for all"},
		{"a bad name", `{"version":"weir/v1","policies":[{"name":"A b","partition":[],"limit":{"quota":1,"window":"1s"}}]}`,
			`policies[0].name: must be 1 to 63 of a-z 0-9 . _ - and start with a letter or digit, not "A b"`},
		{"a name twice", `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":1,"window":"1s"}},{"name":"p","partition":[],"limit":{"quota":1,"window":"1s"}}]}`,
			"policies[1].name: is taken by policies[0]: names must be unique"},
		{"the name of a limit of a list", `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":[{"quota":1,"window":"1s"},{"quota":9,"window":"1m"}]},{"name":"p.1s","partition":[],"limit":{"quota":1,"window":"1s"}}]}`,
			"policies[1].name: has RateLimit name two limits p.1s: take another name"},
		{"the same, the list behind it", `{"version":"weir/v1","policies":[{"name":"p.1m","partition":[],"limit":{"quota":1,"window":"1s"}},{"name":"p","partition":[],"limit":[{"quota":1,"window":"1s"},{"quota":9,"window":"1m"}]}]}`,
			"policies[1].name: has RateLimit name two limits p.1m: take another name"},
		{"the name of a part", `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":[{"quota":1,"window":"1s"},{"quota":9,"window":"1m"}]},{"name":"p.1s.after-x","partition":[],"limit":{"quota":1,"window":"1s"}}]}`,
			"policies[1].name: has RateLimit name two limits p.1s: take another name"},
		{"a window without unit", `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":1,"window":60}}]}`,
			"policies[0].limit.window: must be a length of time like 30s (units ms s m h d), not 60"},
		{"a window too short", `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":1,"window":"999ms"}}]}`,
			"policies[0].limit.window: must be a whole number with a unit (ms s m h d) from 1s to 366d, not 999ms"},
		{"a window too long", `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":1,"window":"367d"}}]}`,
			"policies[0].limit.window: must be a whole number with a unit (ms s m h d) from 1s to 366d, not 367d"},
		{"no quota", `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":-1,"window":"1s"}}]}`,
			"policies[0].limit.quota: must be a whole number from 0 to 4503599627370496, not -1"},
		{"a fraction", `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":1.5,"window":"1s"}}]}`,
			"policies[0].limit.quota: must be a whole number from 0 to 4503599627370496, not 1.5"},
		{"beyond exact arithmetic", `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":4999,"window":"366d"}}]}`,
			"policies[0].limit: quota, window and burst need more than exact arithmetic holds: at most a burst of " +
				"142 with this quota and window; a quota that divides the window allows more"},
		{"a cost nobody can pay", inPolicy(`"cost":2`), "policies[0].cost: is above the burst of 1: every request would be refused"},
		{"a negative cost", inPolicy(`"cost":-1`), "policies[0].cost: must be a whole number from 0 to 4294967296, not -1"},
		{"a cost header without a maximum", inPolicy(`"cost":{"header":"x"}`), "policies[0].cost.max: is missing: say the most that one request may cost"},
		{"an unknown mode", inPolicy(`"mode":"global"`), "policies[0].mode: must be one of local, leased, strict, optimistic, not global"},
		{"a path without slash", inPolicy(`"match":{"paths":["v1"]}`), "policies[0].match.paths[0]: must start with /, not v1"},
		{"a dot segment", inPolicy(`"match":{"paths":["/a/../b"]}`), "policies[0].match.paths[0]: has an empty or dot segment, which no normalised request path has: /a/../b"},
		{"half a segment", inPolicy(`"match":{"paths":["/a{b}"]}`), "policies[0].match.paths[0]: {name} and a final ** must be whole segments; write %7B %7D %2A for the characters: /a{b}"},
		{"everything below in the middle", inPolicy(`"match":{"paths":["/**/b"]}`), "policies[0].match.paths[0]: {name} and a final ** must be whole segments; write %7B %7D %2A for the characters: /**/b"},
		{"a query", inPolicy(`"match":{"paths":["/a?b"]}`), "policies[0].match.paths[0]: is matched without query; write %3F %23 for the characters: /a?b"},
		{"a host with port", inPolicy(`"match":{"hosts":["a:80"]}`), "policies[0].match.hosts[0]: must be a host name without port, in Punycode, *. and a host name, or an IPv6 address, not a:80"},
		{"a method in lower case", inPolicy(`"match":{"methods":["get"]}`), "policies[0].match.methods[0]: must be in upper case: write GET"},
		{"a method for all", inPolicy(`"match":{"methods":["*"]}`), "policies[0].match.methods[0]: no method is called *: leave methods out to match all of them"},
		{"a header condition without any", inPolicy(`"match":{"headers":[{"name":"x"}]}`), "policies[0].match.headers[0]: must have exactly one of equals, prefix, present, absent"},
		{"a header condition with two", inPolicy(`"match":{"headers":[{"name":"x","equals":"1","prefix":"2"}]}`), "policies[0].match.headers[0]: must have exactly one of equals, prefix, present, absent"},
		{"an unknown part", `{"version":"weir/v1","policies":[{"name":"p","partition":["ip"],"limit":{"quota":1,"window":"1s"}}]}`,
			"policies[0].partition[0]: must be one of client_ip, consumer, method, host, path, policy_path, tier, " +
				"upstream, header:NAME, jwt:CLAIM, cookie:NAME, query:NAME, spiffe, cert_subject, " +
				"descriptor:KEY, not ip"},
		{"a consumer that nothing defines", `{"version":"weir/v1","policies":[{"name":"p","partition":["consumer"],"limit":{"quota":1,"window":"1s"}}]}`,
			"policies[0].partition[0]: needs identity.consumer, which says where to find the consumer"},
		{"bits beyond the network", `{"version":"weir/v1","banned":{"client_ips":["10.0.0.1/8"]}}`, "banned.client_ips[0]: must be an address or a network like 10.0.0.0/8, without bits beyond its length, not 10.0.0.1/8"},
		{"no address", `{"version":"weir/v1","exempt":{"client_ips":["localhost"]}}`, "exempt.client_ips[0]: must be an address or a network like 10.0.0.0/8, without bits beyond its length, not localhost"},
		{"exempt consumers that nothing finds", `{"version":"weir/v1","exempt":{"consumers":["a"]}}`, "exempt.consumers: needs identity.consumer, which says where to find the consumer"},
		{"an exemption of a vague path, 1", `{"version":"weir/v1","exempt":{"paths":["/a","/a%2Fb"]}}`, "exempt.paths[1]: /a%2Fb exempts nothing: a server may read it as another path, so requests with it are never exempt"},
		{"an exemption of a vague path, 2", `{"version":"weir/v1","exempt":{"paths":["/a","/static/..;/**"]}}`, "exempt.paths[1]: /static/..;/** exempts nothing: a server may read it as another path, so requests with it are never exempt"},
		{"an exemption of a vague path, 3", `{"version":"weir/v1","exempt":{"paths":["/a","/a%00"]}}`, "exempt.paths[1]: /a%00 exempts nothing: a server may read it as another path, so requests with it are never exempt"},
		{"an exemption of a vague path, 4", `{"version":"weir/v1","exempt":{"paths":["/a","/a%252f"]}}`, "exempt.paths[1]: /a%252f exempts nothing: a server may read it as another path, so requests with it are never exempt"},
		{"an unknown ban", `{"version":"weir/v1","banned":{"paths":["/x"]}}`, "banned.paths: unknown field"},
		{"no limit in the list", `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":[]}]}`, "policies[0].limit: is empty: write at least one limit"},
		{"a window twice", `{"version":"weir/v1","policies":[{"name":"p","partition":[],"mode":"local","limit":[{"quota":1,"window":"60s"},{"quota":2,"window":"1m"}]}]}`, "policies[0].limit[1].window: is the window of another limit in the list: the stricter limit is enough"},
		{"a response that is none", inPolicy(`"response":{"status":200}`), "policies[0].response.status: must be a whole number from 400 to 599, not 200"},
		{"a response to nothing", responses(`"quotas":{}`), "responses.quotas: unknown field: did you mean quota?"},
		{"a status of no refusal", responses(`"absent":{"status":399}`), "responses.absent.status: must be a whole number from 400 to 599, not 399"},
		{"a status above all", responses(`"absent":{"status":600}`), "responses.absent.status: must be a whole number from 400 to 599, not 600"},
		{"a long body", responses(`"ban":{"body":"` + strings.Repeat("x", policy.MaxBody+1) + `"}`), "responses.ban.body: must have at most 4096 bytes"},
		{"a ban with a limit", responses(`"ban":{"body":"{limit}"}`), "responses.ban.body: is the body of a ban, which no limit decides: its only field is retry_after"},
		{"headers of a policy", inPolicy(`"response":{"headers":{"x-a":"b"}}`), "policies[0].response.headers: unknown field"},
		{"a header of Weir", responses(`"quota":{"headers":{"Retry-After":"5"}}`), "responses.quota.headers.Retry-After: is not yours to set: Weir, Envoy or the protocol does"},
		{"a header of a family", responses(`"quota":{"headers":{"x-ratelimit-by":"5"}}`), "responses.quota.headers.x-ratelimit-by: is not yours to set: Weir, Envoy or the protocol does"},
		{"a header with a line end", responses(`"quota":{"headers":{"x-a":"b\r\nc: d"}}`), "responses.quota.headers.x-a: has blanks around it or a control character, as no header's value has"},
		{"no header", responses(`"quota":{"headers":{"x a":"b"}}`), "responses.quota.headers.\"x a\": must be a header name, not \"x a\""},
		{"an empty header", responses(`"quota":{"headers":{"x-a":""}}`), "responses.quota.headers.x-a: must have 1 to 1024 bytes"},
		{"a header twice", responses(`"quota":{"headers":{"x-a":"b","x-a":"c"}}`), "responses.quota.headers.x-a: is given twice"},
		{"a header in two spellings", responses(`"quota":{"headers":{"X-A":"b","x-a":"c"}}`), "responses.quota.headers.x-a: is given twice"},
		{"the header Host", responses(`"quota":{"headers":{"Host":"b"}}`), "responses.quota.headers.Host: is not yours to set: Weir, Envoy or the protocol does"},
		{"a coding that the body has not", responses(`"ban":{"headers":{"content-encoding":"gzip"}}`), "responses.ban.headers.content-encoding: is not yours to set: Weir, Envoy or the protocol does"},
		{"headers that are none", responses(`"ban":{"headers":["x-a"]}`), "responses.ban.headers: must be a mapping of headers, not a list"},
		{"long headers", responses(`"quota":{"headers":` + longHeaders(policy.MaxHeaderLines+1) + `}`), "responses.quota.headers: must have at most 4096 bytes together"},
		{"nine headers", responses(`"quota":{"headers":` + headersOf(9) + `}`), "responses.quota.headers: must have at most 8 headers, not 9"},
		{"a type of no body", inPolicy(`"response":{"content_type":"application/json"}`), "policies[0].response.content_type: needs a body: write the body too"},
		{"no media type", inPolicy(`"response":{"body":"x","content_type":"json"}`), "policies[0].response.content_type: must be a media type like application/json, not json"},
		{"a type with a line end", inPolicy(`"response":{"body":"x","content_type":"text/html;\r\nx: y"}`), `policies[0].response.content_type: must be a media type like application/json, not "text/html;\r\nx: y"`},
		{"an unknown field of a body", inPolicy(`"response":{"body":"in {retry} s"}`), "policies[0].response.body: has the field retry: there are policy, limit, window, retry_after and reset"},
		{"a body that is no JSON, in large letters", inPolicy(`"response":{"body":"{","content_type":"Application/X+JSON"}`), noJSON},
		{"a body that is no JSON", inPolicy(`"response":{"body":"{\"window\":{window}}","content_type":"application/json"}`), noJSON},
		{"the trio beside the standard", `{"version":"weir/v1","headers":{"standard":"draft-11","legacy":"ratelimit"}}`,
			"headers.standard: must be off beside legacy: ratelimit, whose header names begin like the standard's"},
		{"more than all", inPolicy(`"enforcement":{"enforce":101}`), "policies[0].enforcement.enforce: must be a whole number from 0 to 100, not 101"},
		{"a share of nothing", inPolicy(`"enforcement":{}`), "policies[0].enforcement.enforce: is missing: write {enforce: 25} for a quarter of the partition keys"},
		{"something after the address", `{"version":"weir/v1","identity":{"consumer":["client_ip",{"header":"k"}]}}`,
			"identity.consumer[1]: comes after client_ip, which must be the last: every caller has an address"},
		{"a consumer by another word", `{"version":"weir/v1","identity":{"consumer":["address"]}}`, "identity.consumer[0]: must be a mapping like {header: x-api-key}, or client_ip, not a string"},
		{"a header absent and present", inPolicy(`"match":{"headers":[{"name":"x","absent":true,"present":true}]}`), "policies[0].match.headers[0]: must have exactly one of equals, prefix, present, absent"},
		{"a header that is not absent", inPolicy(`"match":{"headers":[{"name":"x","absent":false}]}`), "policies[0].match.headers[0].absent: must be true, not false"},
		{"a policy for no address", inPolicy(`"match":{"client_ips":["10.0.0.0/33"]}`), "policies[0].match.client_ips[0]: must be an address or a network like 10.0.0.0/8, without bits beyond its length, not 10.0.0.0/33"},
		{"a policy for tiers that are none", inPolicy(`"match":{"tiers":["free"]}`), "policies[0].match.tiers[0]: needs tiers, which names them"},
		{"a consumer from nowhere", `{"version":"weir/v1","identity":{"consumer":[{}]}}`, "identity.consumer[0]: must have exactly one of header, jwt, cookie, query, spiffe, cert_subject"},
		{"a consumer from two places", `{"version":"weir/v1","identity":{"consumer":[{"jwt":"sub","cookie":"c"}]}}`, "identity.consumer[0]: must have exactly one of header, jwt, cookie, query, spiffe, cert_subject"},
		{"a claim of nothing", `{"version":"weir/v1","identity":{"consumer":[{"jwt":"a..b"}]}}`, "identity.consumer[0].jwt: must be a claim, nested ones like realm.role, not a..b"},
		{"a cookie that is none", `{"version":"weir/v1","policies":[{"name":"p","partition":["cookie:a=b"],"limit":{"quota":1,"window":"1s"}}]}`, "policies[0].partition[0]: must be a cookie name, not a=b"},
		{"spiffe that is not true", `{"version":"weir/v1","identity":{"consumer":[{"spiffe":"yes"}]}}`, "identity.consumer[0].spiffe: must be true, not a string"},
		{"a prefix out of range", `{"version":"weir/v1","identity":{"client_ip":{"ipv6_prefix":129}}}`, "identity.client_ip.ipv6_prefix: must be a whole number from 1 to 128, not 129"},
	} {
		t.Run(c.name, func(t *testing.T) {
			set, err := decode(t, c.doc)
			if err == nil {
				t.Fatalf("accepted as %+v", set)
			}
			if err.Error() != c.want {
				t.Errorf("got\n%s\nwant\n%s", err, c.want)
			}
		})
	}
}

// responses is a set with these responses.
func responses(all string) string { return `{"version":"weir/v1","responses":{` + all + `}}` }

// headersOf are n headers.
func headersOf(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`"x-%d":"v"`, i)
	}
	return "{" + strings.Join(all, ",") + "}"
}

// longHeaders returns headers whose lines have size bytes together.
func longHeaders(size int) string {
	var all []string
	for i := 0; size > 0; i++ {
		value := min(size, 1000) - len("x-0\n\n")
		all = append(all, fmt.Sprintf(`"x-%d":"%s"`, i, strings.Repeat("v", value)))
		size -= min(size, 1000)
	}
	return "{" + strings.Join(all, ",") + "}"
}

func TestResponsesOfTheSet(t *testing.T) {
	set, err := decode(t, responses(`"quota":{"status":400,"body":"{{word}} {limit}","content_type":"text/html",
		"headers":{"X-A":"b c","server-timing":"d"}},"ban":{"body":"`+strings.Repeat("x", policy.MaxBody)+`"},
		"penalty":{"headers":`+longHeaders(policy.MaxHeaderLines)+`},
		"overload":{"status":599,"headers":`+headersOf(8)+`}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := set.Response(policy.AnswerQuota), (policy.Response{Status: 400, Body: "{{word}} {limit}",
		ContentType: "text/html", Literal: true, Headers: "x-a\nb c\nserver-timing\nd\n"}); got != want {
		t.Errorf("%+v", got)
	}
	if len(set.Response(policy.AnswerBan).Body) != policy.MaxBody ||
		len(set.Response(policy.AnswerPenalty).Headers) != policy.MaxHeaderLines ||
		set.Response(policy.AnswerAbsent) != (policy.Response{}) {
		t.Errorf("%+v", set.Responses)
	}
	if n := strings.Count(set.Response(policy.AnswerOverload).Headers, "\n"); n != 16 {
		t.Errorf("%d lines of headers", n)
	}
	if set, err = decode(t, responses(`"quota":{}`)); err != nil || set.Responses != nil {
		t.Errorf("responses that say nothing: %+v, %v", set.Responses, err)
	}
	if (&policy.Set{}).Response(policy.AnswerBan) != (policy.Response{}) {
		t.Error("a set without responses has one")
	}
	if set, err = decode(t, inPolicy(`"response":{"body":"{{word}}"}`)); err != nil || !set.Policies[0].Response.Literal {
		t.Errorf("a word in double braces: %v", err)
	}
}

func TestOwnBodies(t *testing.T) {
	for body, contentType := range map[string]string{
		`{"error":"rate_limited","retry_after":{retry_after}}`: "application/json", `{"by":"{policy}","in":"{window}"}`: "application/problem+json; charset=utf-8",
		"a { b } {A} {{ {limit}}": "text/html", "{reset}": "", "{{limit}} {{policy}}": "text/plain",
	} {
		doc := fmt.Sprintf(`"response":{"body":%q}`, body)
		if contentType != "" {
			doc = fmt.Sprintf(`"response":{"body":%q,"content_type":%q}`, body, contentType)
		}
		set, err := decode(t, inPolicy(doc))
		if err != nil || set.Policies[0].Response != (policy.Response{Body: body, ContentType: contentType}) {
			t.Errorf("%s: %v", doc, err)
		}
	}
	if set, err := decode(t, `{"version":"weir/v1","headers":{"legacy":"ratelimit"}}`); err != nil || set.Headers != (policy.Headers{Legacy: dialect.RateLimit}) {
		t.Errorf("the trio alone: %v", err)
	}
}

// An optimistic limit says by how much it is passed and which requests wait, and counts a door of
// another protocol as an Envoy.
func TestOptimisticSaysWhatWaits(t *testing.T) {
	const doc = `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":100,"window":"1m"},"mode":"optimistic"}]}`
	set, err := decode(t, doc)
	if err != nil {
		t.Fatal(err)
	}
	const bound = "beyond at most 100 at once + 100 per 1m: "
	for _, c := range []struct {
		nodes, doors int64
		want         string
	}{
		{1, 0, bound + "with 1 Envoys up to 0 more, which are paid back; with a door beside them (--rls-listen, " +
			"--rlqs-listen) up to 50"},
		{1, 1, bound + "with 1 Envoys and 1 doors up to 50 more, which are paid back|with 1 Envoys and 1 doors a " +
			"request waits for the control plane, as in strict, if it goes beyond 50 tokens that its Envoy has not " +
			"reported"},
		{3, 0, bound + "with 3 Envoys up to 50 more, which are paid back; with a door beside them (--rls-listen, " +
			"--rlqs-listen) up to 48|with 3 Envoys a request waits for the control plane, as in strict, if it goes " +
			"beyond 25 tokens that its Envoy has not reported"},
	} {
		if got := strings.Join(set.Policies[0].OptimisticNotes(c.nodes, c.doors), "|"); got != c.want {
			t.Errorf("%d Envoys, %d doors: %s\nwant %s", c.nodes, c.doors, got, c.want)
		}
	}
}

func TestEveryProblemIsListed(t *testing.T) {
	_, err := decode(t, `{"version":"weir/v1","policies":[
		{"name":"p","partition":[],"limit":{"quota":-1,"window":"x"},"mode":"m"},
		{"name":"p","partition":["ip"],"limit":{"quota":1,"window":"1s"}}]}`)
	var problems policy.Problems
	if !errors.As(err, &problems) {
		t.Fatalf("%T: %v", err, err)
	}
	var paths []string
	for _, p := range problems {
		paths = append(paths, p.Path)
	}
	want := "policies[0].limit.quota policies[0].limit.window policies[0].mode policies[1].partition[0] " +
		"policies[1].name"
	if got := strings.Join(paths, " "); got != want {
		t.Errorf("problems at %s, want %s", got, want)
	}
}

func TestProblemsAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"version":"weir/v1"`)
	for i := range 5000 {
		fmt.Fprintf(&b, `,"%s%d":1`, strings.Repeat("é", 200), i)
	}
	b.WriteString("}")
	_, err := decode(t, b.String())
	if err == nil || len(err.Error()) > 64<<10 {
		t.Errorf("%d bytes of problems", len(err.Error()))
	}
}

func TestOnFailureDefaults(t *testing.T) {
	for field, want := range map[string]policy.OnFailure{
		`"mode":"leased"`:                                        policy.DefaultOnFailure,
		`"on_failure":{"then":"deny"}`:                           {{Do: policy.StepDeny}},
		`"on_failure":{"local_for":"5s"}`:                        {{For: 5 * quota.Second, Do: policy.StepShare}, {Do: policy.StepAllow}},
		`"on_failure":{"then":"local"}`:                          {{Do: policy.StepShare}},
		`"on_failure":{"local_for":"5s","then":"local"}`:         {{Do: policy.StepShare}},
		`"on_failure":["allow"]`:                                 {{Do: policy.StepAllow}},
		`"on_failure":[{"share":"30s"},"allow"]`:                 policy.DefaultOnFailure,
		`"on_failure":[{"share":"30s","start":"known"},"allow"]`: policy.DefaultOnFailure,
		`"on_failure":[{"allow":"10s"},{"share":"5m","start":"empty"},"deny"]`: {{For: 10 * quota.Second, Do: policy.StepAllow},
			{For: 5 * quota.Minute, Do: policy.StepShare, Empty: true}, {Do: policy.StepDeny}},
		`"on_failure":[{"deny":"1s"},{"share":"forever","start":"empty"}]`: {{For: quota.Second, Do: policy.StepDeny}, {Do: policy.StepShare, Empty: true}},
	} {
		set, err := decode(t, inPolicy(field))
		if err != nil || set.Policies[0].OnFailure != want {
			t.Errorf("%s: %v %+v", field, err, set)
		}
	}
}

func TestAddresses(t *testing.T) {
	for _, c := range []struct {
		network string
		v4, v6  bool
	}{
		{"::/0", false, true}, {"0.0.0.0/0", true, false}, {`0.0.0.0/0","::/0`, true, true}, {"::/80", false, false},
		{"::ffff:0:0/96", true, false},
	} {
		set, err := decode(t, `{"version":"weir/v1","banned":{"client_ips":["`+c.network+`"]}}`)
		if err != nil {
			t.Fatal(err)
		}
		v4, _, _ := ipaddr.ParseNetwork("203.0.113.7")
		v6, _, _ := ipaddr.ParseNetwork("2001:db8::1")
		if policy.Contains(set.Banned, v4) != c.v4 || policy.Contains(set.Banned, v6) != c.v6 {
			t.Errorf("%s: %v", c.network, set.Banned)
		}
	}
	set, err := decode(t, `{"version":"weir/v1","banned":{"client_ips":["10.0.0.0/8","10.1.2.3","192.0.2.7","2001:db8::/32","9.255.255.255/32","::1","10.255.0.0/16"]}}`)
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Banned) != 5 {
		t.Errorf("%d ranges, want 5: %v", len(set.Banned), set.Banned)
	}
	for address, want := range map[string]bool{
		"10.0.0.0": true, "10.255.255.255": true, "11.0.0.0": false, "9.255.255.255": true, "9.255.255.254": false,
		"192.0.2.7": true,
		"192.0.2.8": false, "2001:db8::1": true, "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff": true, "2001:db9::": false,
		"::1": true, "::2": false, "0.0.0.1": false,
	} {
		if got := policy.Contains(set.Banned, netip.MustParseAddr(address).As16()); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
	if policy.Contains(nil, ipaddr.Addr{}) {
		t.Error("an empty list holds an address")
	}
}

func TestSpans(t *testing.T) {
	for text, want := range map[string]quota.Span{"1s": quota.Second, "250ms": 250 * quota.Millisecond,
		"90m": 90 * quota.Minute, "366d": quota.MaxWindow, "0s": 0} {
		if got, ok := policy.ParseSpan(text); !ok || got != want {
			t.Errorf("%s: %d %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "s", "1", "-1s", "+1s", "1.5s", "1 s", "1us", "1w", "99999999999999999999s",
		"9223372036854775807d"} {
		if got, ok := policy.ParseSpan(text); ok {
			t.Errorf("%q was read as %d", text, got)
		}
	}
	for span, want := range map[quota.Span]string{quota.Hour: "1h", 90 * quota.Second: "90s", quota.Day * 30: "30d",
		1500 * quota.Millisecond: "1500ms", 1: "1ms", 0: "0s"} {
		if got := policy.FormatSpan(span); got != want {
			t.Errorf("%d: %s, want %s", span, got, want)
		}
	}
}

func TestBounds(t *testing.T) {
	set, err := decode(t, `{"version":"weir/v1","policies":[
		{"name":"a","partition":["client_ip"],"limit":{"quota":100,"window":"1h"}},
		{"name":"b","partition":[],"limit":{"quota":12000,"window":"1s","burst":6000},"mode":"leased","on_failure":{"then":"deny"}},
		{"name":"c","partition":[],"limit":[{"quota":5,"window":"1m"},{"quota":50,"window":"1h"}],"mode":"local"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		"at most 100 at once + 100 per 1h for each partition key over all Envoys, in every interval",
		"at most 6 000 at once + 12 000 per 1s over all Envoys, in every interval",
		"at most 5 at once + 5 per 1m, and at most 50 at once + 50 per 1h on each Envoy, in every interval",
	} {
		if got := set.Policies[i].Bound(nil); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if got := strings.Join(set.Policies[1].Notes(10), "|"); got != "its bucket refills within a second, so nothing "+
		"is leased: every request asks the control plane, as in strict|without the control plane: deny" {
		t.Errorf("notes: %s", got)
	}
	if got := strings.Join(set.Policies[0].Notes(10), "|"); got != "without the control plane: each Envoy's even "+
		"share for 30s, then allow|the shares of all Envoys together admit at most one more burst, once for an outage" {
		t.Errorf("notes: %s", got)
	}
}

func TestDecodePlugin(t *testing.T) {
	decode := func(doc string) (*policy.Plugin, error) {
		node, err := policy.ParseJSON([]byte(doc))
		if err != nil {
			return nil, err
		}
		return policy.DecodePlugin(node)
	}
	p, err := decode(`{"control_plane": {"cluster": "weir", "token": {"env": "WEIR_NODE_TOKEN"}, "authority": "cp"},
		"node": {"id": "", "zone": "eu-1"}, "table": {"keys": 2048}, "policyset": null}`)
	if err != nil {
		t.Fatal(err)
	}
	want := &policy.Plugin{ControlPlane: &policy.ControlPlane{Cluster: "weir", Authority: "cp",
		TokenEnv: "WEIR_NODE_TOKEN"}, Zone: "eu-1", Keys: 2048}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("got %+v, want %+v", p, want)
	}
	for doc, want := range map[string]string{
		`{}`:                                "has neither control_plane nor policyset: there would be nothing to limit",
		`{"controlplane":{}}`:               "controlplane: unknown field: did you mean control_plane?",
		`{"control_plane":{"cluster":"c"}}`: `control_plane.token: is missing: write "token": {"env": "WEIR_NODE_TOKEN"}`,
		`{"policyset":{"version":"weir/v1","policies":[{"name":"p"}]}}`: "policyset.policies[0].limit: is missing: write limit: {quota: 100, window: 1m}\n" +
			"policyset.policies[0].partition: is missing: say whose bucket it is, [] for one bucket for all",
		`{"policyset":{"version":"weir/v1"},"table":{"keys":1}}`:  "table.keys: must be a whole number from 1024 to 4194304, not 1",
		`{"policyset":{"version":"weir/v1"},"node":{"id":"a b"}}`: `node.id: must be of printable characters without spaces, not "a b"`,
	} {
		if p, err := decode(doc); err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v (%+v)\nwant %s", doc, err, p, want)
		}
	}
}

// A hostile document costs no more time than its size: neither in a mapping of many fields nor in
// one of many tiers.
func TestMappingsOfManyFieldsAreRefusedAtOnce(t *testing.T) {
	many := policy.Node{Kind: policy.Map}
	for i := range 200_000 {
		many.Keys = append(many.Keys, strconv.Itoa(i))
		many.Items = append(many.Items, policy.Node{Kind: policy.Map})
	}
	_, err := policy.Decode(many)
	if err == nil || !strings.Contains(err.Error(), "has 200000 fields") {
		t.Errorf("got %v", err)
	}
	doc, err := policy.ParseJSON([]byte(tiered(`"limits":{"free":{"quota":1,"window":"1s"}}`)))
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range doc.Keys {
		if key == "policies" {
			for k, field := range doc.Items[i].Items[0].Keys {
				if field == "limits" {
					doc.Items[i].Items[0].Items[k] = many
				}
			}
		}
	}
	if _, err := policy.Decode(doc); err == nil || !strings.Contains(err.Error(), "limits") {
		t.Errorf("got %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(inPolicy(`"cost":{"header":"x"}`))
	f.Add(`{"version":"weir/v1","identity":{"consumer":[{"header":"x"}]}}`)
	f.Add(tiered(`"limits":{"premium":"unlimited","free":[{"quota":5,"window":"1s"}]},"candidate":{"limit":{"quota":5,"window":"1s"}}`))
	f.Add(figured(`"quota":{"jwt":"plan.rpm","max":6000,"default":60},"burst":{"header":"x-b","trusted":true,"max":50,"default":5}`, ""))
	f.Add(figured(`"quota":{"metadata":"a/b","max":6000,"default":60}`, `,"algorithm":"sliding_window"`))
	f.Fuzz(func(t *testing.T, doc string) {
		if node, err := policy.ParseJSON([]byte(doc)); err == nil {
			if set, err := policy.Decode(node); err == nil {
				for _, p := range set.Policies {
					_, _ = p.Bound(set.Tiers), p.Notes(10)
				}
			}
			_, _ = policy.DecodePlugin(node)
		}
	})
}
