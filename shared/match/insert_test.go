package match_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// byValue are the ways in which the policies of a set differ by a value. Each makes the i-th match,
// and the request that it alone is for.
var byValue = []struct {
	name    string
	match   func(i int) string
	request func(i int) *match.Attributes
}{
	{"a header", func(i int) string { return fmt.Sprintf(`{"headers":[{"name":"x-tenant","equals":"t%d"}]}`, i) },
		func(i int) *match.Attributes { return request("GET", "h", "/a", "x-tenant", fmt.Sprint("t", i)) }},
	{"a header below a path", func(i int) string {
		return fmt.Sprintf(`{"paths":["/a/**","/b"],"headers":[{"name":"x-tenant","equals":"t%d"}]}`, i)
	}, func(i int) *match.Attributes { return request("GET", "h", "/a/c", "x-tenant", fmt.Sprint("t", i)) }},
	{"a header of a host", func(i int) string {
		return fmt.Sprintf(`{"hosts":["h","*.example.com"],"headers":[{"name":"x-tenant","equals":"t%d"}]}`, i)
	}, func(i int) *match.Attributes {
		return request("GET", "a.example.com", "/a", "x-tenant", fmt.Sprint("t", i))
	}},
	{"the second of two headers", func(i int) string {
		return fmt.Sprintf(`{"headers":[{"name":"x-env","equals":"live"},{"name":"x-tenant","equals":"t%d"}]}`, i)
	}, func(i int) *match.Attributes {
		return request("GET", "h", "/a", "x-env", "live", "x-tenant", fmt.Sprint("t", i))
	}},
	{"a header beside other conditions", func(i int) string {
		return fmt.Sprintf(`{"methods":["GET"],"client_ips":["10.0.0.0/8"],
			"headers":[{"name":"x-b","absent":true},{"name":"x-tenant","equals":"t%d"}]}`, i)
	}, func(i int) *match.Attributes {
		a := request("GET", "h", "/a", "x-tenant", fmt.Sprint("t", i))
		copy(a.Address[10:], "\xff\xff\x0a\x00\x00\x01")
		return a
	}},
	{"headers of two kinds in turn", func(i int) string {
		return fmt.Sprintf(`{"headers":[{"name":"x-%d","equals":"t%d"}]}`, i%2, i)
	}, func(i int) *match.Attributes {
		return request("GET", "h", "/a", fmt.Sprintf("x-%d", i%2), fmt.Sprint("t", i))
	}},
	{"a token", func(i int) string {
		return fmt.Sprintf(`{"headers":[{"name":"authorization","equals":"Bearer t%d"}]}`, i)
	}, func(i int) *match.Attributes {
		return request("GET", "h", "/a", "authorization", fmt.Sprint("bearer  t", i))
	}},
	{"one of a header's values", func(i int) string {
		return fmt.Sprintf(`{"headers":[{"name":"x-tenant","equals":"t%d"}]}`, i)
	}, func(i int) *match.Attributes {
		return request("GET", "h", "/a", "x-tenant", "none", "x_tenant", fmt.Sprintf("t%d, t%d", i, i), "x-tenant", "")
	}},
}

// The cost of a request does not grow with the policies for other values.
func TestPoliciesOfOtherValuesAreNotLookedAt(t *testing.T) {
	for _, by := range byValue {
		few := 0
		for _, n := range []int{10, 5000} {
			matches := make([]string, n)
			for i := range matches {
				matches[i] = by.match(i)
			}
			ix := compile(t, policies(matches...))
			var m match.Matcher
			for _, i := range []int{0, n / 2, n - 1} {
				if got := names(ix, m.Match(ix, by.request(i)).Hits); got != fmt.Sprint("p", i) {
					t.Errorf("%s, %d policies: the request of policy %d has the hits %q", by.name, n, i, got)
				}
				few = max(few, match.LookedAt(&m))
				if n > 10 && match.LookedAt(&m) > few || few > 2 {
					t.Errorf("%s: of %d policies a request looks at %d", by.name, n, match.LookedAt(&m))
				}
			}
		}
	}
}

// All policies of a list stand behind the same gates, whatever stands between them.
func TestAListHasOneGateForEachPlace(t *testing.T) {
	matches := []string{`{}`}
	for i := range 20 {
		matches = append(matches, byValue[0].match(i), `{}`, byValue[5].match(i))
	}
	if got := match.Gates(compile(t, policies(matches...))); got != 3 {
		t.Errorf("%d gates for three headers", got)
	}
}

