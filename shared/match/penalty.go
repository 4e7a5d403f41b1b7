package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// addSubjects adds the caller as a policy's penalties know it, by the partition key of the hit, and
// behind it, if the request holds several values for a part, by the key of each of them: the first
// is the one whose refusals count. One whose penalties hold under every policy is added by addWide.
func (c *collector) addSubjects(
	p *Policy, set limitSet, hit Hit, pattern wire.Ref, partition keyhash.Key, a *Attributes,
) {
	rule := &c.ix.penalties[p.penalty-1]
	if rule.All {
		return
	}
	subject := Subject{
		Policy: hit.Policy, Limit: set.document.from, Key: classed(partition, c.step(p)),
		Shadow: hit.Shadow || rule.Shadow,
	}
	c.subjects = append(c.subjects, subject)
	choices := min(c.spread, maxSpread)
	if choices == 1 {
		return
	}
	for c.choice = 1; c.choice <= choices; c.choice++ {
		c.putPartition(p, pattern, a)
		subject.Key = classed(c.hash(), c.step(p))
		c.subjects = append(c.subjects, subject)
	}
	c.choice = 0
	c.putPartition(p, pattern, a)
}

// addWide adds the caller's consumer, by the policies whose penalties hold under every policy, and
// behind it all that the request names if it names several: the first of a policy is the one whose
// refusals count. An order about such a policy counts for its penalties too.
//
//go:noinline
func (c *collector) addWide(a *Attributes) {
	if c.ix.enforcement.byTier {
		c.findTier(a)
	}
	if consumer, known := c.consumerKey(a); known {
		c.addWideOf(consumer, a)
	}
	if choices := min(c.spread, maxSpread); choices > 1 {
		for c.choice = 1; c.choice <= choices; c.choice++ {
			consumer, _ := c.consumerKey(a)
			c.addWideOf(consumer, a)
		}
		c.choice = 0
	}
}

// addWideOf adds one of the consumers that the request names.
func (c *collector) addWideOf(consumer keyhash.Key, a *Attributes) {
	e := &c.ix.enforcement
	for _, number := range c.ix.wide {
		p := &c.ix.policies[number]
		if p.reserves.len() > 0 {
			c.findClass(a)
		}
		key := classed(c.wideKey(p, consumer), c.step(p))
		share := ShareOf(key)
		state := e.state(number, share, c.tier, p.Enforced)
		if state == policy.EnforcedOff {
			continue
		}
		c.subjects = append(c.subjects, Subject{
			Policy: number, Limit: c.ix.run(p, 0).from, Key: key,
			Shadow: share >= uint32(state) || c.ix.penalties[p.penalty-1].Shadow,
		})
	}
}

// wideKey is the key of a consumer for the penalties of a policy that hold under every policy.
func (e *encoder) wideKey(p *Policy, consumer keyhash.Key) keyhash.Key {
	e.key = putText(append(e.key[:0], penaltyFormat), e.ix.Text(p.Name))
	e.key = append(e.key, consumer[:]...)
	return e.hash()
}

// WideKey is the key by which the penalties of a policy that hold under every policy know a
// consumer, given by its ConsumerKey.
func WideKey(secret [16]byte, policy string, consumer keyhash.Key) keyhash.Key {
	return hashed(&secret, append(putText([]byte{penaltyFormat}, []byte(policy)), consumer[:]...))
}
