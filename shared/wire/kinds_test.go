package wire_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// A set with an unknown kind of source or an unknown dialect, or with a source for another use, is
// refused: it is never read as another kind.
func TestUnknownKindsAreRefused(t *testing.T) {
	loads := func(change func(*policy.Set)) bool {
		set := &policy.Set{Identity: policy.Identity{IPv6Prefix: 64}, Tiers: []string{"free"}}
		change(set)
		var ix match.Index
		return ix.Load(wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Set: set})) == nil
	}
	for kind := range policy.SourceKind(255) {
		source := []policy.Source{{Kind: kind, Name: "x"}}
		if loads(func(s *policy.Set) { s.Identity.Consumer = source }) != kind.Is(policy.OfConsumers) {
			t.Errorf("a consumer by source %d", kind)
		}
		if loads(func(s *policy.Set) { s.Identity.Tier = source }) != kind.Is(policy.OfTiers) {
			t.Errorf("a tier by source %d", kind)
		}
	}
	for number := range dialect.Legacy(255) {
		known := int(number) < len(dialect.Legacies)
		if loads(func(s *policy.Set) { s.Headers.Legacy = number }) != known {
			t.Errorf("the dialect %d", number)
		}
	}
}
