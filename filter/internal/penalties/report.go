package penalties

import (
	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	timeout = quota.Second
	// maxPending bounds the penalties of a VM that wait to be reported.
	maxPending = 1024
	// hearing is how long the first report waits for the poll to bring what the control plane
	// knows: a report from before a pardon counts no more.
	hearing = 250 * quota.Millisecond
	// unknown is the pause after an answer of a control plane that does not know the message.
	unknown = quota.Minute
)

// pauses are the pauses after reports that did not arrive.
var pauses = rpc.Backoff{First: 100 * quota.Millisecond, Longest: 5 * quota.Second}

// reporter takes the penalties that this VM has begun to the control plane. What does not arrive is
// sent again.
type reporter struct {
	client rpc.Client
	clock  rpc.Clock
	random rpc.Rand
	body   []byte

	// pending are those that wait, the oldest first. Those from unnamed on lack the identity of
	// their caller. The first sending ones are under way.
	pending          []wire.Offence
	unnamed, sending int
	message          wire.Report
	offences         wire.Offences
	due              quota.Instant
	pause            quota.Span
}

// report notes a penalty for the next report. Penalties count by themselves: the later one of a
// caller makes an earlier one that still waits superfluous.
// What the plugin's own policy set decides concerns this node alone.
//
//go:noinline
func (b *Box) report(ix *match.Index, s *match.Subject, key keyhash.Key, shadow bool) {
	if b.client == nil || ix.Version() == 0 {
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
			b.due = max(b.due, b.clock.Now()+quota.Instant(hearing))
		}
		b.pending = append(b.pending, wire.Offence{})
	}
	o := &b.pending[at]
	o.Key, o.Known, o.Shadow, o.Prolonged = key, c.known, shadow, c.prolong
	o.Level, o.Until, o.Forgotten = uint8(c.made.Level), c.made.Until, c.rule.Forgotten(c.made)
	o.Policy = append(o.Policy[:0], ix.Text(ix.Policy(s.Policy).Name)...)
	if o.Version != ix.Version() { // What was shown belongs to another policy set.
		o.Version, o.Shown = ix.Version(), o.Shown[:0]
	}
}

// Unnamed reports whether Name must be called before the request ends.
func (b *Box) Unnamed() bool { return b.unnamed < len(b.pending) }

// Name fills in who made the request whose penalties were noted last.
func (b *Box) Name(id *wire.Identity) {
	for ; b.unnamed < len(b.pending); b.unnamed++ {
		o := &b.pending[b.unnamed]
		o.Consumer, o.Shown = id.Consumer, append(o.Shown[:0], id.Shown...)
	}
}

// NextDue is when Tick has something to do.
func (b *Box) NextDue() quota.Instant {
	if b.sending > 0 || len(b.pending) == 0 {
		return quota.Forever
	}
	return b.due
}

// Tick sends what there is to report, also if no policy has penalties any more.
func (b *Box) Tick(now quota.Instant) {
	if b.sending > 0 || len(b.pending) == 0 || now < b.due {
		return
	}
	b.sending = min(len(b.pending), wire.MaxOffences)
	b.offences.Items = b.pending[:b.sending]
	b.message.Offences = &b.offences
	b.body = wire.AppendReport(b.body[:0], &b.message)
	err := b.client.Call(rpc.ReportPath, b.body, timeout, func(status int, answer []byte) {
		if status == 200 && !taken(answer) {
			status = 503
		}
		b.answered(b.clock.Now(), status)
	})
	if err != nil {
		b.answered(now, 0)
	}
}

// taken reports whether an answer with a body says that the offences were taken.
func taken(answer []byte) bool {
	untaken, err := wire.DecodeUntaken(answer)
	return err == nil && !untaken.Has(wire.SectionOffences)
}

// answered ends a report.
func (b *Box) answered(now quota.Instant, status int) {
	sent := b.sending
	b.sending = 0
	switch {
	case rpc.Of(status) == rpc.Answered:
		b.Stats.Reported++
		b.pause, b.due = 0, now
	case status == 400, status == 413: // It would be refused again.
		b.Stats.Failed++
		b.Stats.Dropped += uint64(sent)
	default:
		b.Stats.Failed++
		b.pause = pauses.After(b.pause)
		b.due = now + rpc.Spread(2*b.pause, b.random.Jitter())
		if status == 404 || status == 405 {
			b.due = now + quota.Instant(unknown)
		}
		return
	}
	left := copy(b.pending, b.pending[sent:])
	clear(b.pending[left:]) // Their texts are those of elements that moved.
	b.pending = b.pending[:left]
	b.unnamed = max(b.unnamed-sent, 0)
}
