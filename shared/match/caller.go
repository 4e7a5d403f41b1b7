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
	// consumer counts once lookedUp. othersBanned: the request names several, and one is banned.
	// unsure: it names more than can be looked up. banEnds is when the ban that was found ends by
	// itself, 0 for never; bannedKey is its key if it is one of a key.
	consumer                       Consumer
	lookedUp, othersBanned, unsure bool
	banEnds                        int64
	bannedKey                      keyhash.Key
	// tier is the index of the caller's tier, or unknownTier. guessed: the consumer may have been
	// assigned another one, which is not known here yet.
	tier    int
	guessed bool
}

// unknownTier is the tier of a request until findTier has looked for it.
const unknownTier = -1

// begin forgets the request before.
func (c *caller) begin(ix *Index, a *Attributes) {
	c.encoder.begin(ix)
	c.consumer, c.tier, c.guessed = Consumer{}, unknownTier, false
	c.lookedUp, c.othersBanned, c.unsure = false, false, false
	c.exceptions, c.revision, c.banEnds = false, 0, 0
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
	key, known := c.consumerKey(a)
	c.unsure = c.excess
	if choices := min(c.spread, maxSpread); choices > 1 && c.exceptions {
		for c.choice = 1; c.choice <= choices; c.choice++ {
			var one Consumer
			one.Key, one.Known = c.consumerKey(a)
			find(a, &one)
			c.othersBanned = c.othersBanned || one.Banned
		}
		c.choice = 0
	}
	if c.consumer.Key, c.consumer.Known = key, known; known {
		find(a, &c.consumer)
	}
}

// find is the one place that asks for a consumer: the code of an answer is long.
//
//go:noinline
func find(a *Attributes, c *Consumer) { a.Consumers.Find(c) }

// consumerKey is the ConsumerKey of the request's consumer, known by the first source that holds
// anything. Several different values name no consumer where they are refused.
func (e *encoder) consumerKey(a *Attributes) (keyhash.Key, bool) {
	e.open(consumerFormat)
	if !e.putConsumer(a) || e.ambiguous && e.choice == 0 {
		return keyhash.Key{}, false
	}
	return e.hash(), true
}

// findTier finds the caller's tier: that of the first source that holds the name of one. Several
// different values are none.
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
		if e.hold(s, a).len() > 0 {
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
