package match_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

var header = policy.Source{Kind: policy.SourceHeader, Name: "x-api-key"}

func several(t *testing.T, how, fields string) *match.Index {
	return compile(t, `{"version":"weir/v1","identity":{"consumer":[{"header":"x-api-key"}],"if_several":"`+how+`"},
		"policies":[{"name":"p","partition":["consumer","cookie:c"],"if_absent":"shared","limit":{"quota":1,"window":"1h"}`+fields+`}]}`)
}

// The operator decides about a request that names several callers. In every case, none of them gets
// around a ban, of the consumer or of a key, or a penalty.
func TestSeveralValues(t *testing.T) {
	key := func(ix *match.Index, headers ...string) (keyhash.Key, match.Verdict) {
		hits := hold(ix, request("GET", "h", "/", headers...)).Hits
		if len(hits) != 1 {
			t.Fatalf("%d hits of %q", len(hits), headers)
		}
		return hits[0].Key, hits[0].Verdict
	}
	banned := wire.AppendExceptions(nil, wire.Exceptions{Banned: wire.ForGood})
	ab, ba := []string{"x-api-key", "a", "x-api-key", "b"}, []string{"x-api-key", "b", "x-api-key", "a"}
	for how, want := range map[string]struct {
		verdict      match.Verdict
		first, order bool
	}{
		"deny": {match.RefusedSeveral, false, false}, "first": {match.Limited, true, true},
		"joined": {match.Limited, false, false},
	} {
		ix := several(t, how, "")
		one, verdict := key(ix, ab...)
		two, _ := key(ix, ba...)
		a, single := key(ix, "x-api-key", "a")
		if verdict != want.verdict || single != match.Limited || (one == a) != want.first {
			t.Errorf("%s: verdict %d, the first has %v", how, verdict, one == a)
		}
		if how != "deny" && (one != two) != want.order {
			t.Errorf("%s: the order counts: %v", how, one != two)
		}
		for _, headers := range [][]string{ab, ba} {
			r := request("GET", "h", "/", headers...)
			r.Consumers = &known{special: map[keyhash.Key][]byte{match.ConsumerKey(secret, header, "b"): banned}}
			if got := hold(ix, r); got.Ban != match.ConsumerBan {
				t.Errorf("%s of %q: a banned consumer has access %d", how, headers, got.Access)
			}
			crumbs := append([]string{"cookie", "c=x; c=y; c=z"}, headers...)
			by, _ := key(ix, "cookie", "c=z", "x-api-key", "b")
			ix.Enforce(&wire.Enforcement{Bans: []wire.Ban{{Key: by}}}, 0)
			if got := hold(ix, request("GET", "h", "/", crumbs...)); got.Ban != match.KeyBan {
				t.Errorf("%s of %q: a banned key has access %d", how, crumbs, got.Access)
			}
			ix.Enforce(&wire.Enforcement{}, 0)
		}
		many := ab
		for i := range 9 {
			many = append(many, "x-api-key", fmt.Sprint(i))
		}
		if _, verdict := key(ix, many...); verdict != match.RefusedSeveral {
			t.Errorf("%s: eleven values have the verdict %d", how, verdict)
		}
	}
}

// A penalty under every policy holds for each caller that a request names, but refusals bring one
// only to the caller that counts.
func TestPenaltiesOfSeveral(t *testing.T) {
	const wide = `,"penalty":{"after":{"refusals":1,"within":"1m"},"for":"1m","scope":"all"}`
	want := map[string]string{"deny": "a b", "first": "a a b", "joined": "ab a b"}
	for how, want := range want {
		ix := several(t, how, wide)
		names := map[keyhash.Key]string{}
		for _, who := range []string{"a", "b"} {
			names[match.WideKey(secret, "p", match.ConsumerKey(secret, header, who))] = who
		}
		var got []string
		for _, s := range hold(ix, request("GET", "h", "/", "x-api-key", "a", "x-api-key", "b")).Subjects {
			who := names[s.Key]
			if who == "" {
				who = "ab"
			}
			got = append(got, who)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %s, want %s", how, got, want)
		}
	}
}