// A value that is longer than any of a policy set opens no gate, and one of the greatest length
// does.
func TestLongValues(t *testing.T) {
	long := strings.Repeat("x", policy.MaxText)
	ix := compile(t, policies(`{"headers":[{"name":"x-a","equals":"`+long+`"}]}`))
	for value, want := range map[string]string{long: "p0", long + "x": "", long[1:]: ""} {
		if got := names(ix, hold(ix, request("GET", "h", "/", "x-a", value)).Hits); got != want {
			t.Errorf("a value of %d bytes has the hits %q", len(value), got)
		}
	}
}

// Policies by the values of more places than there are gates apply as all others do.
func TestMorePlacesThanGates(t *testing.T) {
	const n = 150
	matches := make([]string, n)
	for i := range matches {
		matches[i] = fmt.Sprintf(`{"headers":[{"name":"x-%d","equals":"a"},{"name":"x-%d","equals":"b"}]}`, i, (i+1)%n)
	}
	ix := compile(t, policies(matches...))
	for i := range n {
		a := request("GET", "h", "/",
			fmt.Sprint("x-", i), "a", fmt.Sprint("x-", (i+1)%n), "b", fmt.Sprint("x-", (i+2)%n), "b")
		if got := names(ix, hold(ix, a).Hits); got != fmt.Sprint("p", i) {
			t.Errorf("the request of policy %d has the hits %q", i, got)
		}
	}
}

// one draws one of some texts.
func oneOf(r *rand.Rand, from ...string) string { return from[r.IntN(len(from))] }

// some draws up to most different texts of some, as a list in JSON.
func some(r *rand.Rand, most int, from ...string) string {
	from = slices.Clone(from)
	r.Shuffle(len(from), func(i, k int) { from[i], from[k] = from[k], from[i] })
	return `["` + strings.Join(from[:1+r.IntN(min(most, len(from)))], `","`) + `"]`
}

// drawMatch draws a match of few hosts, paths and values, so that they meet often.
func drawMatch(r *rand.Rand) string {
	var fields []string
	if r.IntN(3) == 0 {
		fields = append(fields, `"hosts":`+some(r, 3, "a", "b.a", "*.a", "*.b.a"))
	}
	if r.IntN(2) == 0 {
		fields = append(fields, `"paths":`+some(r, 3, "/", "/a", "/{x}", "/a/{x}", "/a/**", "/**", "/a/b", "/{x}/b"))
	}
	if r.IntN(4) == 0 {
		fields = append(fields, `"methods":`+some(r, 2, "GET", "POST"))
	}
	if r.IntN(6) == 0 {
		fields = append(fields, `"client_ips":`+some(r, 2, "10.0.0.1", "10.1.0.0/16"))
	}
	var headers []string
	for range r.IntN(7) - 1 {
		condition := fmt.Sprintf(`"equals":"%s"`, oneOf(r, "1", "2", "12", "1, 2"))
		switch r.IntN(6) {
		case 0:
			condition = `"prefix":"1"`
		case 1:
			condition = `"present":true`
		case 2:
			condition = `"absent":true`
		}
		name := oneOf(r, "x-a", "x-b", "X_C", "authorization")
		if name == "authorization" {
			condition = strings.NewReplacer(`"1`, `"Bearer 1`, `"2`, `"BEARER 2`).Replace(condition)
		}
		headers = append(headers, fmt.Sprintf(`{"name":"%s",%s}`, name, condition))
	}
	if len(headers) > 0 {
		fields = append(fields, `"headers":[`+strings.Join(headers, ",")+`]`)
	}
	return "{" + strings.Join(fields, ",") + "}"
}

func drawRequest(r *rand.Rand) *match.Attributes {
	a := request(oneOf(r, "GET", "POST"), oneOf(r, "a", "b.a", "c.b.a", "c"),
		oneOf(r, "/", "/a", "/b", "/a/b", "/a/c", "/a/b/c", "/c/b", "*", ""))
	for range r.IntN(6) {
		name := oneOf(r, "x-a", "x_b", "x-b", "x-c", "x_c", "authorization")
		value := oneOf(r, "1", "2", "12", "", " 1", "1,1", "1, 2", "2 ,2 ", "21", "2,1")
		if name == "authorization" {
			value = oneOf(r, "Bearer 1", "bearer  2 ", "Bearer 1, bearer 2", "1", "Bearer 12", "")
		}
		a.Headers = append(a.Headers, match.Header{Name: []byte(name), Value: []byte(value)})
	}
	a.ClientIP = []byte{10, byte(r.IntN(2)), 0, 1}
	copy(a.Address[:], "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff")
	copy(a.Address[12:], a.ClientIP)
	return a
}

