package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
)

// caller finds the consumer and the tier of a request. Each is looked up at most once, and only if
// it is needed.
type caller struct {
	encoder
	// exceptions means that some consumers have more than a tier.
	exceptions bool
	// revision is the revision of the exceptions, for Result.ExceptionsRevision.
	revision uint64
	// consumer is valid if lookedUp is set. othersBanned means that the request names several
	// consumers, and one of them is banned. unsure means that it names too many to look up. banEnds
	// is when the ban ends by itself, 0 for never. bannedKey is the banned key, if there is one for
	// the request.
	consumer                       Consumer
	lookedUp, othersBanned, unsure bool
	banEnds                        int64
	bannedKey                      keyhash.Key
	// tier is the index of the caller's tier, or unknownTier. guessed means that the consumer may
	// have been assigned another tier, which is not known here yet.
	tier    int
	guessed bool
}

// unknownTier is the tier of a request until findTier has looked for it.
const unknownTier = -1

// resetCaller forgets the request before.
func (c *caller) resetCaller(ix *Index, a *Attributes) {
	c.encoder.resetEncoder(ix)
	c.consumer, c.tier, c.guessed = Consumer{}, unknownTier, false
	c.lookedUp, c.othersBanned, c.unsure = false, false, false
	c.exceptions, c.revision, c.banEnds = false, 0, 0
	if a.Consumers != nil {
		c.exceptions, c.revision = a.Consumers.Exceptions()
	}
}

// findConsumer looks up the request's consumer. There must be Consumers to ask.
func (c *caller) findConsumer(a *Attributes) {
	if c.lookedUp {
		return
	}
	c.lookedUp = true
	key, known := c.consumerKey(a)
	c.unsure = c.excess
	if choices := min(c.spread, maxSpread); choices > 1 && c.exceptions {
		for c.choice = 1; c.choice <= choices; c.choice++ {
			var one Consumer
			one.Key, one.Known = c.consumerKey(a)
			lookUpConsumer(a, &one)
			c.othersBanned = c.othersBanned || one.Banned
		}
		c.choice = 0
	}
	if c.consumer.Key, c.consumer.Known = key, known; known {
		lookUpConsumer(a, &c.consumer)
	}
}

// lookUpConsumer is the only function that asks for a consumer: the code of an answer is long.
//
//go:noinline
func lookUpConsumer(a *Attributes, c *Consumer) { a.Consumers.Find(c) }

// consumerKey returns the ConsumerKey of the request's consumer, from the first source that has a
// value. Several different values name no consumer where the policy set refuses them.
func (e *encoder) consumerKey(a *Attributes) (keyhash.Key, bool) {
	e.beginKey(consumerFormat)
	if !e.putConsumer(a) || e.ambiguous && e.choice == 0 {
		return keyhash.Key{}, false
	}
	return e.hashKey(), true
}

// findTier finds the caller's tier: the first source that has the name of a tier decides. Several
// different values name no tier.
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
			c.guessed = len(name) == 0 && c.consumer.Known && !c.consumer.Sure
		default:
			name = c.singleValue(s, a)
		}
		for i, ref := range c.ix.tiers {
			if text.Equal(c.ix.Text(ref), name) {
				c.tier = i
				return
			}
		}
	}
}

// foundAt returns 1 + the index of the consumer's source that has a value; 0 if none has.
func (e *encoder) foundAt(a *Attributes) uint8 {
	for i, s := range e.ix.sources {
		if e.valuesAt(s, a).len() > 0 {
			return uint8(i) + 1
		}
	}
	return 0
}

// assignedTier returns the name of the tier that the request's consumer was assigned.
func (c *caller) assignedTier(a *Attributes) []byte {
	if a.Consumers == nil {
		return nil
	}
	c.findConsumer(a)
	return c.consumer.Tier
}