// However many other values stand before it, a banned one does not get through, also where no
// policy counts by the caller: a request with more values than can be looked up is refused while
// consumers are banned, and only then.
func TestABanBehindManyValues(t *testing.T) {
	sources := map[string]policy.Source{
		"header": header, "cookie": {Kind: policy.SourceCookie, Name: "session"},
		"query": {Kind: policy.SourceQuery, Name: "api_key"},
	}
	for _, how := range []string{"deny", "first", "joined"} {
		ix := compile(t, `{"version":"weir/v1","identity":{"if_several":"`+how+`",
			"consumer":[{"header":"x-api-key"},{"cookie":"session"},{"query":"api_key"}]},
			"policies":[{"name":"p","partition":["client_ip"],"limit":{"quota":1,"window":"1h"}}]}`)
		for place, source := range sources {
			banned := &known{special: map[keyhash.Key][]byte{
				match.ConsumerKey(secret, source, "abc"): wire.AppendExceptions(nil,
					wire.Exceptions{Banned: wire.ForGood}),
			}}
			for n := range 80 {
				a := requestWith(place, n, "abc")
				if got := hold(ix, a); got.Access != match.Open {
					t.Fatalf("%s, %s: without bans %d values have the access %d", how, place, n+1, got.Access)
				}
				a.Consumers = banned
				got := hold(ix, a)
				holds := got.Ban == match.ConsumerBan || n >= 8 && got.Ban == match.PossibleBan
				if got.Access != match.Banned || !holds {
					t.Errorf("%s, %s: behind %d others: access %d, ban %d", how, place, n, got.Access, got.Ban)
				}
				other := requestWith(place, n, "abd")
				other.Consumers = banned
				if got := hold(ix, other); (got.Ban == match.NoBan) != (n < 8) || got.Ban == match.ConsumerBan {
					t.Errorf("%s, %s: %d values of which none is banned have the ban %d", how, place, n+1, got.Ban)
				}
			}
		}
	}
}

// requestWith returns a request with n values at a place, and a last value.
func requestWith(place string, n int, last string) *match.Attributes {
	a := request("GET", "h", "/")
	for i := range n + 1 {
		value := fmt.Sprint("v", i)
		if i == n {
			value = last
		}
		switch place {
		case "header":
			a.Headers = append(a.Headers, match.Header{Name: []byte("x-api-key"), Value: []byte(value)})
		case "cookie":
			a.Headers = append(a.Headers, match.Header{Name: []byte("cookie"), Value: []byte("session=" + value)})
		case "query":
			a.Query = append(a.Query, "&api_key="+value...)
		}
	}
	return a
}

// A penalty of a policy holds for each of the callers that a request names, and the request counts
// for its caller alone.
func TestPenaltiesOfAPolicyOfSeveral(t *testing.T) {
	const own = `,"penalty":{"after":{"refusals":1,"within":"1m"},"for":"1m"}`
	for _, how := range []string{"first", "joined"} {
		ix := several(t, how, own)
		alone := func(headers ...string) keyhash.Key {
			subjects := hold(ix, request("GET", "h", "/", headers...)).Subjects
			if len(subjects) != 1 {
				t.Fatalf("%s: %d subjects of %q", how, len(subjects), headers)
			}
			return subjects[0].Key
		}
		a, b := alone("x-api-key", "a", "cookie", "c=x"), alone("x-api-key", "b", "cookie", "c=y")
		result := hold(ix, request("GET", "h", "/", "x-api-key", "a", "x-api-key", "b", "cookie", "c=x; c=y"))
		found := map[keyhash.Key]bool{}
		for _, s := range result.Subjects {
			found[s.Key] = true
		}
		if !found[a] || !found[b] || (result.Subjects[0].Key == a) != (how == "first") {
			t.Errorf("%s: the subjects are %v", how, result.Subjects)
		}
		without := hold(ix, request("GET", "h", "/", "x-api-key", "a", "x-api-key", "b"))
		if without.Hits[0].Key == result.Hits[0].Key {
			t.Errorf("%s: the bucket does not depend on the cookie", how)
		}
	}
}

// In shadow several values are refused as all else is: counted, and the request goes on.
func TestSeveralValuesInShadow(t *testing.T) {
	ix := several(t, "deny", `,"enforcement":"shadow"`)
	hits := hold(ix, request("GET", "h", "/", "x-api-key", "a", "x-api-key", "b")).Hits
	if len(hits) != 1 || !hits[0].Shadow || hits[0].Verdict != match.RefusedSeveral {
		t.Errorf("%+v", hits)
	}
}

// claim is a claim of a token as Envoy hands it over.
type claim []byte

func (c claim) Property([]byte) []byte { return c }

// Long lists are one caller in any order too. Lists that are too long are no caller, and are
// counted.
func TestLongLists(t *testing.T) {
	ix := compile(t, `{"version":"weir/v1","identity":{"consumer":[{"jwt":"groups"}]},
		"policies":[{"name":"p","partition":["consumer"],"if_absent":"deny","limit":{"quota":1,"window":"1h"}}]}`)
	list := func(n int, turned bool) claim {
		b := []byte{byte(n), byte(n >> 8), 0, 0}
		for range n {
			b = append(b, 4, 0, 0, 0, 0, 0, 0, 0)
		}
		for i := range n {
			if turned {
				i = n - 1 - i
			}
			b = append(append(b, fmt.Sprintf("g%03d", i)...), 0, 0)
		}
		return b
	}
	var m match.Matcher
	find := func(c claim) match.Hit {
		a := request("GET", "h", "/")
		a.Properties = c
		return m.Match(ix, a).Hits[0]
	}
	for _, n := range []int{2, 16, 17, 20, 200, 256} {
		if one, two := find(list(n, false)), find(list(n, true)); one.Key != two.Key || one.Verdict != match.Limited {
			t.Errorf("%d elements: %v and turned %v", n, one, two)
		}
	}
	if m.Objects != 0 {
		t.Errorf("%d lists count as too long", m.Objects)
	}
	if got := find(list(257, false)); got.Verdict != match.RefusedAbsent || m.Objects == 0 {
		t.Errorf("257 elements: %v, %d counted", got, m.Objects)
	}
}

