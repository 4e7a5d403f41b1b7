package leases_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// people is the knowledge of one replica about one consumer, alice, and the stored record that
// other replicas have written.
type people struct {
	held, stored consumers.Knowledge
	err          error
}

var alice = keyhash.Key{1, 2, 3, 4, 5, 6, 7, 8, 9}

func (p *people) ExceptionsRevision() uint64 { return p.held.ExceptionsRevision }

func (p *people) Known(_ context.Context, keys []keyhash.Key) (map[keyhash.Key]consumers.Knowledge, error) {
	known := map[keyhash.Key]consumers.Knowledge{}
	for _, key := range keys {
		if known[key] = (consumers.Knowledge{ExceptionsRevision: p.held.ExceptionsRevision}); key == alice {
			known[key] = p.held
		}
	}
	return known, p.err
}

func (p *people) Refresh(context.Context) error {
	p.held = p.stored
	return p.err
}

// own is alice with some limits a minute of her own under a policy, until an instant.
func own(revision uint64, name string, until time.Time, quotas ...int64) consumers.Knowledge {
	k := consumers.Knowledge{ExceptionsRevision: revision}
	o := consumers.Override{Policy: name, Mark: consumers.Mark{Expires: until}}
	for i, q := range quotas {
		o.Limits = append(o.Limits, consumers.Limit{Quota: q, Window: quota.Span(i+1) * quota.Minute})
	}
	k.Overrides = append(k.Overrides, o)
	return k
}

// of returns an item for a consumer's own limit, by its place: the first limit has the policy's
// window, and the limits behind it have longer windows.
func of(consumer keyhash.Key, it wire.LeaseItem, position uint8) wire.LeaseItem {
	it.Consumer = consumer
	it.Position = position + 1
	if position > 0 {
		it.Root = quota.Span(position+1) * quota.Minute
	}
	return it
}

func as(revision uint64, it wire.LeaseItem) wire.LeaseItem {
	it.ExceptionsRevision = revision
	return it
}

const (
	perConsumer = "name: mine, partition: [consumer], limit: {quota: 100, window: 1m}"
	asTheseSay  = "name: log, partition: [consumer], algorithm: sliding_log, limit: {quota: 100, window: 1m}"
)

// at answers items at an instant in seconds, and returns how many of the waiting were granted.
func (w *world) at(seconds int64, p *people, items ...wire.LeaseItem) (granted []int64, states []wire.ItemState) {
	w.t.Helper()
	config := w.config(func() time.Time { return time.Unix(seconds, 0) })
	config.Overrides = p
	s := leases.New(config)
	reply, err := s.Grant(w.t.Context(), wire.LeaseRequest{Version: 1, Items: items})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, a := range reply.Items {
		granted, states = append(granted, a.Waiting), append(states, a.State)
	}
	return granted, states
}

func (w *world) mustGrant(seconds int64, p *people, it wire.LeaseItem, want int64) {
	w.t.Helper()
	if got, states := w.at(seconds, p, it); got[0] != want || states[0] != wire.ItemGranted {
		w.t.Errorf("at %d s %d are granted (%v), want %d", seconds, got[0], states, want)
	}
}

func (w *world) withConsumers(lines ...string) *world {
	w.t.Helper()
	w.put(1, append(lines, "name: all, partition: [], limit: {quota: 100, window: 1m}")...)
	return w
}

// The control plane looks up the consumer's record, whatever the node believes, and keeps the used
// tokens.
func TestAnOverrideKeepsWhatWasUsed(t *testing.T) {
	w := newWorld(t).withConsumers(perConsumer)
	p := &people{held: own(0, "other", time.Time{}, 7)}
	ask := of(alice, item(1, 0, 1000, 0), 0)
	w.mustGrant(0, p, of(alice, item(1, 0, 40, 0), 0), 40)
	p.held = own(1, "mine", time.Time{}, 300)
	w.mustGrant(0, p, ask, 260)
	p.held = own(2, "mine", time.Time{}, 500)
	w.mustGrant(0, p, ask, 200)
	p.held = consumers.Knowledge{ExceptionsRevision: 3}
	p.stored = p.held
	w.mustGrant(0, p, ask, 0)
	w.mustGrant(0, p, of(keyhash.Key{9}, item(2, 0, 1000, 0), 0), 100)
}

