package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Identify fills in who made a request, as far as the policy set lets it be shown, and reuses the
// memory of id. Unless askEnvoy is set, what Envoy would have to be asked for is left out.
func (m *Matcher) Identify(ix *Index, a *Attributes, askEnvoy bool, id *wire.Identity) {
	m.ix = ix
	id.Consumer, id.Shown = keyhash.Key{}, id.Shown[:0]
	if askEnvoy || !ix.asksEnvoy {
		id.Consumer, _ = m.consumerKey(a)
	}
	for i, p := range ix.show {
		if !askEnvoy && (p.kind == policy.PartJWT || p.kind == policy.PartSPIFFE) {
			continue
		}
		m.key = m.key[:0]
		if !m.putPart(p, a) {
			continue
		}
		// A part with several values is not shown: no rule says which one counts.
		if value, single := readValue(m.key); single {
			value = value[:min(len(value), policy.MaxShownText)]
			id.Shown = append(append(id.Shown, byte(i), byte(len(value))), value...)
		}
	}
}
