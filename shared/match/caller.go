package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
)

// caller finds out who made a request: its consumer and its tier. Each is looked up at most once,
// and only if something depends on it.
type caller struct {
	encoder
	// exceptions: some consumers have more than a tier.
	exceptions bool
	// revision is that of the exceptions, for Result.ExceptionsRevision.
	revision uint64
	// consumer counts once lookedUp.
	consumer Consumer
	lookedUp bool
	// tier is the index of the caller's tier, or unknownTier.
	tier int
}

// unknownTier is the tier of a request until findTier has looked for it.
const unknownTier = -1

// begin forgets the request before.
func (c *caller) begin(ix *Index, a *Attributes) {
	c.ix = ix
	c.consumer, c.lookedUp, c.tier = Consumer{}, false, unknownTier
	c.exceptions, c.revision = false, 0
	if a.Consumers != nil {
		c.exceptions, c.revision = a.Consumers.Exceptions()
	}
}

// findConsumer looks the request's consumer up. There must be Consumers to ask.
func (c *caller) findConsumer(a *Attributes) {
	if c.lookedUp {
		return
	}
	c.lookedUp = true
	c.consumer.Key, c.consumer.Known = c.consumerKey(a)
	if c.consumer.Known {
		a.Consumers.Find(&c.consumer)
	}
}

// consumerKey is the ConsumerKey of the request's consumer, known by the first source that holds
// anything. A value that is given more than once names no consumer.
func (e *encoder) consumerKey(a *Attributes) (keyhash.Key, bool) {
	for _, s := range e.ix.sources {
		e.key = putText(append(e.key[:0], consumerFormat, byte(s.kind)), e.ix.Text(s.name))
		value := len(e.key)
		if !e.putSource(s, a) {
			continue
		}
		if e.key[value] != oneValue {
			return keyhash.Key{}, false
		}
		return e.hash(), true
	}
	return keyhash.Key{}, false
}

// findTier finds the caller's tier: that of the first source that holds the name of one. A value
// that is given more than once is none.
func (c *caller) findTier(a *Attributes) {
	if c.tier != unknownTier {
		return
	}
	c.tier = c.ix.head.DefaultTier
	for _, s := range c.ix.tierSources {
		var name []byte
		switch s.kind {
		case policy.SourceFound:
			if s.consumer != 0 && s.consumer == c.foundAt(a) {
				c.tier = int(s.tier)
				return
			}
			continue
		case policy.SourceAssignment:
			name = c.assignedTier(a)
		default:
			name = c.single(s, a)
		}
		for i, ref := range c.ix.tiers {
			if text.Equal(c.ix.Text(ref), name) {
				c.tier = i
				return
			}
		}
	}
}

// foundAt is 1 + the index of the consumer's source that holds anything; 0 if none does.
func (e *encoder) foundAt(a *Attributes) uint8 {
	for i, s := range e.ix.sources {
		e.key = e.key[:0]
		if e.putSource(s, a) {
			return uint8(i) + 1
		}
	}
	return 0
}

// assignedTier is the name of the tier that the request's consumer was assigned.
func (c *caller) assignedTier(a *Attributes) []byte {
	if a.Consumers == nil {
		return nil
	}
	c.findConsumer(a)
	return c.consumer.Tier
}

// single is what a source holds, if that is one value; nil otherwise.
func (e *encoder) single(s source, a *Attributes) []byte {
	e.key = e.key[:0]
	if !e.putSource(s, a) {
		return nil
	}
	value, _ := readValue(e.key)
	return value
}