// A node, or a replica, that does not know yet never takes a bucket back to the figures of before:
// that would mint tokens.
func TestWhoKnowsLessConvertsNothingBack(t *testing.T) {
	w := newWorld(t).withConsumers(perConsumer)
	p := &people{held: own(5, "mine", time.Time{}, 1000)}
	p.stored = p.held
	w.mustGrant(0, p, of(alice, item(1, 0, 900, 0), 0), 900)
	for name, it := range map[string]wire.LeaseItem{"a node that has not heard": as(4, item(1, 0, 1, 0)),
		"a node of before": item(1, 0, 1, 0)} {
		if _, states := w.at(0, p, it); states[0] != wire.ItemUnknown {
			t.Errorf("%s: %v", name, states)
		}
	}
	behind := &people{held: consumers.Knowledge{ExceptionsRevision: 4}, stored: p.held}
	w.mustGrant(0, behind, of(alice, item(1, 0, 60, 0), 0), 60)
	if behind.held.ExceptionsRevision != 5 {
		t.Error("the replica has not read the news")
	}
	// The node's claimed knowledge counts for no more than this replica's knowledge.
	if _, states := w.at(0, &people{held: consumers.Knowledge{ExceptionsRevision: 4},
		stored: consumers.Knowledge{ExceptionsRevision: 4}},
		as(1<<60, item(1, 0, 1, 0))); states[0] != wire.ItemUnknown {
		t.Errorf("a node claims a revision that no replica knows: %v", states)
	}
	// Once it is gone each node that knows that applies the policy's limit.
	gone := &people{held: consumers.Knowledge{ExceptionsRevision: 6},
		stored: consumers.Knowledge{ExceptionsRevision: 6}}
	w.mustGrant(0, gone, as(6, item(1, 0, 1, 0)), 0)
	w.mustGrant(0, gone, of(alice, item(1, 0, 1, 0), 0), 0)
}

// Buckets of all other consumers go on whatever a node has heard of changes of consumers, and
// whichever node was granted from them before.
func TestChangesOfOthersHoldNoCallUp(t *testing.T) {
	w := newWorld(t).withConsumers(perConsumer)
	p := &people{held: consumers.Knowledge{ExceptionsRevision: 7}, stored: consumers.Knowledge{ExceptionsRevision: 7}}
	for _, n := range []uint32{0, 1} { // By consumer, and for all.
		bucket := byte(n + 1)
		w.mustGrant(0, p, as(7, item(bucket, n, 10, 0)), 10)
		w.mustGrant(0, p, of(alice, item(bucket, n, 10, 0), 0), 10) // A node that knows nothing of the consumer.
		w.mustGrant(0, p, as(3, item(bucket, n, 10, 0)), 10)
		w.mustGrant(0, p, item(bucket, n, 10, 0), 10)
	}
}

// When one replica has found an override ended so do those whose clocks are behind.
func TestAnOverrideEndsOnce(t *testing.T) {
	w := newWorld(t).withConsumers(perConsumer)
	p := &people{held: own(5, "mine", time.Unix(60, 0), 1000)}
	p.stored = p.held
	ask := of(alice, item(1, 0, 500, 0), 0)
	w.mustGrant(59, p, ask, 500)
	w.mustGrant(60, p, ask, 0)
	w.mustGrant(58, p, ask, 0)
	// A new one begins, whatever has ended; the 500 may still be used.
	p.held = own(6, "mine", time.Unix(90, 0), 700)
	w.mustGrant(59, p, ask, 200)
}

// A limit is the consumer's own in whose place it stands, wherever that is in the list.
func TestLimitsByTheirRoots(t *testing.T) {
	w := newWorld(t).withConsumers(perConsumer, asTheseSay)
	p := &people{held: own(1, "mine", time.Time{}, 30, 40)}
	w.mustGrant(0, p, of(alice, item(1, 0, 100, 0), 0), 30)
	w.mustGrant(0, p, of(alice, item(2, 0, 100, 0), 1), 40)
	// A node that has not heard of it asks for limits that the consumer does not have.
	w.mustGrant(0, p, of(alice, item(3, 0, 1000, 0), 2), 1000)
	turned := p.held
	turned.Overrides = slices.Clone(turned.Overrides)
	turned.Overrides[0].Limits = []consumers.Limit{{Quota: 7, Window: quota.Second},
		{Quota: 40, Window: 2 * quota.Minute}, {Quota: 30, Window: quota.Minute}}
	turned.ExceptionsRevision, p.held = 2, turned
	w.mustGrant(0, p, of(alice, item(1, 0, 1, 0), 0), 0)
	w.mustGrant(0, p, of(alice, item(2, 0, 1, 0), 1), 0)
	p.held = own(3, "mine", time.Time{})
	w.mustGrant(0, p, of(alice, item(4, 0, 1<<20, 0), 0), 1<<20)
	// An override that does not fit the algorithm any more sleeps, and so does an override of a
	// policy that has buckets for all.
	p.held = own(4, "log", time.Time{}, 100_000)
	w.mustGrant(0, p, of(alice, item(5, 1, 1000, 0), 0), 100)
	p.held = own(5, "all", time.Time{}, 5)
	w.mustGrant(0, p, of(alice, item(6, 2, 1000, 0), 0), 100)
}

