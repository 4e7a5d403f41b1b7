package calls_test

import (
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Each identity source of policy sets is also a source of calls. It finds the same consumer that
// people name with this source and value.
func TestEachSourceIsFoundInCalls(t *testing.T) {
	secret := [16]byte{7}
	var all []policy.Source
	for kind := range policy.SourceKind(policy.SourceCount) {
		if _, is := policy.ParseIdentity(kind.String()); !is {
			continue
		}
		source := policy.Source{Kind: kind}
		if kind.IsNamed() {
			source.Name = "x"
		}
		all = append(all, source)
	}
	for _, source := range all {
		set := &policy.Set{Identity: policy.Identity{IPv6Prefix: 64, Consumer: []policy.Source{source}}}
		var ix match.Index
		if err := ix.Load(wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Secret: secret, Set: set})); err != nil {
			t.Fatalf("%v: %v", source, err)
		}
		var g calls.Gatherer
		g.Begin()
		for _, other := range all { // Each holds a value of its own.
			if !g.Add(calls.Entry{Key: other.String(), Value: "of-" + other.Kind.String()}) {
				t.Fatalf("an entry %v says nothing", other)
			}
		}
		a := g.Attributes(&ix)
		var m match.Matcher
		var who wire.Identity
		m.Identify(&ix, &a, true, &who)
		if want := match.ConsumerKey(secret, source, "of-"+source.Kind.String()); who.Consumer != want {
			t.Errorf("%v finds %v, want %v", source, who.Consumer, want)
		}
	}
}

// Entries whose keys are spelled like parts of a partition are facts that Envoy knows of the
// request. A key with a meaning counts once, and nothing of a call is left in the next call.
func TestEntriesAreWhatARequestIs(t *testing.T) {
	var g calls.Gatherer
	g.Begin()
	for _, e := range []calls.Entry{
		{Key: "remote_address", Value: "10.0.0.9"}, {Key: "client_ip", Value: "10.0.0.7"},
		{Key: "method", Value: "POST"}, {Key: "method", Value: "GET"}, {Key: "host", Value: "A.example:81"},
		{Key: "path", Value: "/v1/things"}, {Key: "header:X-Key", Value: "k"}, {Key: "header:X-Key", Value: "k"},
		{Key: "header::path", Value: "/other"}, {Key: "cookie:c", Value: "1"}, {Key: "cookie:d", Value: "2; c=3"},
		{Key: "query:a b", Value: "1&2"}, {Key: "query:c", Value: ""}, {Key: "jwt:sub", Value: "bob"},
		{Key: "spiffe", Value: "spiffe://a/b"}, {Key: "user", Value: "bob"}, {Key: "method:x", Value: "y"},
	} {
		g.Add(e)
	}
	var ix match.Index
	a := g.Attributes(&ix)
	header := func(name string) (all string) {
		for _, h := range a.Headers {
			if h.Is(name) {
				all += string(h.Value) + "|"
			}
		}
		return all
	}
	property := func(s policy.Source) string {
		return string(a.Properties.Property([]byte(match.PropertyPath(s))))
	}
	for what, got := range map[string][2]string{
		"method": {string(a.Method), "POST"}, "host": {string(a.Host), "a.example"},
		"path": {string(a.Path), "/v1/things"}, "query": {string(a.Query), "a+b=1%262"},
		"header": {header("x-key"), "k|"}, "cookie": {header("cookie"), "c=1|"}, "user": {header("user"), ""},
		"claim":  {property(policy.Source{Kind: policy.SourceJWT, Name: "sub"}), "bob"},
		"spiffe": {property(policy.Source{Kind: policy.SourceSPIFFE}), "spiffe://a/b"},
		"other":  {property(policy.Source{Kind: policy.SourceJWT, Name: "aud"}), ""},
	} {
		if got[0] != got[1] {
			t.Errorf("%s is %q, want %q", what, got[0], got[1])
		}
	}
	if a.Address[15] != 7 || len(a.ClientIP) == 0 {
		t.Errorf("the client's address is %v", a.Address)
	}
	g.Begin()
	if a := g.Attributes(&ix); len(a.Method)+len(a.Path)+len(a.Query)+len(a.ClientIP)+len(a.Headers) > 0 {
		t.Errorf("of a call without entries: %+v", a)
	}
}
