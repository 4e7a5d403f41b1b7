package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// everyPath is the pattern of a policy without a path.
var everyPath = []byte("/**")

// putPartition encodes a request's partition key under a policy: the policy's name, then each part
// with its kind. It reports whether the request has all parts. pattern is the policy's path pattern
// that matches.
func (c *caller) putPartition(p *Policy, pattern wire.Ref, a *Attributes) (complete bool) {
	c.beginKey(keyFormat)
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

// bansKey reports whether the partition key of a policy that was encoded last is banned, or a key
// that the request would have with another choice among its several values. partition is the key
// that was encoded. If a key is banned, bannedKey is that key.
func (c *caller) bansKey(p *Policy, pattern wire.Ref, a *Attributes, partition keyhash.Key) (banned bool) {
	if !c.ix.bansKeys() {
		return false
	}
	choices := min(c.spread, maxSpread)
	for key := partition; ; key = c.hashKey() {
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

// bucketOf returns the plain bucket of a policy for the partition key that was encoded last.
// Callers of a tier other than the default tier have other buckets. But a consumer has the same
// bucket in each tier: its used tokens stay used when its tier changes. base is the length of the
// encoding that the buckets of draft limits continue: the key with the tier, and without the mark
// of shadow.
func (c *caller) bucketOf(p *Policy, partition keyhash.Key, shadow bool) (k keyhash.Key, base int) {
	k = partition
	if p.ByTier && !p.ByConsumer && c.tier != c.ix.head.DefaultTier {
		c.key = putText(append(c.key, tierMark), c.ix.Text(c.ix.tiers[c.tier]))
		k = c.hashKey()
	}
	base = len(c.key)
	if shadow {
		k = beginWith(c.markedBucket(shadowMark), k)
	}
	return k, base
}

// markedBucket adds a mark to the current encoding, and returns its bucket.
func (c *caller) markedBucket(mark ...byte) keyhash.Key {
	c.key = append(c.key, mark...)
	return c.hashKey()
}
