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

const penaltyRule = `"limit":{"quota":5,"window":"1m"},"penalty":{"after":{"refusals":3,"within":"1m"}`

const penaltyPolicies = `{"version":"weir/v1","identity":{"consumer":[{"header":"x-api-key"}]},"policies":[
	{"name":"own","match":{"paths":["/own"]},"partition":["consumer","method"],` + penaltyRule + `}},
	{"name":"wide","match":{"paths":["/wide"]},"partition":["consumer"],` + penaltyRule + `,"scope":"all"}},
	{"name":"quiet","match":{"paths":["/quiet"]},"partition":["consumer"],` + penaltyRule + `,"shadow":true}},
	{"name":"plain","match":{"paths":["/plain"]},"partition":["method"],"limit":{"quota":5,"window":"1m"}},
	{"name":"shared","match":{"paths":["/shared"]},"partition":["consumer"],"if_absent":"shared",` + penaltyRule + `}}]}`

func TestSubjects(t *testing.T) {
	ix := compile(t, penaltyPolicies)
	order := func(name string, state policy.Enforced) []wire.Order {
		return []wire.Order{{State: state, Percent: 100, Policy: []byte(name)}}
	}
	for _, c := range []struct {
		path, who string
		orders    []wire.Order
		want      string
	}{
		{"/own", "alice", nil, "own, wide"},
		{"/wide", "alice", nil, "wide"},
		{"/quiet", "alice", nil, "quiet in shadow, wide"},
		{"/plain", "alice", nil, "wide"},
		{"/plain", "", nil, ""},          // The request names no consumer.
		{"/shared", "", nil, ""},         // A caller that shares a bucket is not punished for others.
		{"/elsewhere", "alice", nil, ""}, // No policy applies.
		{"/own", "alice", order("own", policy.EnforcedShadow), "own in shadow, wide"},
		{"/own", "alice", order("own", policy.EnforcedOff), ""},
		{"/own", "alice", order("wide", policy.EnforcedOff), "own"},
		{"/own", "alice", order("wide", policy.EnforcedShadow), "own, wide in shadow"},
		{"/own", "alice", order("", policy.EnforcedOff), ""},
	} {
		ix.Enforce(&wire.Enforcement{Orders: c.orders}, 0)
		a := match.Attributes{Method: []byte("GET"), Path: []byte(c.path), Host: []byte("h")}
		if c.who != "" {
			a.Headers = []match.Header{{Name: []byte("x-api-key"), Value: []byte(c.who)}}
		}
		var all []string
		for _, s := range new(match.Matcher).Match(ix, &a).Subjects {
			text := string(ix.Text(ix.Policy(s.Policy).Name))
			if s.Shadow {
				text += " in shadow"
			}
			all = append(all, text)
		}
		if got := strings.Join(all, ", "); got != c.want {
			t.Errorf("%s of %q with %v: %s, want %s", c.path, c.who, c.orders, got, c.want)
		}
	}
}

// The control plane finds the same keys as a request does, and the keys in shadow are different.
func TestSubjectsHaveTheKeysOfTheControlPlane(t *testing.T) {
	ix := compile(t, penaltyPolicies)
	a := match.Attributes{Method: []byte("GET"), Path: []byte("/own"), Host: []byte("h"),
		Headers: []match.Header{{Name: []byte("x-api-key"), Value: []byte("alice")}}}
	found := new(match.Matcher).Match(ix, &a).Subjects
	node, err := policy.ParseJSON([]byte(penaltyPolicies))
	if err != nil {
		t.Fatal(err)
	}
	set, err := policy.Decode(node)
	if err != nil {
		t.Fatal(err)
	}
	source := set.Identity.Consumer[0]
	values := []match.Value{{Text: []byte("alice"), Source: source}, {Text: []byte("GET")}}
	want := []keyhash.Key{
		match.NewPartition(secret, set, &set.Policies[0], values).Key(),
		match.WideKey(secret, "wide", match.ConsumerKey(secret, source, "alice")),
	}
	seen := map[keyhash.Key]bool{}
	for i, s := range found {
		if s.Key != want[i] {
			t.Errorf("subject %d has the key %s, want %s", i, s.Key, want[i])
		}
		for _, k := range []keyhash.Key{s.Key, match.ShadowOf(s.Key)} {
			if seen[k] {
				t.Error(fmt.Sprint("twice the same key ", k))
			}
			seen[k] = true
		}
		if match.ShadowOf(match.ShadowOf(s.Key)) != s.Key {
			t.Error("the shadow of a shadow is another")
		}
	}
}
