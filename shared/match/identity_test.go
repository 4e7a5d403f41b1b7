package match_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// claims answers for Envoy and counts how often it was asked.
type claims struct{ asked int }

func (c *claims) Property(path []byte) []byte {
	c.asked++
	return []byte("bob")
}

// A report shows the parts of a caller that the policy set allows, cut to their bound, and the hash
// of the consumer that the control plane would compute from its value. Envoy is asked only if that
// is allowed.
func TestIdentify(t *testing.T) {
	long := make([]byte, 100)
	for i := range long {
		long[i] = 'x'
	}
	set := &policy.Set{Identity: policy.Identity{IPv6Prefix: 64,
		Consumer: []policy.Source{{Kind: policy.SourceHeader, Name: "x-key"}, {Kind: policy.SourceJWT, Name: "sub"}}},
		Show: []policy.Part{{Kind: policy.PartHost}, {Kind: policy.PartHeader, Name: "x-app"},
			{Kind: policy.PartJWT, Name: "sub"}}}
	secret := [16]byte{7}
	var ix match.Index
	var m match.Matcher
	if err := ix.Load(wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Secret: secret, Set: set})); err != nil {
		t.Fatal(err)
	}
	envoy := &claims{}
	a := match.Attributes{Host: long, Properties: envoy,
		Headers: []match.Header{{Name: []byte("x-app"), Value: []byte("a")},
			{Name: []byte("x-app"), Value: []byte("b")}}}
	shown := "\x00\x40" + string(long[:policy.MaxShownText])
	who := wire.Identity{Shown: make([]byte, 3, 10)}
	if m.Identify(&ix, &a, false, &who); who.Consumer != (keyhash.Key{}) || string(who.Shown) != shown ||
		envoy.asked != 0 {
		t.Errorf("%+v, Envoy was asked %d times", who, envoy.asked)
	}
	want := match.ConsumerKey(secret, set.Identity.Consumer[1], "bob")
	if m.Identify(&ix, &a, true, &who); who.Consumer != want || string(who.Shown) != shown+"\x02\x03bob" {
		t.Errorf("%+v, want the consumer %v", who, want)
	}
	// Empty is absent.
	a.Headers = []match.Header{{Name: []byte("x-key"), Value: []byte("alice")}, {Name: []byte("x-app"), Value: nil}}
	want = match.ConsumerKey(secret, set.Identity.Consumer[0], "alice")
	if m.Identify(&ix, &a, true, &who); who.Consumer != want || string(who.Shown) != shown+"\x02\x03bob" {
		t.Errorf("%+v, want the consumer %v", who, want)
	}
}
