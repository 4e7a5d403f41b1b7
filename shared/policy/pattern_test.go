package policy_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/spelling"
)

// withPolicy is the part of a set that is right but for a field of its one policy.
func withPolicy(field string) string {
	return `"policies":[{"name":"p","partition":[],"limit":{"quota":1,"window":"1s"},` + field + `}]`
}

// Patterns are read in any spelling of a clear path, and matched in the spelling of requests.
func TestPatternsHaveTheSpellingOfRequests(t *testing.T) {
	for in, want := range map[string]string{
		"/":                     "/",
		"/v1/items":             "/v1/items",
		"/v1/items/":            "/v1/items/",
		"/v1/{id}/**":           "/v1/{id}/**",
		"/**":                   "/**",
		"/café":                 "/caf%C3%A9",
		"/caf%c3%a9":            "/caf%C3%A9",
		"/a b":                  "/a%20b",
		"/a%20b":                "/a%20b",
		"/%61":                  "/a",
		"/users/%40me":          "/users/@me",
		"/users/@me":            "/users/@me",
		"/a%2fb":                "/a%2Fb",
		"/x:batchGet":           "/x:batchGet",
		"/users/%3Aid":          "/users/:id",
		"/%3Cid%3E":             "/<id>",
		"/%7bid%7d/%2a":         "/%7Bid%7D/%2A",
		"/a%3Fb%23c":            "/a%3Fb%23c",
		"/a;b":                  "/a;b",
		"/a,b+c=d&e":            "/a,b+c=d&e",
		"/users/{user_id-2}/**": "/users/{user_id-2}/**",
	} {
		if got, problem := policy.Pattern(in, 0); got != want || problem != "" {
			t.Errorf("%s became %q, %q; want %q", in, got, problem, want)
		}
	}
}

// A pattern that no request can have is refused with the right spelling.
func TestPatternsThatMatchNothing(t *testing.T) {
	for in, want := range map[string]string{
		"v1":              "must start with /",
		"/a//b":           "empty or dot segment",
		"/a/../b":         "empty or dot segment",
		"/a/%2e%2E/b":     "empty or dot segment",
		"/users/:id":      "write {id}",
		"/users/<id>/x":   "write {id}",
		"/users/{id:\\d}": "takes no expression",
		"/users/{i d}":    "takes no expression",
		"/a/*/b":          "must be whole segments",
		"/a*":             "must be whole segments",
		"/a/**/b":         "must be whole segments",
		"/a?b=c":          "%3F",
		"/a#b":            "%23",
		"/a\\b":           "%5C",
		"/100%":           "%25",
		"/100%zz":         "%25",
		"/a\nb":           "control character",
	} {
		if got, problem := policy.Pattern(in, 0); got != "" || !strings.Contains(problem, want) {
			t.Errorf("%s became %q, and its problem is %q, want %q in it", in, got, problem, want)
		}
	}
}

// Patterns are read as the paths of requests are.
func TestPatternsAreReadAsServicesRoute(t *testing.T) {
	for in, want := range map[string]string{
		"/LOGIN/": "/login", "/": "/", "/V1/**": "/v1/**", "/Users/{Id}/": "/users/{Id}", "/A%2F%C3%89": "/a%2F%C3%89",
	} {
		got, problem := policy.Pattern(in, spelling.AnyRouting)
		if got != want {
			t.Errorf("%s became %s, want %s: %s", in, got, want, problem)
		}
	}
	if got, problem := policy.Pattern("/a//", spelling.AnyRouting); problem == "" {
		t.Errorf("an empty segment became %s", got)
	}
}

