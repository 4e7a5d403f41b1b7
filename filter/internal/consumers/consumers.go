// Package consumers knows what the control plane says of consumers, their tiers, bans and limits of their own: a cache in Envoy's
// shared data, filled by questions about consumers that requests ask for, and kept true by the changes that the long poll brings.
// Of whom nothing is known the policy set alone decides until the answer comes; no request waits for it.
package consumers

import (
	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/filter/internal/shareddata"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// How long what is known counts.
const (
	// fresh is how long nobody asks again; keep how long a tier counts after the control plane was last heard of.
	fresh = quota.Minute
	keep  = 10 * quota.Minute

	path       = "/node/v1/consumers?format=2"
	askTimeout = quota.Second
)

// pauses are those after questions without an answer.
var pauses = rpc.Backoff{First: 250 * quota.Millisecond, Longest: 5 * quota.Second}

// Stats counts questions, for the filter's metrics.
type Stats struct {
	// Asked are questions sent, Failed those without an answer, Dropped consumers that there was no room to ask about.
	Asked, Failed, Dropped uint64
}

// Cache is one VM's view. Make one with New.
type Cache struct {
	Stats Stats
	// Ahead is by how much Unix time is ahead of the clock: the ends of bans and overrides are told by it.
	Ahead quota.Span

	table  table
	client rpc.Client
	clock  rpc.Clock

	// wanted are the consumers of the next question, asked those of the one under way, sent at sent.
	wanted, asked []keyhash.Key
	asking        bool
	sent, nextAsk quota.Instant
	retry         quota.Span

	// found and taught are the record at hand.
	found, taught record

	message wire.Consumers
	body    []byte
}

// New makes a Cache of the given number of sets, each of four consumers, in the name space.
func New(shared shareddata.Data, client rpc.Client, clock rpc.Clock, space shareddata.Space, sets int) *Cache {
	c := &Cache{client: client, clock: clock}
	c.table.init(shared, space, sets)
	return c
}

// Special implements match.Consumers.
func (c *Cache) Special() (any bool, turn uint64) { return c.table.state.special, c.table.state.turn }

// Find implements match.Consumers. Who is not known, or was not asked about for a while, is asked about at the next tick. A tier
// lapses when the control plane has not been heard of for long; what else it has said ends when it said it would.
func (c *Cache) Find(person *match.Person) {
	now := c.clock.Now()
	person.Now = (int64(now) + int64(c.Ahead)) / int64(quota.Millisecond)
	if !c.table.find(person.Key, &c.found) {
		c.want(person.Key)
		return
	}
	s, learned := &c.table.state, c.found.learned
	person.Sure = learned >= s.staleBefore
	if !person.Sure || now-learned >= quota.Instant(fresh) {
		c.want(person.Key)
	}
	if person.Sure {
		learned = max(learned, s.synced) // Any change since would have come by the poll.
	}
	if now-learned < quota.Instant(keep) {
		person.Tier = c.found.tier
	}
	person.Special = c.found.special
	banned, bypass := wire.Ends(person.Special)
	person.Banned, person.Bypass = banned > person.Now, bypass > person.Now
}

func (c *Cache) want(consumer keyhash.Key) {
	if contains(c.wanted, consumer) || contains(c.asked, consumer) {
		return
	}
	if len(c.wanted) == wire.MaxQuestions {
		c.Stats.Dropped++
		return
	}
	c.wanted = append(c.wanted, consumer)
}

func contains(keys []keyhash.Key, key keyhash.Key) bool {
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
	if err := c.client.Call(path, c.body, askTimeout, c.answer); err != nil {
		c.failed()
	}
}

func (c *Cache) answer(status int, body []byte) {
	if status != 200 || wire.DecodeConsumers(body, &c.message) != nil {
		c.failed()
		return
	}
	c.asking, c.asked, c.retry = false, c.asked[:0], 0
	for i := range c.message.Items {
		c.learn(&c.message.Items[i], c.sent)
	}
}

// learn takes in what a message says of a consumer. A control plane of before can only speak of tiers.
func (c *Cache) learn(it *wire.Consumer, learned quota.Instant) bool {
	c.taught = record{key: it.Key, tier: it.Tier, special: it.Special, learned: learned, revision: c.message.Revision}
	return c.table.learn(&c.taught, c.message.Format < wire.ConsumersFormat)
}

// failed lets go of everyone who is wanted: whom requests still ask for will be wanted again.
func (c *Cache) failed() {
	c.asking, c.asked, c.wanted = false, c.asked[:0], c.wanted[:0]
	c.Stats.Failed++
	c.retry = pauses.After(c.retry)
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
	for i := range c.message.Items {
		if !c.learn(&c.message.Items[i], now) {
			s.staleBefore = now + 1
		}
	}
	// Last: who sees the new turn must find what is so since.
	s.revision, s.synced = c.message.Revision, now
	if c.message.Format >= wire.ConsumersFormat {
		s.turn, s.special = c.message.Turn, c.message.Special
	}
	c.table.saveState()
	return nil
}

// Synced notes that a poll has ended without changes.
func (c *Cache) Synced() {
	c.table.loadState()
	c.table.state.synced = c.clock.Now()
	c.table.saveState()
}
