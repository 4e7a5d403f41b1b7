// Package penalties keeps the callers under a penalty, and their refusals that lead to a penalty,
// in Envoy's shared data: all workers of the process refuse a caller as soon as one worker has
// counted its offence. A report sends the penalty to the control plane, and the poll brings the
// penalties of other nodes.
package penalties

import (
	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Stats counts the effects of penalties, for the filter's metrics.
type Stats struct {
	// Begun counts offences, and ShadowBegun offences in shadow.
	Begun, ShadowBegun uint64
	// Refused counts requests that a penalty refused. ShadowRefused counts requests that a penalty
	// in shadow would have refused.
	Refused, ShadowRefused uint64
	// Lost counts refusals and penalties that found no place, because the table is full or
	// contended.
	Lost uint64
	// Dropped counts penalties that only this node knows, because too many waited to be reported.
	Dropped uint64
}

// Config has the parts that a Box needs.
type Config struct {
	Shared shareddata.Data
	Space  shareddata.Space
	// Sets is the size of the table. Each set has four callers.
	Sets int
	// Reports: there is a control plane to report penalties to.
	Reports bool
	Clock   rpc.Clock
	// Seed is this VM's own number.
	Seed uint64
}

// Box gives one VM access to the penalties. Make a Box with New.
type Box struct {
	Stats Stats
	// Ahead is the time by which Unix time is ahead of the clock.
	Ahead quota.Span

	table   table
	clock   rpc.Clock
	random  rpc.Rand
	reports bool
	outbox
	// heard is the message from the poll that is being read.
	heard wire.Penalties

	// counting is the current change of an entry. It is a field because an argument to the table
	// would be allocated on the heap for each refusal.
	counting counting
	count    func(*entry) bool
	// learning is the penalty that is being learned.
	learning wire.Penalty
	learn    func(*entry) bool
}

// counting is a refusal, or a request during a penalty, that changes an entry.
type counting struct {
	rule *penalty.Rule
	now  int64
	// prolong: the caller is under a penalty that starts over.
	prolong bool
	// made is the record after the change. known is the revision of the control plane's knowledge
	// of the caller.
	made  penalty.Record
	known uint64
	begun bool
}

// New makes a Box.
func New(c Config) *Box {
	b := &Box{clock: c.Clock, random: rpc.NewRand(c.Seed), reports: c.Reports}
	b.table.init(c.Shared, c.Space, c.Sets)
	b.count, b.learn = b.applyCounting, b.applyLearning
	return b
}

// unixTime returns an instant as Unix time.
func (b *Box) unixTime(now quota.Instant) quota.Span { return quota.Span(now) + b.Ahead }

// unixMillis returns an instant in Unix milliseconds.
func (b *Box) unixMillis(now quota.Instant) int64 { return int64(b.unixTime(now) / quota.Millisecond) }

// Find returns the remaining time of a caller's penalty, 0 if none is in force. If its rule says
// extend, the penalty starts over.
func (b *Box) Find(ix *match.Index, s *match.Subject, now quota.Instant) quota.Span {
	left := b.Left(s, now)
	if left == 0 {
		return 0
	}
	if ix.Penalty(s.Policy).Extend {
		unix := b.unixMillis(now)
		held := b.startOver(ix, s, s.PenaltyKey(), unix)
		if !held.InForce(unix) {
			return 0
		}
		left = quota.Span(held.Until)*quota.Millisecond - b.unixTime(now)
	}
	if s.Shadow {
		b.Stats.ShadowRefused++
	} else {
		b.Stats.Refused++
	}
	return left
}

// Left returns the remaining time of a caller's penalty like Find, but counts and changes nothing.
func (b *Box) Left(s *match.Subject, now quota.Instant) quota.Span {
	found := b.table.findEntry(s.PenaltyKey())
	if found == nil || !found.InForce(b.unixMillis(now)) {
		return 0
	}
	return quota.Span(found.Until)*quota.Millisecond - b.unixTime(now)
}

// startOver makes a penalty start over, and returns its record then: it may have been pardoned
// meanwhile.
func (b *Box) startOver(ix *match.Index, s *match.Subject, key keyhash.Key, unix int64) penalty.Record {
	b.counting = counting{rule: ix.Penalty(s.Policy), now: unix, prolong: true}
	stored := b.table.updateEntry(key, unix, b.count)
	if stored && b.counting.begun {
		b.noteOffence(ix, s, key, s.Shadow)
	}
	return b.counting.made
}

// Refused counts that a policy refused a caller. Shadow: only a policy or a penalty in shadow would
// have refused it. It returns the remaining time of a penalty that refuses the caller from now on,
// 0 if there is none.
func (b *Box) Refused(ix *match.Index, s *match.Subject, shadow bool, now quota.Instant) quota.Span {
	rule, key, unix := ix.Penalty(s.Policy), s.Key, b.unixMillis(now)
	shadow = shadow || rule.Shadow
	if shadow {
		key = match.ShadowOf(key)
	}
	b.counting = counting{rule: rule, now: unix}
	switch stored := b.table.updateEntry(key, unix, b.count); {
	case b.counting.made.InForce(unix) && !b.counting.begun: // Another worker was faster.
	case !stored:
		b.Stats.Lost++
	case b.counting.begun:
		b.noteOffence(ix, s, key, shadow)
		if shadow {
			b.Stats.ShadowBegun++
		} else {
			b.Stats.Begun++
		}
	}
	if shadow || !b.counting.made.InForce(unix) {
		return 0
	}
	return quota.Span(b.counting.made.Until)*quota.Millisecond - b.unixTime(now)
}

// applyCounting changes an entry by b.counting.
func (b *Box) applyCounting(e *entry) bool {
	c := &b.counting
	c.made, c.begun = e.Record, false
	if c.prolong != e.InForce(c.now) {
		return false // The penalty began, ended or was pardoned since it was looked at.
	}
	next := e.Record
	switch {
	case c.prolong:
		next = c.rule.Prolong(e.Record, c.now, b.random.Next())
	case e.refusals.Add(c.rule, c.now):
		next = c.rule.Offend(e.Record, c.now, b.random.Next())
	}
	c.begun = next != e.Record
	if c.prolong && !c.begun {
		return false
	}
	e.revision = max(e.revision, b.table.state.revision)
	e.Record, c.made, c.known = next, next, e.revision
	return true
}

// Known returns the last known change, for the poll.
func (b *Box) Known() uint64 {
	b.table.loadState()
	return b.table.state.revision
}

// Learn stores the changes that the poll brought.
func (b *Box) Learn(body []byte) error {
	if err := wire.DecodePenalties(body, &b.heard); err != nil {
		return err
	}
	m, unix := &b.heard, b.unixMillis(b.clock.Now())
	b.table.loadState()
	s := &b.table.state
	s.cleared = max(s.cleared, m.Cleared)
	for i := range m.Items {
		b.learning = m.Items[i]
		b.table.updateEntry(b.learning.Key, unix, b.learn)
	}
	// The state comes last: a VM that reads the new revision must find its changes. A revision may
	// go back, when another store has replaced a lost store.
	s.revision = m.Revision
	b.table.saveState()
	return nil
}

// applyLearning changes an entry by b.learning. A pardon deletes everything. The penalty that ends
// later stays.
func (b *Box) applyLearning(e *entry) bool {
	p, m := &b.learning, &b.heard
	if e.revision > m.Revision {
		return false
	}
	learned := penalty.Record{Level: int(p.Level), Until: p.Until}
	known := e.revision != 0 || e.Level != 0 || e.refusals.Count > 0
	e.revision = m.Revision
	switch {
	case p.Level == 0:
		e.Record, e.refusals.Count = penalty.Record{}, 0
		return known // A pardon of a caller without an entry takes no place.
	case learned.Beats(e.Record):
		e.Record, e.refusals.Count = learned, 0
	}
	return true
}

// Follow reads from the shared data up to which change the other VMs know penalties, and whether
// all were pardoned.
func (b *Box) Follow() { b.table.loadState() }
