package simulate

import (
	"testing"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// A log's consumer is put where any identity source of a policy set looks for it, and shown from
// there.
func TestEachSourceIsSimulated(t *testing.T) {
	for kind := range policy.SourceKind(policy.SourceCount) {
		if _, is := policy.ParseIdentity(kind.String()); !is {
			continue
		}
		source := policy.Source{Kind: kind}
		if kind.IsNamed() {
			source.Name = "x"
		}
		set := &policy.Set{Identity: policy.Identity{IPv6Prefix: 64, Consumer: []policy.Source{source}}}
		line := map[string]string{"time": "2026-11-22T12:00:00Z", "path": "/a", "consumer": "alice"}
		r, err := newFields(nil, set).buildRecord(func(name string) string { return line[name] })
		if err != nil {
			t.Fatal(err)
		}
		a := match.Attributes{Headers: r.headers, Properties: r}
		for _, h := range r.headers {
			if h.Is(":path") && len(h.Value) > 2 {
				a.Query = h.Value[3:]
			}
		}
		p := &policy.Policy{Partition: []policy.Part{{Kind: policy.PartConsumer}}}
		if who := keyLabel(set, p, &a, r); who != "alice" {
			t.Errorf("%v: the consumer is %q", source, who)
		}
	}
}