// Claims of every JSON type: an object is no caller, and is counted; the elements of a list are one
// caller in any order, and one alone is itself. A number has one spelling, also an operator's.
func TestClaimsOfEveryType(t *testing.T) {
	ix := compile(t, `{"version":"weir/v1","identity":{"consumer":[{"jwt":"sub"}]},
		"policies":[{"name":"p","partition":["consumer"],"limit":{"quota":1,"window":"1h"}}]}`)
	sub := policy.Source{Kind: policy.SourceJWT, Name: "sub"}
	pairs := func(texts ...string) claim {
		b := []byte{byte(len(texts) / 2), 0, 0, 0}
		for _, text := range texts {
			b = append(b, byte(len(text)), 0, 0, 0)
		}
		for _, text := range texts {
			b = append(append(b, text...), 0)
		}
		return b
	}
	seven := claim{0, 0, 0, 0, 0, 0, 0x1c, 0x40}
	var m match.Matcher
	held := func(c claim) (keyhash.Key, bool) {
		a := request("GET", "h", "/")
		a.Properties = c
		hits := m.Match(ix, a).Hits
		if len(hits) == 0 {
			return keyhash.Key{}, false
		}
		return hits[0].Key, true
	}
	key := func(text string) keyhash.Key {
		return plainBucket(&decode(t, `{"version":"weir/v1","identity":{"consumer":[{"jwt":"sub"}]},
			"policies":[{"name":"p","partition":["consumer"],"limit":{"quota":1,"window":"1h"}}]}`).Policies[0],
			match.Value{Text: []byte(text), Source: sub})
	}
	for text, c := range map[string]claim{"alice": claim("alice"), "7": seven, "true": {1}, "false": {0},
		"one": pairs("one", ""), "twice": pairs("twice", "", "twice", ""), "eight888": claim("eight888")} {
		if got, ok := held(c); !ok || got != key(text) {
			t.Errorf("%q is not %s", []byte(c), text)
		}
	}
	for _, c := range []claim{pairs("a", "1", "b", "2"), pairs(string(pairs("a", "1")), ""), pairs(), {}} {
		if _, ok := held(c); ok {
			t.Errorf("%q is a caller", []byte(c))
		}
	}
	if m.Objects != 2 {
		t.Errorf("%d objects are counted, want 2", m.Objects)
	}
	one, _ := held(pairs("a", "", "b", "", string(seven), ""))
	two, _ := held(pairs(string(seven), "", "b", "", "a", "", "b", ""))
	three, _ := held(pairs("a", "", "c", ""))
	if one != two || one == three || one == key("a") {
		t.Error("a list is another caller in another order, or another list is the same caller")
	}
}

// A value is read and hashed once for a request, however many policies use it: the bytes of garbage
// and the calls into Envoy are the same as for one policy.
func TestAValueIsReadOnceForARequest(t *testing.T) {
	var policies []string
	for i := range 100 {
		policies = append(policies, fmt.Sprintf(`{"name":"p%d","partition":["jwt:sub","header:x-k","path"],"limit":{"quota":1,"window":"1h"}}`, i))
	}
	ix := compile(t, `{"version":"weir/v1","policies":[`+strings.Join(policies, ",")+`]}`)
	asked := &claims{}
	a := request("GET", "h", "/"+strings.Repeat("p", 50_000), "x-k", strings.Repeat("k", 50_000))
	a.Properties = asked
	var m match.Matcher
	if hits := m.Match(ix, a).Hits; len(hits) != 100 || asked.asked != 1 || match.Hashed(&m) > 100*250+2*50_001 {
		t.Errorf("%d hits, Envoy was asked %d times, %d bytes were hashed", len(hits), asked.asked, match.Hashed(&m))
	}
}

// A condition on credentials holds for each spelling of them, and a condition on a header for each
// spelling of its name.
func TestConditionsHoldForEachSpelling(t *testing.T) {
	for condition, want := range map[string]bool{
		`{"name":"Authorization","equals":"Bearer Abc"}`: true, `{"name":"authorization","prefix":"BEARER "}`: true,
		`{"name":"authorization","prefix":"Bearer"}`: true, `{"name":"authorization","equals":"Bearer abc"}`: false,
		`{"name":"X_Client","equals":"mobile"}`: true, `{"name":"x-client","absent":true}`: false,
		`{"name":"x-none","absent":true}`: true, `{"name":"x-client","prefix":"mobile2"}`: false,
	} {
		ix := compile(t, `{"version":"weir/v1","policies":[{"name":"p","match":{"headers":[`+condition+`]},"partition":[],"limit":{"quota":1,"window":"1h"}}]}`)
		a := request("GET", "h", "/", "authorization", "beARer   Abc ", "x_client", "\tmobile ")
		if got := len(hold(ix, a).Hits) == 1; got != want {
			t.Errorf("%s holds: %v", condition, got)
		}
	}
}
