package match_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/ipaddr"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// secret is the secret of the sets that tests compile.
var secret = [16]byte{1, 2, 3}

// compile makes an index of a policy set written in JSON.
func compile(t testing.TB, doc string) *match.Index {
	t.Helper()
	return load(t, decode(t, doc))
}

func decode(t testing.TB, doc string) *policy.Set {
	t.Helper()
	node, err := policy.ParseJSON([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	set, err := policy.Decode(node)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func load(t testing.TB, set *policy.Set) *match.Index {
	t.Helper()
	ix := &match.Index{}
	if err := ix.Load(wire.AppendSnapshot(nil, wire.Snapshot{Version: 7, Secret: secret, Set: set})); err != nil {
		t.Fatal(err)
	}
	return ix
}

// policies makes a policy set of bare match clauses, named p0, p1, …
func policies(matches ...string) string {
	var list []string
	for i, m := range matches {
		list = append(list, fmt.Sprintf(`{"name":"p%d","match":%s,"partition":[],"limit":{"quota":1,"window":"1s"}}`, i, m))
	}
	return `{"version":"weir/v1","policies":[` + strings.Join(list, ",") + `]}`
}

// hold matches one request.
func hold(ix *match.Index, a *match.Attributes) match.Result {
	var m match.Matcher
	return m.Match(ix, a)
}

func names(ix *match.Index, hits []match.Hit) string {
	var out []string
	for _, h := range hits {
		out = append(out, string(ix.Text(ix.Policy(h.Policy).Name)))
	}
	return strings.Join(out, " ")
}

func request(method, host, path string, headers ...string) *match.Attributes {
	a := &match.Attributes{Method: []byte(method), Host: []byte(host), Path: []byte(path),
		ClientIP: []byte{10, 0, 0, 1}}
	for i := 0; i < len(headers); i += 2 {
		a.Headers = append(a.Headers, match.Header{Name: []byte(headers[i]), Value: []byte(headers[i+1])})
	}
	return a
}

func TestMatch(t *testing.T) {
	ix := compile(t, policies(
		`{}`,                           // p0: anything
		`{"paths":["/v1/items"]}`,      // p1
		`{"paths":["/v1/items/{id}"]}`, // p2
		`{"paths":["/v1/**"]}`,         // p3
		`{"paths":["/v1/items/{id}/parts/{part}"]}`,                                      // p4
		`{"methods":["POST","PUT"],"paths":["/v1/items"]}`,                               // p5
		`{"hosts":["api.example.com"]}`,                                                  // p6
		`{"hosts":["*.example.com"],"paths":["/v1/**"]}`,                                 // p7
		`{"headers":[{"name":"X-Client","equals":"mobile"}]}`,                            // p8
		`{"headers":[{"name":"x-client","prefix":"mob"},{"name":"x-b","present":true}]}`, // p9
		`{"paths":["/"]}`,          // p10
		`{"paths":["/{code}"]}`,    // p11
		`{"paths":["/v1/items/"]}`, // p12
		`{"paths":["/n"],"client_ips":["10.0.0.0/24","2001:db8::/32"]}`,               // p13
		`{"paths":["/n"],"client_ips":["10.1.0.0/24"]}`,                               // p14
		`{"paths":["/n"],"headers":[{"name":"x-a","absent":true}]}`,                   // p15
		`{"paths":["/n"],"headers":[{"name":"x-a","absent":true}],"methods":["GET"]}`, // p16
	))
	from := func(a *match.Attributes, address string) *match.Attributes {
		a.ClientIP, a.Address = nil, [16]byte{}
		if address != "" {
			a.Address, _, _ = ipaddr.Parse(address)
			a.ClientIP = a.Address[:]
		}
		return a
	}
	for _, c := range []struct {
		a    *match.Attributes
		want string
	}{
		{request("GET", "x", "/v1/items"), "p0 p1 p3"},
		{request("POST", "x", "/v1/items"), "p0 p1 p3 p5"},
		{request("GET", "x", "/v1/items/7"), "p0 p2 p3"},
		{request("GET", "x", "/v1/items/"), "p0 p3 p12"},
		{request("GET", "x", "/v1/items/7/parts/8"), "p0 p3 p4"},
		{request("GET", "x", "/v1/items/7/parts"), "p0 p3"},
		{request("GET", "x", "/v1"), "p0 p3 p11"},
		{request("GET", "x", "/v1/"), "p0 p3"},
		{request("GET", "x", "/v1x/items"), "p0"},
		{request("GET", "x", "/"), "p0 p10"},
		{request("GET", "x", "/abc"), "p0 p11"},
		{request("OPTIONS", "x", "*"), "p0"},
		{request("GET", "x", ""), "p0"},
		{request("GET", "api.example.com", "/z/z"), "p0 p6"},
		{request("GET", "api.example.com", "/v1/z"), "p0 p3 p6 p7"},
		{request("GET", "a.b.example.com", "/v1/z"), "p0 p3 p7"},
		{request("GET", "example.com", "/v1/z"), "p0 p3"},
		{request("GET", "evil-example.com", "/v1/z"), "p0 p3"},
		{request("GET", "x", "/z/z", "x-client", "mobile"), "p0 p8"},
		{request("GET", "x", "/z/z", "x-client", "web", "x-client", "mobile"), "p0 p8"},
		{request("GET", "x", "/z/z", "x-client", "mobility", "x-b", "1"), "p0 p9"},
		{request("GET", "x", "/z/z", "x-client", "mobility", "x-b", ""), "p0"},
		{request("GET", "x", "/z/z", "x-client", "mobility", "x-b", "", "x-b", "1"), "p0 p9"},
		{request("get", "x", "/v1/items"), "p0 p1 p3"},
		{from(request("GET", "x", "/n"), "10.0.0.9"), "p0 p11 p13 p15 p16"},
		{from(request("PUT", "x", "/n", "x-a", ""), "10.0.1.0"), "p0 p11 p15"},
		{from(request("PUT", "x", "/n", "x-b", "1"), "10.1.0.255"), "p0 p11 p14 p15"},
		{from(request("PUT", "x", "/n", "x-a", "1"), "2001:db8:1::1"), "p0 p11 p13"},
		{from(request("PUT", "x", "/n", "x-a", "1"), "::"), "p0 p11"},
		{from(request("PUT", "x", "/n", "x-a", "1"), ""), "p0 p11"},
	} {
		if got := names(ix, hold(ix, c.a).Hits); got != c.want {
			t.Errorf("%s %s%s: hits %s, want %s", c.a.Method, c.a.Host, c.a.Path, got, c.want)
		}
	}
}

// one matches a request against a single policy with the given fields and returns its hit.
func one(t testing.TB, fields string, a *match.Attributes) (match.Hit, bool) {
	t.Helper()
	ix := compile(t, `{"version":"weir/v1","identity":{"consumer":[{"header":"x-api-key"},{"header":"x-user"}]},
		"policies":[{"name":"p","limit":{"quota":9,"window":"1s"},`+fields+`}]}`)
	hits := hold(ix, a).Hits
	if len(hits) == 0 {
		return match.Hit{}, false
	}
	return hits[0], true
}

func TestAbsentParts(t *testing.T) {
	anonymous := request("GET", "h", "/")
	if hit, ok := one(t, `"partition":["consumer"]`, anonymous); ok {
		t.Errorf("skip is the default, got %+v", hit)
	}
	if hit, _ := one(t, `"partition":["consumer"],"if_absent":"deny"`, anonymous); hit.Verdict != match.RefusedAbsent {
		t.Errorf("deny: %+v", hit)
	}
	shared, ok := one(t, `"partition":["consumer"],"if_absent":"shared"`, anonymous)
	if !ok || shared.Verdict != match.Limited {
		t.Fatalf("shared: %+v", shared)
	}
	empty := request("GET", "h", "/", "x-api-key", "", "x-user", "")
	if named, _ := one(t, `"partition":["consumer"],"if_absent":"shared"`, empty); named.Key != shared.Key {
		t.Error("callers with an empty key differ from callers without a key")
	}
	if hit, _ := one(t, `"partition":["consumer"],"if_absent":"deny"`, empty); hit.Verdict != match.RefusedAbsent {
		t.Errorf("deny, with an empty key: %+v", hit)
	}
	keyless := request("GET", "h", "/", "x-api-key", "", "x-user", "alice")
	alice := request("GET", "h", "/", "x-user", "alice")
	is, _ := one(t, `"partition":["consumer"]`, keyless)
	if want, _ := one(t, `"partition":["consumer"]`, alice); is.Key != want.Key {
		t.Error("beside an empty key the next source does not count")
	}
}

func TestCost(t *testing.T) {
	const header = `"partition":[],"cost":{"header":"x-cost","max":50,"invalid":7}`
	for _, c := range []struct {
		headers []string
		want    int64
	}{
		{[]string{"x-cost", "0"}, 0},
		{[]string{"x-cost", "50"}, 50},
		{[]string{"x-cost", "51"}, 7},
		{[]string{"x-cost", "-1"}, 7},
		{[]string{"x-cost", "1.5"}, 7},
		{[]string{"x-cost", "1e1"}, 7},
		{[]string{"x-cost", ""}, 7},
		{[]string{"x-cost", "99999999999999999999999"}, 7},
		{[]string{"x-cost", "1", "x-cost", "2"}, 7},
		{nil, 7},
	} {
		hit, _ := one(t, header, request("GET", "h", "/", c.headers...))
		if hit.Cost != c.want || hit.Verdict != match.Limited {
			t.Errorf("%q: %+v, want cost %d", c.headers, hit, c.want)
		}
	}
	if hit, _ := one(t, `"partition":[],"cost":{"header":"x-cost","max":50,"invalid":"deny"}`, request("GET", "h", "/")); hit.Verdict != match.RefusedCost {
		t.Errorf("invalid: deny: %+v", hit)
	}
}

// oneSpelling is a header's value without the blanks around it. A list of equal elements is one
// value.
func oneSpelling(value string) string {
	elements := strings.Split(value, ",")
	for i := range elements {
		elements[i] = strings.Trim(elements[i], " \t")
	}
	if elements[0] != "" && len(slices.Compact(elements)) == 1 {
		return elements[0]
	}
	return strings.Trim(value, " \t")
}

// Two identities have the same key exactly if they are the same identity, in any spelling. Where
// several values are joined, all of them are the identity.
func TestKeysAreInjective(t *testing.T) {
	ix := compile(t, `{"version":"weir/v1","identity":{"if_several":"joined","consumer":[{"header":"x-api-key"},{"header":"x-user"}]},
		"policies":[{"name":"p","if_absent":"shared","partition":["consumer","header:x-a","header:x-b","method"],"limit":{"quota":9,"window":"1s"}}]}`)
	seen := map[keyhash.Key]string{}
	value := rapid.OneOf(
		rapid.SampledFrom([]string{"", "a", "b", "ab", "\x00", "\x01", "a\x00", ":", "a,b", ",", "a, a", " a", "b\t",
			"\xff\xfe", strings.Repeat("x", 200)}),
		rapid.StringN(0, 4, 8),
	)
	rapid.Check(t, func(t *rapid.T) {
		var headers []string
		identity := ""
		for _, name := range []string{"x-api-key", "x-user", "x-a", "x-b"} {
			for range rapid.IntRange(0, 2).Draw(t, name) {
				headers = append(headers, name, value.Draw(t, "value"))
			}
		}
		all := headers
		headers = nil // Keep the headers that are not empty.
		for i := 0; i < len(all); i += 2 {
			if value := oneSpelling(all[i+1]); value != "" {
				headers = append(headers, all[i], value)
			}
		}
		method := rapid.SampledFrom([]string{"GET", "GETa", "G"}).Draw(t, "method")
		consumer := "x-api-key"
		if !slices.Contains(evens(headers), consumer) {
			consumer = "x-user"
		}
		for _, name := range []string{consumer, "x-a", "x-b"} {
			var values []string
			for i := 0; i < len(headers); i += 2 {
				if headers[i] == name {
					values = append(values, headers[i+1])
				}
			}
			slices.Sort(values)
			identity += fmt.Sprintf("%s=%q;", name, slices.Compact(values))
		}
		identity += method
		hits := hold(ix, request(method, "h", "/", all...)).Hits
		if len(hits) != 1 {
			t.Fatalf("%d hits", len(hits))
		}
		if other, ok := seen[hits[0].Key]; ok && other != identity {
			t.Fatalf("%s and %s share a key", identity, other)
		}
		seen[hits[0].Key] = identity
	})
}

// Two pairs of values share a bucket only if they are the same, whatever bytes they are made of.
func FuzzKeys(f *testing.F) {
	f.Add([]byte("a"), []byte("b"), []byte("ab"), []byte(""))
	f.Add([]byte("\x01a"), []byte("\x00"), []byte("\x01"), []byte("a\x00"))
	f.Add(bytes.Repeat([]byte("x"), 8192), []byte("\xff"), bytes.Repeat([]byte("x"), 8191), []byte("x\xff"))
	f.Fuzz(func(t *testing.T, a, b, c, d []byte) {
		ix := compile(t, `{"version":"weir/v1","policies":[{"name":"p","partition":["header:x-a","cookie:c","header:x-b"],"if_absent":"shared","limit":{"quota":9,"window":"1s"}}]}`)
		key := func(a, b []byte) keyhash.Key {
			r := request("GET", "h", "/")
			r.Headers = append(r.Headers, match.Header{Name: []byte("x-a"), Value: a},
				match.Header{Name: []byte("x-b"), Value: b})
			return hold(ix, r).Hits[0].Key
		}
		same := oneSpelling(string(a)) == oneSpelling(string(c)) &&
			oneSpelling(string(b)) == oneSpelling(string(d))
		if (key(a, b) == key(c, d)) != same {
			t.Fatalf("%q %q and %q %q share a key: %v", a, b, c, d, !same)
		}
	})
}

func evens(list []string) []string {
	var out []string
	for i := 0; i < len(list); i += 2 {
		out = append(out, list[i])
	}
	return out
}

// properties are Envoy's attributes, with dots for the NULs between the parts of a path.
type properties map[string]string

func (p properties) Property(path []byte) []byte {
	if v, ok := p[strings.ReplaceAll(string(path), "\x00", "/")]; ok {
		return []byte(v)
	}
	return nil
}

func TestSources(t *testing.T) {
	const payload = "metadata/filter_metadata/envoy.filters.http.jwt_authn/payload/"
	type from struct {
		query   string
		headers []string
		props   properties
	}
	key := func(partition string, f from) (keyhash.Key, bool) {
		a := request("GET", "h", "/", f.headers...)
		a.Query, a.Properties = []byte(f.query), f.props
		hit, ok := one(t, `"partition":[`+partition+`]`, a)
		return hit.Key, ok
	}
	for _, c := range []struct {
		partition string
		same      []from // all the same identity
		other     []from // each with another value
		absent    []from
	}{
		{
			`"cookie:sid"`,
			[]from{{headers: []string{"cookie", "sid=a"}}, {headers: []string{"cookie", "x=1; sid=a;y=2"}},
				{headers: []string{"cookie", "x=1", "cookie", "sid=a"}}, {headers: []string{"cookie", "sid=a; sid=a"}}},
			[]from{{headers: []string{"cookie", "sid=A"}}, {headers: []string{"cookie", "sid=a=b"}}},
			[]from{{}, {headers: []string{"cookie", "sid="}}, {headers: []string{"cookie", "xsid=a; sidx=a"}},
				{headers: []string{"sid", "a"}}},
		},
		{
			`"query:k"`,
			[]from{{query: "k=a b"}, {query: "k=a%20b"}, {query: "x=1&k=a+b"}, {query: "%6b=a+b"},
				{query: "k=a+b&k=a+b"}},
			[]from{{query: "k=a%2Bb"}, {query: "k=a%zz"}},
			[]from{{}, {query: "k="}, {query: "k"}, {query: "K=a+b"}, {query: "x=k=a"}},
		},
		{
			`"jwt:realm.sub"`,
			[]from{{props: properties{payload + "realm/sub": "alice"}}},
			[]from{{props: properties{payload + "realm/sub": "bob"}}},
			[]from{{}, {props: properties{payload + "realm.sub": "alice"}},
				{props: properties{payload + "realm/sub": ""}}},
		},
		{
			`"spiffe"`,
			[]from{{props: properties{"connection/uri_san_peer_certificate": "spiffe://a/b"}}},
			[]from{{props: properties{"connection/uri_san_peer_certificate": "spiffe://a/c"}}},
			[]from{{}},
		},
	} {
		seen := map[keyhash.Key]bool{}
		first, _ := key(c.partition, c.same[0])
		seen[first] = true
		for _, f := range c.same {
			if k, ok := key(c.partition, f); !ok || k != first {
				t.Errorf("%s: %+v is another bucket (%v)", c.partition, f, ok)
			}
		}
		for _, f := range c.other {
			k, ok := key(c.partition, f)
			if !ok || seen[k] {
				t.Errorf("%s: %+v shares a bucket (%v)", c.partition, f, ok)
			}
			seen[k] = true
		}
		for _, f := range c.absent {
			if _, ok := key(c.partition, f); ok {
				t.Errorf("%s: %+v has an identity", c.partition, f)
			}
		}
	}
}

func TestPolicyPathIsTheFirstPatternThatMatches(t *testing.T) {
	ix := compile(t, `{"version":"weir/v1","policies":[{"name":"p","match":{"paths":["/v1/{id}","/v1/**","/v2/**"]},"partition":["policy_path"],"limit":{"quota":9,"window":"1s"}}]}`)
	key := func(path string) keyhash.Key { return hold(ix, request("GET", "h", path)).Hits[0].Key }
	if key("/v1/a") != key("/v1/b") || key("/v1/a") == key("/v1/a/b") || key("/v2/a") == key("/v1/a/b") {
		t.Error("requests by the same pattern must share a bucket, by others not")
	}
}

func TestLoadReusesMemoryAndRefusesDamage(t *testing.T) {
	doc := policies(`{"paths":["/a"]}`, `{"paths":["/b"]}`)
	ix := compile(t, doc)
	node, _ := policy.ParseJSON([]byte(policies(`{"paths":["/c"]}`)))
	set, err := policy.Decode(node)
	if err != nil {
		t.Fatal(err)
	}
	snapshot := wire.AppendSnapshot(nil, wire.Snapshot{Version: 8, Set: set})
	if err := ix.Load(snapshot); err != nil {
		t.Fatal(err)
	}
	if got := names(ix, hold(ix, request("GET", "h", "/a")).Hits); got != "" || ix.Version() != 8 || ix.Len() != 1 {
		t.Errorf("after a smaller set: hits %q, version %d, %d policies", got, ix.Version(), ix.Len())
	}
	if allocs := testing.AllocsPerRun(20, func() { _ = ix.Load(snapshot) }); allocs > 2 {
		t.Errorf("loading again allocates %v times", allocs)
	}
	for i := range snapshot {
		damaged := append([]byte(nil), snapshot...)
		damaged[i] ^= 0x40
		if err := new(match.Index).Load(damaged); err == nil {
			t.Errorf("a flipped bit in byte %d of %d went unnoticed", i, len(snapshot))
		}
		if err := new(match.Index).Load(snapshot[:i]); err == nil {
			t.Errorf("a snapshot cut at %d was accepted", i)
		}
	}
}

func TestMatchDoesNotAllocate(t *testing.T) {
	ix := compile(t, policies(`{}`, `{"paths":["/v1/items/{id}"]}`, `{"paths":["/v1/**"]}`))
	a := request("GET", "api.example.com", "/v1/items/7", "x-client", "mobile")
	var m match.Matcher
	hits := m.Match(ix, a).Hits
	if allocs := testing.AllocsPerRun(100, func() { hits = m.Match(ix, a).Hits }); allocs > 0 || len(hits) != 3 {
		t.Errorf("%v allocations for %d hits", allocs, len(hits))
	}
}

// thousands is a set of n policies that differ in their last path segment.
func thousands(n int) string {
	matches := make([]string, n)
	for i := range matches {
		matches[i] = fmt.Sprintf(`{"paths":["/v1/tenant-%d/items/{id}"]}`, i)
	}
	return policies(matches...)
}

func FuzzLoad(f *testing.F) {
	node, _ := policy.ParseJSON([]byte(policies(`{"paths":["/a/{b}"],"hosts":["*.x.y"],"headers":[{"name":"a","equals":"b"}]}`)))
	set, err := policy.Decode(node)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Set: set}))
	node, _ = policy.ParseJSON([]byte(byTier(`"partition":["tier"]`)))
	if set, err = policy.Decode(node); err != nil {
		f.Fatal(err)
	}
	f.Add(wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Set: set}))
	node, _ = policy.ParseJSON([]byte(`{"version":"weir/v1","tiers":["free"],
		"identity":{"consumer":["client_ip"],"default_tier":"free","tier":[{"consumer_source":{"client_ip":"free"}}]},
		"policies":[{"name":"p","match":{"client_ips":["10.0.0.0/8"],"tiers":["free"],"headers":[{"name":"a","absent":true}]},"partition":["consumer"],"limit":{"quota":1,"window":"1s"}}]}`))
	if set, err = policy.Decode(node); err != nil {
		f.Fatal(err)
	}
	f.Add(wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Set: set}))
	for _, doc := range []string{claimed(`"quota":{"header":"a","trusted":true,"max":60,"default":6}`), claimed(`"quota":9,"burst":{"jwt":"p.b","max":60,"default":6}`)} {
		node, _ = policy.ParseJSON([]byte(doc))
		if set, err = policy.Decode(node); err != nil {
			f.Fatal(err)
		}
		f.Add(wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Set: set}))
	}
	node, _ = policy.ParseJSON([]byte(`{"version":"weir/v1","responses":{"ban":{"status":400,"body":"x","headers":{"a":"b"}}}}`))
	if set, err = policy.Decode(node); err != nil {
		f.Fatal(err)
	}
	f.Add(wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Set: set}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var ix match.Index
		if ix.Load(wire.Reseal(b)) == nil {
			for to := range policy.AnswerCount {
				one := ix.Response(to)
				n := len(ix.Text(one.Headers)) + len(ix.Text(one.Body)) + len(ix.Text(one.ContentType))
				if one.Status > 599 || n > policy.MaxHeaderLines+policy.MaxBody+policy.MaxText {
					t.Fatalf("%d bytes, status %d", n, one.Status)
				}
			}
			hold(&ix, request("GET", "a.x.y", "/a/b", "a", "b"))
		}
	})
}
