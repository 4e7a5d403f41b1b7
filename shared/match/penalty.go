package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// addSubjects adds the caller for a policy's penalties: first the partition key of the hit, whose
// refusals count. If the request has several values for a part, the key of each value follows.
// Callers whose penalties hold under every policy are added by addWide.
func (c *collector) addSubjects(
	p *Policy, set limitSet, hit Hit, pattern wire.Ref, partition keyhash.Key, a *Attributes,
) {
	rule := &c.ix.penalties[p.penalty-1]
	if rule.All {
		return
	}
	subject := Subject{
		Policy: hit.Policy, Limit: set.document.from, Key: keyForStep(partition, c.reserveSteps(p)),
		Shadow: hit.Shadow || rule.Shadow,
	}
	c.subjects = append(c.subjects, subject)
	choices := min(c.spread, maxSpread)
	if choices == 1 {
		return
	}
	for c.choice = 1; c.choice <= choices; c.choice++ {
		c.putPartition(p, pattern, a)
		subject.Key = keyForStep(c.hashKey(), c.reserveSteps(p))
		c.subjects = append(c.subjects, subject)
	}
	c.choice = 0
	c.putPartition(p, pattern, a)
}

// addWide adds the caller's consumer for the policies whose penalties hold under every policy. If
// the request names several consumers, all of them follow: for each policy the refusals of the
// first count. An order about such a policy also counts for its penalties.
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

// addWideOf adds one of the request's consumers.
func (c *collector) addWideOf(consumer keyhash.Key, a *Attributes) {
	e := &c.ix.enforcement
	for _, number := range c.ix.wide {
		p := &c.ix.policies[number]
		if p.reserves.len() > 0 {
			c.findClass(a)
		}
		key := keyForStep(c.wideKey(p, consumer), c.reserveSteps(p))
		share := ShareOf(key)
		state := e.stateFor(number, share, c.tier, p.Enforced)
		if state == policy.EnforcedOff {
			continue
		}
		c.subjects = append(c.subjects, Subject{
			Policy: number, Limit: c.ix.runOf(p, 0).from, Key: key,
			Shadow: share >= uint32(state) || c.ix.penalties[p.penalty-1].Shadow,
		})
	}
}

// wideKey returns the key of a consumer for the penalties of a policy that hold under every policy.
func (e *encoder) wideKey(p *Policy, consumer keyhash.Key) keyhash.Key {
	e.key = putText(append(e.key[:0], penaltyFormat), e.ix.Text(p.Name))
	e.key = append(e.key, consumer[:]...)
	return e.hashKey()
}

// WideKey returns the key of a consumer, given by its ConsumerKey, for the penalties of a policy
// that hold under every policy.
func WideKey(secret [16]byte, policy string, consumer keyhash.Key) keyhash.Key {
	return hashKeyed(&secret, append(putText([]byte{penaltyFormat}, []byte(policy)), consumer[:]...))
}
