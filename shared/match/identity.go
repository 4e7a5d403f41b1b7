package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Identify sets the caller of a request in id, as far as the policy set lets it be shown, and
// reuses the memory of id. Unless askEnvoy is set, it leaves out values that Envoy would have to be
// asked for.
func (m *Matcher) Identify(ix *Index, a *Attributes, askEnvoy bool, id *wire.Identity) {
	m.encoder.resetEncoder(ix)
	id.Consumer, id.Shown = keyhash.Key{}, id.Shown[:0]
	if askEnvoy || !ix.asksEnvoy {
		id.Consumer, _ = m.consumerKey(a)
	}
	for i, p := range ix.show {
		if !askEnvoy && p.source.kind.AsksEnvoy() {
			continue
		}
		// A part with several values is not shown: no rule says which one counts.
		if value := m.shownValue(p, a); len(value) > 0 {
			value = value[:min(len(value), policy.MaxShownText)]
			id.Shown = append(append(id.Shown, byte(i), byte(len(value))), value...)
		}
	}
}

// shownValue returns the request's value for a part that may be shown.
func (e *encoder) shownValue(p part, a *Attributes) []byte {
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
	return e.singleValue(p.source, a)
}
