package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// everyPath is the pattern of a policy that names no path.
var everyPath = []byte("/**")

// putPartition encodes a request's partition key under a policy: the policy's name, then each part
// with its kind. It reports whether the request has all parts. Pattern is the policy's path pattern
// that matches.
func (c *caller) putPartition(p *Policy, pattern wire.Ref, a *Attributes) (complete bool) {
	c.open(keyFormat)
	c.key = putText(c.key, c.ix.Text(p.Name))
	complete = true
	for _, part := range c.ix.parts[p.parts.from:p.parts.to] {
		c.key = append(c.key, byte(part.kind))
		present := true
		switch part.kind {
		case policy.PartPolicyPath:
			path := everyPath
			if pattern.Len > 0 {
				path = c.ix.Text(pattern)
			}
			c.putOne(path)
		case policy.PartTier:
			c.putOne(c.ix.Text(c.ix.tiers[c.tier]))
		default:
			present = c.putPart(part, a)
		}
		if !present {
			c.key = append(c.key, absentValue)
			complete = false
		}
	}
	return complete
}

// bansKey reports whether the partition key of a policy that was encoded last is banned, or one
// that the request would have with another choice of the values of which it holds several.
// Partition is the key that was encoded. The banned one is bannedKey then.
func (c *caller) bansKey(p *Policy, pattern wire.Ref, a *Attributes, partition keyhash.Key) (banned bool) {
	if !c.ix.bansKeys() {
		return false
	}
	choices := min(c.spread, maxSpread)
	for key := partition; ; key = c.hash() {
		c.bannedKey = key
		if banned, c.banEnds = c.ix.enforcement.bansKey(key); banned || choices == 1 || c.choice == choices {
			break
		}
		c.choice++
		c.putPartition(p, pattern, a)
	}
	if c.choice > 0 {
		c.choice = 0
		c.putPartition(p, pattern, a)
	}
	return banned
}

// bucket is the plain bucket of a policy for the partition key that was encoded last. Callers of
// another tier than the default one have others, but a consumer has the same in each tier: what it
// has used counts on where its tier changes. Base is how much of the encoding the buckets of draft
// limits go on from: the key with the tier, and without what sets shadow apart.
func (c *caller) bucket(p *Policy, partition keyhash.Key, shadow bool) (k keyhash.Key, base int) {
	k = partition
	if p.ByTier && !p.ByConsumer && c.tier != c.ix.head.DefaultTier {
		c.key = putText(append(c.key, tierMark), c.ix.Text(c.ix.tiers[c.tier]))
		k = c.hash()
	}
	base = len(c.key)
	if shadow {
		k = beginWith(c.marked(shadowMark), k)
	}
	return k, base
}

// marked adds a mark to the encoding at hand, and returns the bucket that it means then.
func (c *caller) marked(mark ...byte) keyhash.Key {
	c.key = append(c.key, mark...)
	return c.hash()
}