// A store that cannot read a consumer's record is away: the call fails, so that nodes use the
// failure ladder, and the breaker counts it. In an earlier build the items were unknown, which
// nodes take for an answer.
func TestAStoreThatCannotSayWhatConsumersHaveIsAway(t *testing.T) {
	w := newWorld(t).withConsumers(perConsumer)
	var opened []string
	breakers := breaker.NewGroup(time.Now, func() float64 { return 0 },
		func(c breaker.Change) { opened = append(opened, c.Name) })
	config := w.config(time.Now)
	config.Breakers, config.Overrides = breakers, &people{err: errors.New("away")}
	s := leases.New(config)
	req := wire.LeaseRequest{Version: 1, Items: []wire.LeaseItem{of(alice, item(1, 0, 1, 0), 0)}}
	for i := range breaker.Tolerated {
		if reply, err := s.Grant(t.Context(), req); !errors.Is(err, leases.ErrUnavailable) {
			t.Fatalf("call %d: %v %+v", i, err, reply)
		}
	}
	if !slices.Equal(opened, []string{leases.StoreName}) {
		t.Errorf("opened: %v", opened)
	}
}

// If only the part of the store with the consumers is away, the items that need consumers are
// unavailable, and all other items are granted, in groups too.
func TestThePartThatKeepsConsumersIsAway(t *testing.T) {
	joined := func(it wire.LeaseItem) wire.LeaseItem {
		it.Joined = true
		return it
	}
	named := func(bucket byte) wire.LeaseItem { return of(alice, item(bucket, 0, 1, 0), 0) }
	away := wire.LeaseAnswer{State: wire.ItemUnavailable, NotBefore: 3 * quota.Second}
	for name, c := range map[string]struct {
		items   []wire.LeaseItem
		granted []int64 // -1: unavailable
	}{
		"one alone":      {[]wire.LeaseItem{named(1)}, []int64{-1}},
		"beside another": {[]wire.LeaseItem{named(1), item(2, 1, 1, 0)}, []int64{-1, 1}},
		"the last of a group": {[]wire.LeaseItem{joined(item(2, 1, 1, 0)), named(1), item(3, 1, 500, 0)},
			[]int64{1, -1, 100}},
		"the first of a group": {[]wire.LeaseItem{joined(named(1)), item(2, 1, 1, 0)}, []int64{-1, 1}},
		"in the middle of a group": {[]wire.LeaseItem{joined(item(2, 1, 1, 0)), joined(named(1)), item(3, 1, 1, 0)},
			[]int64{1, -1, 1}},
	} {
		w := newWorld(t).withConsumers(perConsumer)
		p := &people{err: &docs.AwayError{For: 3 * time.Second, Cause: errors.New("away")}}
		config := w.config(time.Now)
		config.Overrides = p
		s := leases.New(config)
		reply, err := s.Grant(t.Context(), wire.LeaseRequest{Version: 1, Items: c.items})
		if err != nil {
			t.Fatal(name, err)
		}
		for i, want := range c.granted {
			if got := reply.Items[i]; want < 0 && got != away ||
				want >= 0 && (got.State != wire.ItemGranted || got.Waiting != want) {
				t.Errorf("%s: item %d: %+v", name, i, got)
			}
		}
	}
}

// If another replica has granted an item under newer figures, and this replica cannot read them,
// the item is unavailable rather than unknown.
func TestNewerFiguresThatCannotBeHad(t *testing.T) {
	w := newWorld(t).withConsumers(perConsumer)
	p := &people{held: own(5, "mine", time.Time{}, 1000)}
	p.stored = p.held
	w.mustGrant(0, p, of(alice, item(1, 0, 900, 0), 0), 900)
	w.setsErr = errors.New("away")
	if _, states := w.at(0, p, as(4, item(1, 0, 1, 0))); states[0] != wire.ItemUnavailable {
		t.Errorf("%v", states)
	}
}

// A node that does not know a consumer yet asks by the default tier's limit. The limit of the
// consumer's assigned tier decides, and use in another tier counts in it.
func TestATierThatANodeDoesNotKnow(t *testing.T) {
	w := newWorld(t).withConsumers("name: mine, partition: [consumer], " +
		"limits: {free: [{quota: 10, window: 1m}, {quota: 2, window: 1s}], gold: {quota: 100, window: 1m}}")
	p := &people{held: consumers.Knowledge{Record: consumers.Record{Tier: "gold"}}}
	guessed := func(it wire.LeaseItem, root quota.Span) wire.LeaseItem {
		it.Consumer, it.Position, it.Root = alice, wire.TierGuessed, root
		return it
	}
	w.mustGrant(0, p, guessed(item(1, 0, 60, 0), 0), 60)
	w.mustGrant(0, p, guessed(item(2, 1, 60, 0), quota.Second), 60) // Her tier has no such limit.
	w.mustGrant(0, p, item(1, 2, 20, 0), 20)                        // By now the node knows.
	p.held.Tier = ""
	w.mustGrant(0, p, guessed(item(1, 0, 60, 0), 0), 0)
	p.held.Tier = "gold"
	w.mustGrant(0, p, guessed(item(1, 0, 60, 0), 0), 20)
}
