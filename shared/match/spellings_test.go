package match_test

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/classify"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// row is a row of the table of spellings.
type row struct {
	place, is string
	headers   []match.Header
	plain     bool
}

func spellings(t *testing.T) (rows []row) {
	t.Helper()
	file, err := os.Open("../spelling/testdata/spellings.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	seen := map[string]bool{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		cells := strings.Split(line, " | ")
		if len(cells) != 3 {
			t.Fatalf("a row of %d cells: %s", len(cells), line)
		}
		one := row{place: strings.TrimSpace(cells[0]), is: strings.TrimSpace(cells[2])}
		one.plain = !seen[one.place]
		seen[one.place] = true
		said, path := strings.ReplaceAll(strings.TrimSpace(cells[1]), `\t`, "\t"), "/x"
		switch one.place {
		case "query":
			path += said
		case "path":
			path = said
		default:
			for _, header := range strings.Split(said, "¶") {
				name, value, _ := strings.Cut(strings.TrimLeft(header, " "), ":")
				one.headers = append(one.headers,
					match.Header{Name: []byte(strings.ToLower(name)), Value: []byte(value)})
			}
		}
		one.headers = append(one.headers, match.Header{Name: []byte(":path"), Value: []byte(path)},
			match.Header{Name: []byte(":method"), Value: []byte("GET")},
			match.Header{Name: []byte(":authority"), Value: []byte("h")})
		rows = append(rows, one)
	}
	return rows
}

// places are where a caller says who it is, as a policy set and an operator name it.
var places = map[string]struct {
	source, value string
	is            policy.Source
}{
	"header":        {`{"header":"X-Api_Key"}`, "K", policy.Source{Kind: policy.SourceHeader, Name: "x-api-key"}},
	"authorization": {`{"header":"authorization"}`, "Bearer K", policy.Source{Kind: policy.SourceHeader, Name: "authorization"}},
	"cookie":        {`{"cookie":"session"}`, "K", policy.Source{Kind: policy.SourceCookie, Name: "session"}},
	"query":         {`{"query":"key"}`, "K", policy.Source{Kind: policy.SourceQuery, Name: "key"}},
}

// Each row of the table is the caller that it names: for the bucket, for bans, for exemptions, for
// the control plane's data about the consumer. A request that several callers could have made is
// refused, and banned if one of them is banned.
func TestTheTableOfSpellings(t *testing.T) {
	var classifier classify.Classifier
	for _, one := range spellings(t) {
		place, isCaller := places[one.place]
		if !isCaller {
			continue
		}
		set := `{"version":"weir/v1","tiers":["free","gold"],"identity":{"consumer":[` + place.source + `],"tier":["assignment"],
			"default_tier":"free"},EXEMPT"policies":[{"name":"p","partition":["consumer"],"limit":{"quota":1,"window":"1h"}}]}`
		ix := compile(t, strings.Replace(set, "EXEMPT", "", 1))
		ours := match.ConsumerKey(secret, place.is, place.value)
		hold := func(ix *match.Index, known *known) (match.Result, match.Attributes) {
			a := classifier.Of(one.headers, nil, classify.RulesOf(ix))
			a.Consumers = known
			var m match.Matcher
			return m.Match(ix, &a), a
		}
		result, _ := hold(ix, &known{tiers: map[keyhash.Key]string{ours: "gold"}})
		bucket := plainBucket(&decode(t, strings.Replace(set, "EXEMPT", "", 1)).Policies[0],
			match.Value{Text: []byte(place.value), Source: place.is})
		got := "absent"
		if len(result.Hits) > 0 {
			switch h := result.Hits[0]; {
			case h.Verdict == match.RefusedSeveral:
				got = "several"
			case h.Key == bucket:
				got = "one"
			default:
				got = "other"
			}
		}
		if got != one.is {
			t.Errorf("%s %s is %s, want %s", one.place, one.headers, got, one.is)
		}
		named := one.is == "one" || one.is == "several"
		banned, _ := hold(ix, &known{special: map[keyhash.Key][]byte{
			ours: wire.AppendExceptions(nil, wire.Exceptions{Banned: wire.ForGood})}})
		if (banned.Access == match.Banned) != named {
			t.Errorf("%s %s is banned: %v", one.place, one.headers, !named)
		}
		ix.Enforce(&wire.Enforcement{Bans: []wire.Ban{{Key: bucket}}}, 0)
		if result, _ := hold(ix, &known{}); (result.Ban == match.KeyBan) != named {
			t.Errorf("the key of %s %s is banned: %v", one.place, one.headers, !named)
		}
		exempt := compile(t, strings.Replace(set, "EXEMPT", `"exempt":{"consumers":["`+place.value+`"]},`, 1))
		if result, _ := hold(exempt, &known{}); (result.Access == match.Exempt) != (one.is == "one") {
			t.Errorf("%s %s is exempt: %v", one.place, one.headers, one.is != "one")
		}
	}
}