// The same holds wherever a set names paths, hosts or headers.
func TestWhatMatchesNothingIsRefusedEverywhere(t *testing.T) {
	for _, c := range []struct{ name, set, want string }{
		{"an exempt path", `"exempt":{"paths":["/users/:id"]}`, "exempt.paths[0]: has :id"},
		{"a class", `"priorities":[{"name":"a","match":{"paths":["/a?b"]}},{"name":"b"}]`, "priorities[0].match.paths[0]: is matched"},
		{"a parameter that is cut", `"match":{"path_parameters":"cut"},` + `"policies":[{"name":"p","match":{"paths":["/a;b"]},` +
			`"partition":[],"limit":{"quota":1,"window":"1s"}}]`, "policies[0].match.paths[0]: has a semicolon"},
		{"in an exempt path", `"exempt":{"paths":["/a;b"]},"match":{"path_parameters":"cut"}`, "exempt.paths[0]: has a semicolon"},
		{"a path that is too long once encoded", withPolicy(`"match":{"paths":["/` + strings.Repeat("é", 400) + `"]}`),
			"policies[0].match.paths[0]: has more than 1024 bytes as requests spell it"},
		{"the header Host", withPolicy(`"match":{"headers":[{"name":"Host","equals":"a"}]}`), "use match.hosts"},
		{"a value with blanks", withPolicy(`"match":{"headers":[{"name":"a","equals":"b "}]}`), "headers[0].equals: has blanks"},
		{"a prefix with a blank before", withPolicy(`"match":{"headers":[{"name":"a","prefix":" b"}]}`), "headers[0].prefix: has blanks"},
		{"a value with a new line", withPolicy(`"match":{"headers":[{"name":"a","equals":"b\nc"}]}`), "headers[0].equals: has blanks"},
		{"a name beyond ASCII where nothing encodes it", withPolicy(`"match":{"hosts":["bücher.example"]}`), "in Punycode"},
		{"a zone", withPolicy(`"match":{"hosts":["[fe80::1%eth0]"]}`), "must be a host name"},
		{"an address with port", withPolicy(`"match":{"hosts":["[::1]:80"]}`), "must be a host name"},
		{"nothing appended, and no hop", `"identity":{"client_ip":{"appended":false}}`, "identity.client_ip.appended: cannot be false"},
		{"a word for appended", `"identity":{"client_ip":{"appended":"no"}}`, "identity.client_ip.appended: must be true or false"},
		{"another word", `"match":{"path_parameters":"drop"}`, "match.path_parameters: must be one of keep, cut"},
		{"a case", `"match":{"path_case":"lower"}`, "match.path_case: must be one of keep, fold"},
		{"a slash", `"match":{"trailing_slash":"fold"}`, "match.trailing_slash: must be one of keep, cut"},
		{"several", `"identity":{"if_several":"last"}`, "identity.if_several: must be one of deny, first, joined"},
	} {
		_, err := decode(t, `{"version":"weir/v1",`+c.set+`}`)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q in it", c.name, err, c.want)
		}
	}
}

// A clear text is read as it is meant.
func TestHostsAndHeadersHaveOneSpelling(t *testing.T) {
	set, err := decode(t, `{"version":"weir/v1",`+withPolicy(`"match":{"hosts":["[2001:DB8::1]","2001:db8:0:0::2",
		"API.example.com.","*.example.org"],"headers":[{"name":"X_Api-Key","prefix":"a "}]}`)+`,
		"identity":{"client_ip":{"trusted_hops":1,"appended":false},"if_several":"joined"},"match":{"path_parameters":"cut"}}`)
	if err != nil {
		t.Fatal(err)
	}
	m := set.Policies[0].Match
	const want = "[2001:db8:0:0:0:0:0:1] [2001:db8:0:0:0:0:0:2] api.example.com *.example.org"
	if got := strings.Join(m.Hosts, " "); got != want {
		t.Errorf("hosts %s", got)
	}
	if id := set.Identity; m.Headers[0].Name != "x-api-key" || id.IfSeveral != policy.SeveralJoined ||
		!id.NotAppended || set.Routing != spelling.CutParameters {
		t.Errorf("%+v %+v %v", m.Headers, set.Identity, set.Routing)
	}
}
