package match

import (
	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// collector turns the policies that apply to a request into hits.
type collector struct {
	caller
	hits []Hit
	// counted are the hits for Result.Counted.
	counted []Hit
	own     []policy.Limit
	// classMatches are the classes whose host and path match. class is the request's class, or
	// unknownClass.
	classMatches []pathMatch
	class        int
	// subjects identify the caller for the policies that have penalties.
	subjects []Subject
	// rank is the request's rank, if an adaptive limit applies.
	rank adaptive.Rank
	// bypassed means that operators have switched off a policy that applies.
	bypassed bool
	// keyBanned means that a policy counts the request by a banned key.
	keyBanned bool
	// limits is the override that was read last.
	limits wire.Limits
}

// unknownClass is the class of a request until findClass has looked for it.
const unknownClass = -1

// resetCollector forgets the request before.
func (c *collector) resetCollector(ix *Index, a *Attributes) {
	c.caller.resetCaller(ix, a)
	c.hits, c.own, c.subjects = c.hits[:0], c.own[:0], c.subjects[:0]
	c.bypassed, c.keyBanned, c.counted = false, false, c.counted[:0]
	c.classMatches, c.class, c.rank = nil, unknownClass, adaptive.Rank{}
}

// limitSet is the set of a policy's limits for one caller.
type limitSet struct {
	// document is the range of the limits in the policy set.
	document extent
	// count is the number of limits that apply.
	count uint32
	// own is 1 + the index in Result.Own of the first of the consumer's own limits; 0 if it has
	// none and the document's limits count.
	own uint32
	// certainty is the certainty of the hits.
	certainty Certainty
}
