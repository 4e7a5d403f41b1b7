package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Identify fills in who made a request, as far as the policy set lets it be shown, and reuses the
// memory of id. Unless askEnvoy is set, what Envoy would have to be asked for is left out.
func (m *Matcher) Identify(ix *Index, a *Attributes, askEnvoy bool, id *wire.Identity) {
	m.encoder.begin(ix)
	id.Consumer, id.Shown = keyhash.Key{}, id.Shown[:0]
	if askEnvoy || !ix.asksEnvoy {
		id.Consumer, _ = m.consumerKey(a)
	}
	for i, p := range ix.show {
		if !askEnvoy && p.source.kind.AsksEnvoy() {
			continue
		}
		// A part with several values is not shown: no rule says which one counts.
		if value := m.shown(p, a); len(value) > 0 {
			value = value[:min(len(value), policy.MaxShownText)]
			id.Shown = append(append(id.Shown, byte(i), byte(len(value))), value...)
		}
	}
}

// shown is what a request holds for a part that may be shown.
func (e *encoder) shown(p part, a *Attributes) []byte {
	switch p.kind {
	case policy.PartClientIP:
		return a.ClientIP
	case policy.PartMethod:
		return a.Method
	case policy.PartHost:
		return a.Host
	case policy.PartPath:
		return a.Path
	}
	return e.single(p.source, a)
}