// Each row of paths is the path that it names, for policies and exemptions. Requests that Envoy
// refuses are not tested.
func TestTheTableOfPaths(t *testing.T) {
	ix := compile(t, `{"version":"weir/v1","exempt":{"paths":["/static/**"]},"policies":[{"name":"p",
		"match":{"paths":["/login"]},"partition":["path"],"limit":{"quota":1,"window":"1h"}}]}`)
	cut := compile(t, `{"version":"weir/v1","match":{"path_parameters":"cut"},"exempt":{"paths":["/static/**"]},
		"policies":[{"name":"p","match":{"paths":["/login"]},"partition":["path"],"limit":{"quota":1,"window":"1h"}}]}`)
	var classifier classify.Classifier
	var m match.Matcher
	for _, one := range spellings(t) {
		if one.place != "path" || one.is == "envoy" {
			continue
		}
		a := classifier.Of(one.headers, nil, classify.RulesOf(ix))
		if got := len(m.Match(ix, &a).Hits) > 0; got != (one.is == "one") {
			t.Errorf("%s is limited: %v", one.headers, got)
		}
	}
	for path, want := range map[string][2]match.Access{
		"/static/x":             {match.Exempt, match.Exempt},
		"/static/..%2flogin":    {match.Open, match.Open},
		"/static/%2e%2e%5Cx":    {match.Open, match.Open},
		"/static/..;/login":     {match.Open, match.Open},
		"/static/..;a=b/x":      {match.Open, match.Open},
		"/static/..%253B/x":     {match.Open, match.Open},
		"/static/a;b":           {match.Exempt, match.Exempt},
		"/static/caf%C3%A9":     {match.Exempt, match.Exempt},
		"/static/100%25.png":    {match.Exempt, match.Exempt},
		"/static/a%00":          {match.Open, match.Open},
		"/static/../login":      {match.Open, match.Open},
		"/static\\..\\..\\x":    {match.Open, match.Open},
		"/static/%252e%252e/xx": {match.Open, match.Open},
	} {
		for i, ix := range []*match.Index{ix, cut} {
			a := classifier.Of([]match.Header{{Name: []byte(":path"), Value: []byte(path)}}, nil, classify.RulesOf(ix))
			if got := m.Match(ix, &a).Access; got != want[i] {
				t.Errorf("%s, cut %v: access %d, want %d", path, i == 1, got, want[i])
			}
		}
	}
	for path, want := range map[string]bool{
		"/login;x=1": true, "/login;": true, "/x/..;/login": true, "/login%3Bx": false,
	} {
		a := classifier.Of([]match.Header{{Name: []byte(":path"), Value: []byte(path)}}, nil, classify.RulesOf(cut))
		if got := len(m.Match(cut, &a).Hits) > 0; got != want {
			t.Errorf("%s is limited where parameters are cut: %v", path, got)
		}
	}
}

// Where services ignore case and a slash at the end, all spellings of a path are one bucket, also
// the policy's spelling, and a person may use any of them.
func TestPathsWithoutCaseAreOneBucket(t *testing.T) {
	set := decode(t, `{"version":"weir/v1","match":{"path_case":"fold","trailing_slash":"cut"},
		"exempt":{"paths":["/Static/**"]},"policies":[{"name":"p","match":{"paths":["/Login/"]},"partition":["path"],
		"limit":{"quota":1,"window":"1h"}}]}`)
	ix := load(t, set)
	var classifier classify.Classifier
	var m match.Matcher
	p := &set.Policies[0]
	for _, path := range []string{"/login", "/LOGIN", "/login/", "/%4Cogin//", "/x/../LogIn/?y=Z"} {
		a := classifier.Of([]match.Header{{Name: []byte(":path"), Value: []byte(path)}}, nil, classify.RulesOf(ix))
		hits := m.Match(ix, &a).Hits
		if len(hits) != 1 {
			t.Errorf("%s meets %d policies", path, len(hits))
			continue
		}
		named := match.NewPartition(secret, set, p, []match.Value{{Text: []byte(path)}})
		if named.Key() != hits[0].Key {
			t.Errorf("%s names another key than the request has", path)
		}
	}
	for path, want := range map[string]match.Access{
		"/STATIC/x/": match.Exempt, "/static/..%2Flogin": match.Open, "/statics": match.Open,
	} {
		a := classifier.Of([]match.Header{{Name: []byte(":path"), Value: []byte(path)}}, nil, classify.RulesOf(ix))
		if got := m.Match(ix, &a).Access; got != want {
			t.Errorf("%s: access %d, want %d", path, got, want)
		}
	}
}

// A method is one however it is spelled, for policies, exemptions and keys.
func TestMethodsHaveNoCase(t *testing.T) {
	set := decode(t, `{"version":"weir/v1","exempt":{"methods":["OPTIONS"]},"policies":[{"name":"p",
		"match":{"methods":["POST"]},"partition":["method"],"limit":{"quota":1,"window":"1h"}}]}`)
	ix := load(t, set)
	var classifier classify.Classifier
	var m match.Matcher
	for method, want := range map[string]struct {
		hits   int
		access match.Access
	}{
		"POST": {1, match.Open}, "post": {1, match.Open}, "pOST": {1, match.Open}, "POSTS": {}, "GET": {},
		"options": {0, match.Exempt}, "OPTIONS": {0, match.Exempt},
	} {
		a := classifier.Of([]match.Header{{Name: []byte(":method"), Value: []byte(method)}}, nil, classify.RulesOf(ix))
		result := m.Match(ix, &a)
		if len(result.Hits) != want.hits || result.Access != want.access {
			t.Errorf("%s meets %d policies, access %d", method, len(result.Hits), result.Access)
		}
		if len(result.Hits) != 1 {
			continue
		}
		named := match.NewPartition(secret, set, &set.Policies[0], []match.Value{{Text: []byte(method)}})
		if named.Key() != result.Hits[0].Key {
			t.Errorf("%s names another key than the request has", method)
		}
	}
}
