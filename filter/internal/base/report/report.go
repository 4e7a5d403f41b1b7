// Package report sends a worker's reports to the control plane: one message, in which each part of
// the filter with news has a section. Each section has its own pace.
package report

import (
	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	path    = "/node/v1/report"
	timeout = quota.Second
	// unknown is the pause after an answer of a control plane that does not know the message.
	unknown = quota.Minute
	// early is the time by which a section may leave early, together with other sections, to save a
	// call.
	early = quota.Instant(quota.Second / 4)
)

// times are the waits of a section: apart after a report that the control plane took, and pauses
// after reports that it did not take.
var times = [wire.SectionCount]struct {
	apart  quota.Span
	pauses rpc.Backoff
}{
	wire.SectionOffences: {0, rpc.Backoff{First: 200 * quota.Millisecond, Longest: 10 * quota.Second}},
	wire.SectionLadder:   {quota.Second, rpc.Backoff{First: 250 * quota.Millisecond, Longest: quota.Second}},
	wire.SectionDecisions: {quota.Second,
		rpc.Backoff{First: 2 * quota.Second, Longest: 20 * quota.Second}},
	wire.SectionMeasures: {5 * quota.Second,
		rpc.Backoff{First: 10 * quota.Second, Longest: 40 * quota.Second}},
}

// Part is a part of the filter that has a section in reports.
type Part interface {
	// NextReport returns when the part has something to report; quota.Forever for nothing.
	NextReport(now quota.Instant) quota.Instant
	// AddTo adds the section to a report that leaves now, unless there is nothing to report after
	// all.
	AddTo(m *wire.Report, now quota.Instant, rules *ruleset.Rules)
	// EndReport ends the report with the section that was added last.
	EndReport(end End, now quota.Instant)
}

// Parts are the parts by their sections.
type Parts = [wire.SectionCount]Part

// Stats counts, for each section, the taken and the failed reports.
type Stats struct{ Taken, Failed [wire.SectionCount]uint64 }

// End is the outcome of a section's report.
type End uint8

// Taken: the control plane has the section. Lost: it does not, and the section may be sent again.
// Refused: it would refuse the section again.
const (
	Taken End = iota
	Lost
	Refused
)

// Reporter sends the reports of one worker, one at a time. Only offences may leave beside a report
// without offences. Make a Reporter with New.
type Reporter struct {
	Stats
	client rpc.Client
	clock  rpc.Clock
	random rpc.Rand
	parts  Parts
	// next is when a section may leave again. pause is the last pause after it was not taken.
	next  [wire.SectionCount]quota.Instant
	pause [wire.SectionCount]quota.Span
	// sent are the sections under way.
	sent wire.Sections
	// suspect are the sections of a report that was refused as a whole. Each suspect section leaves
	// separately until it is taken, so that a bad section does not spoil other sections again.
	// Samples in the first report are lost.
	suspect wire.Sections
	message wire.Report
	body    []byte
}

// New makes the Reporter of a worker of a node. Boot is random for each process, seed for each
// worker. A nil part reports nothing.
func New(client rpc.Client, clock rpc.Clock, node string, boot, seed uint64, parts Parts) *Reporter {
	return &Reporter{
		client: client, clock: clock, random: rpc.NewRand(seed), parts: parts,
		message: wire.Report{Node: []byte(node), Boot: boot},
	}
}

// NextDue returns when Tick has something to do.
func (r *Reporter) NextDue(now quota.Instant) quota.Instant {
	due := quota.Forever
	for i := range r.parts {
		if r.parts[i] != nil && r.mayLeave(i) {
			due = min(due, max(r.next[i], r.parts[i].NextReport(now)))
		}
	}
	return due
}

// mayLeave reports whether a section need not wait for a report under way.
func (r *Reporter) mayLeave(i int) bool {
	return r.sent == 0 || i == int(wire.SectionOffences) && !r.sent.Has(wire.SectionOffences)
}

// Tick sends a report as soon as a section is due, together with sections that are due within
// early.
func (r *Reporter) Tick(now quota.Instant, rules *ruleset.Rules) {
	if r.NextDue(now) > now {
		return
	}
	m := &r.message
	m.Offences, m.Ladder, m.Decisions, m.Measures = nil, nil, nil, nil
	r.addParts(now, rules)
	sent := m.Sections()
	if sent == 0 {
		return
	}
	r.sent |= sent
	r.body = wire.AppendReport(r.body[:0], m)
	done := func(status int, _ []byte) { r.endReport(r.clock.Now(), sent, status) }
	if err := r.client.Call(path, r.body, timeout, done); err != nil {
		r.endReport(now, sent, 0)
	}
}

// addParts adds the sections that leave now: the sections that are not suspect, or a single suspect
// section.
func (r *Reporter) addParts(now quota.Instant, rules *ruleset.Rules) {
	for i, part := range r.parts {
		suspect := r.suspect.Has(wire.Section(i))
		switch {
		case part == nil, !r.mayLeave(i), max(r.next[i]-early, part.NextReport(now)) > now:
			continue
		case suspect && r.message.Sections() != 0:
			continue
		}
		part.AddTo(&r.message, now, rules)
		if suspect && r.message.Sections() != 0 {
			return
		}
	}
}

// endReport ends the report of some sections, and informs their parts.
func (r *Reporter) endReport(now quota.Instant, sent wire.Sections, status int) {
	// Which sections were lost?
	lost, bad := sent, status == 400 || status == 413
	switch {
	case status == 202:
		lost = 1 << wire.SectionOffences
	case rpc.OutcomeOf(status) == rpc.Answered:
		lost = 0
	}
	// Sections that were refused together become suspect.
	several := sent&(sent-1) != 0
	r.sent &^= sent
	switch {
	case !several && lost&sent == 0:
		r.suspect &^= sent
	case several && bad:
		r.suspect |= sent
	}
	// Inform each part.
	for i, part := range r.parts {
		if !sent.Has(wire.Section(i)) {
			continue
		}
		end := Taken
		switch {
		case bad && !several:
			end = Refused
		case lost.Has(wire.Section(i)):
			end = Lost
		}
		if end == Taken {
			r.Taken[i]++
		} else {
			r.Failed[i]++
		}
		r.planNext(i, now, end, status)
		part.EndReport(end, now)
	}
}

// planNext sets when a section may leave again. The ladder does not wait long for a control plane
// that knows the message: it shows operators the state of a node.
func (r *Reporter) planNext(i int, now quota.Instant, end End, status int) {
	switch {
	case end != Lost:
		r.pause[i], r.next[i] = 0, now+quota.Instant(times[i].apart)
	case i != int(wire.SectionLadder) && (status == 404 || status == 405):
		r.next[i] = now + quota.Instant(unknown)
	default:
		r.pause[i] = times[i].pauses.After(r.pause[i])
		r.next[i] = now + rpc.Spread(r.pause[i], r.random.Jitter())
	}
}
