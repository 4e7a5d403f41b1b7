package match

import "github.com/weir-proxy/weir/shared/policy"

// Caller is who made a request, as far as a node may tell.
type Caller struct {
	// Consumer is the consumer's ConsumerKey; zero if there is none.
	Consumer Key
	// Shown are the parts of the request that may be shown and that it has: of each its place among those of the policy set, its length and
	// at most policy.MaxShownText bytes of it.
	Shown []byte
}

// Describe tells who made a request, reusing c's memory. Unless ask is set, what Envoy would have to be asked for is left out.
func (ix *Index) Describe(a *Attributes, ask bool, c *Caller) {
	c.Consumer, c.Shown = Key{}, c.Shown[:0]
	if ask || !ix.lookups {
		c.Consumer, _ = ix.consumer(a)
	}
	for i, p := range ix.show {
		if !ask && (p.kind == policy.PartJWT || p.kind == policy.PartSPIFFE) {
			continue
		}
		ix.key = ix.key[:0]
		if !ix.encodePart(p, candidate{}, a) {
			continue
		}
		text, ok := encodedValue(ix.key)
		if !ok {
			continue // Given more than once; nobody can say which one counts.
		}
		text = text[:min(len(text), policy.MaxShownText)]
		c.Shown = append(append(c.Shown, byte(i), byte(len(text))), text...)
	}
}
