package penalties

import (
	"github.com/weir-proxy/weir/filter/internal/base/report"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// maxPending bounds the penalties of a VM that wait to be reported.
	maxPending = 1024
	// hearing is the time for which the first report waits for the poll's penalties: a report from
	// before a pardon does not count.
	hearing = 250 * quota.Millisecond
)

// outbox sends the penalties that this VM has begun to the control plane, and repeats them until
// they arrive.
type outbox struct {
	// pending are the waiting penalties, the oldest first. Penalties from the index unnamed on lack
	// the identity of their caller. The first sending penalties are under way.
	pending          []wire.Offence
	unnamed, sending int
	section          wire.Offences
	// due is when the first penalty may leave.
	due quota.Instant
}

// noteOffence notes a penalty for the next report. A later penalty of the same caller replaces a
// penalty that still waits. Penalties of the plugin's own policy set are not reported, because they
// concern this node only.
//
//go:noinline
func (b *Box) noteOffence(ix *match.Index, s *match.Subject, key keyhash.Key, shadow bool) {
	if !b.reports || ix.Version() == 0 {
		return
	}
	c := &b.counting
	at := b.sending
	for at < len(b.pending) && b.pending[at].Key != key {
		at++
	}
	if at == len(b.pending) {
		if len(b.pending) == maxPending {
			b.Stats.Dropped++
			return
		}
		if len(b.pending) == 0 && b.table.state.revision == 0 {
			b.due = b.clock.Now() + quota.Instant(hearing)
		}
		b.pending = append(b.pending, wire.Offence{})
	}
	o := &b.pending[at]
	o.Key, o.Known, o.Shadow, o.Prolonged = key, c.known, shadow, c.prolong
	o.Level, o.Until, o.Forgotten = uint8(c.made.Level), c.made.Until, c.rule.Forgotten(c.made)
	o.Policy = append(o.Policy[:0], ix.Text(ix.Policy(s.Policy).Name)...)
	if o.Version != ix.Version() { // The identity shown belongs to another policy set.
		o.Version, o.Shown = ix.Version(), o.Shown[:0]
	}
}

// Unnamed reports whether Name must be called before the request ends.
func (b *Box) Unnamed() bool { return b.unnamed < len(b.pending) }

// Name sets the identity of the request's caller in the penalties that were noted last.
func (b *Box) Name(id *wire.Identity) {
	for ; b.unnamed < len(b.pending); b.unnamed++ {
		o := &b.pending[b.unnamed]
		o.Consumer, o.Shown = id.Consumer, append(o.Shown[:0], id.Shown...)
	}
}

// NextReport implements report.Part.
func (b *Box) NextReport(quota.Instant) quota.Instant {
	if len(b.pending) == 0 {
		return quota.Forever
	}
	return b.due
}

// AddTo implements report.Part, also if no policy has penalties any more.
func (b *Box) AddTo(m *wire.Report, _ quota.Instant, _ *ruleset.Rules) {
	b.sending = min(len(b.pending), wire.MaxOffences)
	b.section.Items = b.pending[:b.sending]
	m.Offences = &b.section
}

// EndReport implements report.Part. The penalties of a lost report stay pending; the penalties of a
// refused report are dropped.
func (b *Box) EndReport(end report.End, _ quota.Instant) {
	sent := b.sending
	b.sending = 0
	switch end {
	case report.Lost:
		return
	case report.Refused:
		b.Stats.Dropped += uint64(sent)
	}
	left := copy(b.pending, b.pending[sent:])
	clear(b.pending[left:]) // Their texts share memory with the moved elements.
	b.pending = b.pending[:left]
	b.unnamed = max(b.unnamed-sent, 0)
}
