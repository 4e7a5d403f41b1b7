package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Describe tells who made a request, reusing the memory of who. Unless ask is set, what Envoy would have to be asked for is left out.
func (ix *Index) Describe(a *Attributes, ask bool, who *wire.Who) {
	who.Consumer, who.Shown = keyhash.Key{}, who.Shown[:0]
	if ask || !ix.lookups {
		who.Consumer, _ = ix.consumer(a)
	}
	for i, p := range ix.show {
		if !ask && (p.kind == policy.PartJWT || p.kind == policy.PartSPIFFE) {
			continue
		}
		ix.key = ix.key[:0]
		if !ix.encodePart(p, candidate{}, a) {
			continue
		}
		if text, single := encodedValue(ix.key); single { // Of several nobody can say which one counts.
			text = text[:min(len(text), policy.MaxShownText)]
			who.Shown = append(append(who.Shown, byte(i), byte(len(text))), text...)
		}
	}
}
