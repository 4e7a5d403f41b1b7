package match_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/wire"
)

const forCalls = `{"version": "weir/v1", "policies": [
	{"name": "all", "partition": [], "limit": {"quota": 1, "window": "1s"}},
	{"name": "user", "partition": ["descriptor:user"], "limit": {"quota": 1, "window": "1s"}},
	{"name": "edge", "match": {"domain": "edge"}, "partition": ["client_ip"], "limit": {"quota": 1, "window": "1s"}}]}`

// A policy for calls applies to no request that an Envoy can see, whatever its headers and its host
// are. The limits behind it keep their numbers.
func TestPoliciesForCallsDoNotApplyToRequests(t *testing.T) {
	ix := compile(t, forCalls)
	for _, host := range []string{"rls", "a.example", ""} { // Hosts come in lower case.
		got := hold(ix, request("GET", host, "/", "descriptor:user", "bob"))
		if got := names(ix, got.Hits); got != "all" {
			t.Errorf("host %q: %s", host, got)
		}
	}
	if ix.Len() != 3 {
		t.Errorf("%d policies", ix.Len())
	}
}

// One policy is matched against a call alone, and Partition finds the same bucket.
func TestOnePolicyAlone(t *testing.T) {
	set, ix := decode(t, forCalls), compile(t, forCalls)
	var m match.Matcher
	got := m.MatchOne(ix, request("", "", "", "descriptor:user", "bob"), 1, match.Open)
	if names(ix, got.Hits) != "user" || got.Hits[0].Limit != 1 {
		t.Fatalf("hits %+v", got.Hits)
	}
	want := plainBucket(&set.Policies[1], match.Value{Text: []byte("bob")})
	if got.Hits[0].Key != want {
		t.Errorf("bucket %v, want %v", got.Hits[0].Key, want)
	}
	if got := m.MatchOne(ix, request("", "", "", "descriptor:user", ""), 1, match.Open); len(got.Hits) != 0 {
		t.Errorf("an empty value is a key: %+v", got.Hits)
	}
}

// An exempt call stays exempt and is not counted, unless the policy knows a key of it that is
// banned.
func TestOnePolicyForAnExemptCall(t *testing.T) {
	ix := compile(t, forCalls)
	var m match.Matcher
	bad := request("", "", "", "descriptor:user", "bad")
	key := m.MatchOne(ix, bad, 1, match.Open).Hits[0].Key
	for _, c := range []struct {
		bans []wire.Ban
		who  string
		want match.Access
	}{
		{nil, "bad", match.Exempt},
		{[]wire.Ban{{Key: key}}, "bad", match.Banned},
		{[]wire.Ban{{Key: key}}, "good", match.Exempt},
	} {
		ix.Enforce(&wire.Enforcement{Bans: c.bans}, 0)
		got := m.MatchOne(ix, request("", "", "", "descriptor:user", c.who), 1, match.Exempt)
		if got.Access != c.want || len(got.Hits) > 0 {
			t.Errorf("%d bans: %s has %v and %d hits, want %v", len(c.bans), c.who, got.Access, len(got.Hits), c.want)
		}
	}
}
