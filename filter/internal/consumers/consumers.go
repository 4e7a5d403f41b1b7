// Package consumers knows which tiers the control plane has assigned: a cache in Envoy's shared data, filled by questions about
// consumers that requests ask for, and kept true by the changes that the long poll brings. Who is not known has no tier until the
// answer comes; no request waits for it.
package consumers

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// SharedData is Envoy's shared data, with the one overwrite whose last writer is right.
type SharedData interface {
	bucketstore.SharedData
	Put(key, value []byte)
}

// Caller asks the control plane about consumers. Done is called once, later, unless an error is returned; a status of 0 means
// that no answer came. Body is good during done only.
type Caller interface {
	CallConsumers(body []byte, timeout quota.Span, done func(status int, body []byte)) error
}

// Clock tells the time, the same in all VMs of the process.
type Clock interface{ Now() quota.Instant }

// How long what is known counts.
const (
	// fresh is how long nobody asks again; keep how long a tier counts after the control plane was last heard of.
	fresh = quota.Minute
	keep  = 10 * quota.Minute

	askTimeout   = quota.Second
	firstRetry   = 250 * quota.Millisecond
	longestRetry = 5 * quota.Second
)

// Stats counts questions, for the filter's metrics.
type Stats struct {
	// Asked are questions sent, Failed those without an answer, Dropped consumers that there was no room to ask about.
	Asked, Failed, Dropped uint64
}

// Cache is one VM's view. Make one with New.
type Cache struct {
	Stats Stats

	table  table
	caller Caller
	clock  Clock

	// wanted are the consumers of the next question, asked those of the one under way, sent at sent.
	wanted, asked [][16]byte
	asking        bool
	sent, nextAsk quota.Instant
	retry         quota.Span

	found   record
	message wire.Consumers
	body    []byte
}

// New makes a Cache of the given number of sets, each of four consumers, in the name space.
func New(shared SharedData, caller Caller, clock Clock, space [4]byte, sets int) *Cache {
	c := &Cache{caller: caller, clock: clock}
	c.table.init(shared, space, sets)
	return c
}

// Tier implements match.Consumers. Who is not known, or was not asked about for a while, is asked about at the next tick.
func (c *Cache) Tier(consumer match.Key) ([]byte, bool) {
	now := c.clock.Now()
	if !c.table.find(consumer, &c.found) {
		c.want(consumer)
		return nil, false
	}
	s, learned := &c.table.state, c.found.learned
	current := learned >= s.staleBefore
	if !current || now-learned >= quota.Instant(fresh) {
		c.want(consumer)
	}
	if current {
		learned = max(learned, s.synced) // Any change since would have come by the poll.
	}
	if now-learned >= quota.Instant(keep) {
		return nil, false
	}
	return c.found.tier, len(c.found.tier) > 0
}

func (c *Cache) want(consumer match.Key) {
	if contains(c.wanted, consumer) || contains(c.asked, consumer) {
		return
	}
	if len(c.wanted) == wire.MaxQuestions {
		c.Stats.Dropped++
		return
	}
	c.wanted = append(c.wanted, consumer)
}

func contains(keys [][16]byte, key [16]byte) bool {
	for i := range keys {
		if keys[i] == key {
			return true
		}
	}
	return false
}

// Tick asks about who is wanted, one question at a time.
func (c *Cache) Tick(now quota.Instant) {
	c.table.loadState()
	if len(c.wanted) == 0 || c.asking || now < c.nextAsk {
		return
	}
	c.wanted, c.asked = c.asked[:0], c.wanted
	c.body = wire.AppendQuestion(c.body[:0], c.asked)
	c.asking, c.sent = true, now
	c.Stats.Asked++
	if err := c.caller.CallConsumers(c.body, askTimeout, c.answer); err != nil {
		c.failed()
	}
}

func (c *Cache) answer(status int, body []byte) {
	if status != 200 || wire.DecodeConsumers(body, &c.message) != nil {
		c.failed()
		return
	}
	c.asking, c.asked, c.retry = false, c.asked[:0], 0
	for _, it := range c.message.Items {
		c.table.learn(record{key: it.Key, tier: it.Tier, learned: c.sent, revision: c.message.Revision})
	}
}

// failed lets go of everyone who is wanted: whom requests still ask for will be wanted again.
func (c *Cache) failed() {
	c.asking, c.asked, c.wanted = false, c.asked[:0], c.wanted[:0]
	c.Stats.Failed++
	c.retry = min(max(2*c.retry, firstRetry), longestRetry)
	c.nextAsk = c.clock.Now() + quota.Instant(c.retry)
}

// Revision is the one up to which changes are known, for the poll.
func (c *Cache) Revision() uint64 {
	c.table.loadState()
	return c.table.state.revision
}

// Changed takes in what the poll has brought. If that is not all that has changed, everyone is asked about again, and what was
// known counts until the answer.
func (c *Cache) Changed(body []byte) error {
	if err := wire.DecodeConsumers(body, &c.message); err != nil {
		return err
	}
	now := c.clock.Now()
	c.table.loadState()
	s := &c.table.state
	if !c.message.Complete {
		s.staleBefore = now
	}
	s.revision, s.synced = c.message.Revision, now
	c.table.saveState()
	for _, it := range c.message.Items {
		c.table.learn(record{key: it.Key, tier: it.Tier, learned: now, revision: c.message.Revision})
	}
	return nil
}

// Synced notes that a poll has ended without changes.
func (c *Cache) Synced() {
	c.table.loadState()
	c.table.state.synced = c.clock.Now()
	c.table.saveState()
}
