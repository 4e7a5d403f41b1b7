// Package consumers caches the control plane's knowledge about consumers: their tiers, bans and own
// limits. The cache is in Envoy's shared data. Questions about the consumers of requests fill it,
// and the changes from the long poll keep it current. For an unknown consumer the policy set alone
// decides until the answer comes; no request waits for it.
package consumers

import (
	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// These are the times for which knowledge counts.
const (
	// fresh is the time for which a consumer is not asked about again. keep is the time for which a
	// tier counts after the last answer of the control plane.
	fresh = quota.Minute
	keep  = 10 * quota.Minute

	path       = "/node/v1/consumers"
	askTimeout = quota.Second
)

// pauses are the pauses after questions without an answer.
var pauses = rpc.Backoff{First: 250 * quota.Millisecond, Longest: 5 * quota.Second}

// Stats counts questions, for the filter's metrics.
type Stats struct {
	// Asked counts questions. Failed counts questions without an answer. Dropped counts consumers
	// that had no room in a question.
	Asked, Failed, Dropped uint64
}

// Cache gives one VM access to the cache. Make a Cache with New.
type Cache struct {
	Stats Stats
	// Ahead is the time by which Unix time is ahead of the clock. The ends of bans and overrides
	// are in Unix time.
	Ahead quota.Span

	table  table
	client rpc.Client
	clock  rpc.Clock

	// wanted are the consumers of the next question. asked are the consumers of the question under
	// way, which left at sent.
	wanted, asked []keyhash.Key
	asking        bool
	sent, nextAsk quota.Instant
	retry         quota.Span

	// found and taught are buffers for the current record.
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

// Exceptions implements match.Consumers.
func (c *Cache) Exceptions() (any bool, exceptionsRevision uint64) {
	return c.table.state.special, c.table.state.exceptionsRevision
}

// Find implements match.Consumers. The next tick asks about a consumer that is unknown or was not
// asked about for fresh. A tier lapses when the control plane has not answered for keep; bans and
// the other exceptions end at their own time.
func (c *Cache) Find(found *match.Consumer) {
	now := c.clock.Now()
	found.Now = (int64(now) + int64(c.Ahead)) / int64(quota.Millisecond)
	if !c.table.findRecord(found.Key, &c.found) {
		c.wantConsumer(found.Key)
		return
	}
	s, learned := &c.table.state, c.found.learned
	found.Sure = learned >= s.staleBefore
	if !found.Sure || now-learned >= quota.Instant(fresh) {
		c.wantConsumer(found.Key)
	}
	if found.Sure {
		learned = max(learned, s.synced) // The poll would have brought any later change.
	}
	if now-learned < quota.Instant(keep) {
		found.Tier = c.found.tier
	} else {
		found.Sure = false // The tier is a guess again.
	}
	found.Exceptions = c.found.special
	banned, bypass := wire.Ends(found.Exceptions)
	found.Banned, found.Bypass = banned > found.Now, bypass > found.Now
	if banned != wire.ForGood {
		found.BanEnds = banned
	}
}

// wantConsumer adds a consumer to the next question.
func (c *Cache) wantConsumer(consumer keyhash.Key) {
	if containsKey(c.wanted, consumer) || containsKey(c.asked, consumer) {
		return
	}
	if len(c.wanted) == wire.MaxQuestions {
		c.Stats.Dropped++
		return
	}
	c.wanted = append(c.wanted, consumer)
}

// containsKey reports whether keys contain a key. It is not generic, to keep the module small.
func containsKey(keys []keyhash.Key, key keyhash.Key) bool {
	for i := range keys {
		if keys[i] == key {
			return true
		}
	}
	return false
}

// Tick asks about the wanted consumers, one question at a time.
func (c *Cache) Tick(now quota.Instant) {
	c.table.loadState()
	if len(c.wanted) == 0 || c.asking || now < c.nextAsk {
		return
	}
	c.wanted, c.asked = c.asked[:0], c.wanted
	c.body = wire.AppendQuestion(c.body[:0], c.asked)
	c.asking, c.sent = true, now
	c.Stats.Asked++
	if err := c.client.Call(path, c.body, askTimeout, c.takeAnswer); err != nil {
		c.failQuestion()
	}
}

// NextDue returns when Tick has something to do. Changes that other VMs stored can wait for the
// tick before the next request.
func (c *Cache) NextDue() quota.Instant {
	if len(c.wanted) == 0 || c.asking {
		return quota.Forever
	}
	return c.nextAsk
}

// takeAnswer handles the end of a question.
func (c *Cache) takeAnswer(status int, body []byte) {
	if status != 200 || wire.DecodeConsumers(body, &c.message) != nil {
		c.failQuestion()
		return
	}
	c.asking, c.asked, c.retry = false, c.asked[:0], 0
	for i := range c.message.Items {
		c.learnConsumer(&c.message.Items[i], c.sent)
	}
}

// learnConsumer stores the message's state of a consumer.
func (c *Cache) learnConsumer(it *wire.Consumer, learned quota.Instant) bool {
	c.taught = record{
		key: it.Key, tier: it.Tier, special: it.Exceptions,
		learned: learned, revision: c.message.Revision,
	}
	return c.table.storeRecord(&c.taught)
}

// failQuestion drops all wanted consumers: further requests will make them wanted again.
func (c *Cache) failQuestion() {
	c.asking, c.asked, c.wanted = false, c.asked[:0], c.wanted[:0]
	c.Stats.Failed++
	c.retry = pauses.After(c.retry)
	c.nextAsk = c.clock.Now() + quota.Instant(c.retry)
}

// Revision returns the last known change, for the poll.
func (c *Cache) Revision() uint64 {
	c.table.loadState()
	return c.table.state.revision
}

// Changed stores the changes that the poll brought. If they are not complete, all consumers are
// asked about again, and the old knowledge counts until the answer.
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
		if !c.learnConsumer(&c.message.Items[i], now) {
			s.staleBefore = now + 1
		}
	}
	// The state comes last: a VM that reads the new revision must find its changes.
	s.revision, s.synced = c.message.Revision, now
	s.exceptionsRevision, s.special = c.message.ExceptionsRevision, c.message.HasExceptions
	c.table.saveState()
	return nil
}

// Synced notes that a poll has ended without changes.
func (c *Cache) Synced() {
	c.table.loadState()
	c.table.state.synced = c.clock.Now()
	c.table.saveState()
}