// values returns the values of a request's header, as the page on identity describes: without
// blanks around them, a list of equal elements as one value, bearer tokens split with a scheme in
// lower case; no empty values.
func values(a *match.Attributes, name string) (all []string) {
	for _, h := range a.Headers {
		if strings.ReplaceAll(string(h.Name), "_", "-") != name {
			continue
		}
		said := []string{oneSpelling(string(h.Value))}
		if name == "authorization" {
			said = []string{strings.ToLower(strings.Join(strings.Fields(string(h.Value)), " "))}
			if strings.HasPrefix(said[0], "bearer ") {
				said = strings.Split(said[0], ",")
			}
		}
		for _, one := range said {
			if one = strings.Trim(one, " "); one != "" {
				all = append(all, one)
			}
		}
	}
	return all
}

// meetsPath reports whether a path is one of a pattern. All that is no path is below the root.
func meetsPath(pattern, path string) bool {
	if rest, below := strings.CutSuffix(pattern, "/**"); below {
		return rest == "" || path == rest || strings.HasPrefix(path, rest+"/")
	}
	want, got := strings.Split(pattern, "/"), strings.Split(path, "/")
	same := len(want) == len(got)
	for i := 0; same && i < len(want); i++ {
		same = want[i] == got[i] || strings.HasPrefix(want[i], "{") && got[i] != ""
	}
	return same
}

// placed reports whether a request's host and path match; meets reports whether everything matches.
// They read the policy set itself, one policy after the other.
func placed(m *policy.Match, a *match.Attributes) bool {
	host, path := string(a.Host), string(a.Path)
	return (len(m.Hosts) == 0 || slices.ContainsFunc(m.Hosts, func(h string) bool {
		suffix, any := strings.CutPrefix(h, "*")
		return h == host || any && strings.HasSuffix(host, suffix)
	})) && (len(m.Paths) == 0 || slices.ContainsFunc(m.Paths, func(p string) bool { return meetsPath(p, path) }))
}

func meets(m *policy.Match, a *match.Attributes) bool {
	for _, h := range m.Headers {
		all := values(a, h.Name)
		holds := false
		switch h.Op {
		case policy.HeaderAbsent:
			holds = len(all) == 0
		case policy.HeaderPresent:
			holds = len(all) > 0
		case policy.HeaderEquals:
			holds = slices.Contains(all, h.Value)
		case policy.HeaderPrefix:
			holds = slices.ContainsFunc(all, func(v string) bool { return strings.HasPrefix(v, h.Value) })
		}
		if !holds {
			return false
		}
	}
	return placed(m, a) && (len(m.Methods) == 0 || slices.Contains(m.Methods, string(a.Method))) &&
		(len(m.ClientIPs) == 0 || policy.Contains(m.ClientIPs, a.Address))
}

// The policies that apply to a request are the policies whose match holds, read one after the
// other. Their hits are the hits of each policy alone, for every way to read several values.
func TestMatchIsThatOfEachPolicyAlone(t *testing.T) {
	for seed := range uint64(1500) {
		r := rand.New(rand.NewPCG(seed, 7))
		matches := make([]string, 1+r.IntN(40))
		for i := range matches {
			matches[i] = drawMatch(r)
		}
		doc := strings.ReplaceAll(policies(matches...), `"partition":[]`, `"partition":["header:x-a"],"if_absent":"shared"`)
		doc = strings.Replace(doc, `"policies"`, `"identity":{"if_several":"`+oneOf(r, "deny", "first", "joined")+`"},"policies"`, 1)
		set := decode(t, doc)
		ix := &match.Index{}
		snapshot := wire.AppendSnapshot(nil, wire.Snapshot{Version: 7, Secret: secret, Set: set})
		loadInParts(t, ix, snapshot, func() int { return 1 + r.IntN(30) })
		var m, alone match.Matcher
		for range 20 {
			a := drawRequest(r)
			got := m.Match(ix, a)
			want, applies := []match.Hit{}, []string{}
			for i := range set.Policies {
				if !meets(&set.Policies[i].Match, a) {
					continue
				}
				applies = append(applies, set.Policies[i].Name)
				want = append(want, alone.MatchOne(ix, a, uint32(i), match.Open).Hits...)
			}
			if names(ix, got.Hits) != strings.Join(applies, " ") || !slices.Equal(got.Hits, want) {
				t.Fatalf("seed %d: %s %s%s %q: hits %s, want %s\n%s", seed, a.Method, a.Host, a.Path, a.Headers,
					names(ix, got.Hits), strings.Join(applies, " "), doc)
			}
		}
	}
}
