package failover

import (
	"github.com/weir-proxy/weir/filter/internal/base/report"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// repeat is the interval of repeated reports while the control plane does not answer a worker.
const repeat = 10 * quota.Second

// reported is the control plane's knowledge of the ladder. Only the leader reports.
type reported struct {
	leads bool
	// sent is the value of changes in the report under way, and acked its value in the last report
	// that arrived.
	sent, acked uint64
	// again is when a report must leave even without a change.
	again   quota.Instant
	section wire.Ladder
}

// NextReport implements report.Part.
func (l *Ladder) NextReport(now quota.Instant) quota.Instant {
	r := &l.record
	switch {
	case !l.leads:
		return quota.Forever
	case r.changes != max(r.reported, l.acked):
		return now
	case r.since != 0:
		return l.again
	}
	return quota.Forever
}

// AddTo implements report.Part. The section is the newest state as a whole.
func (l *Ladder) AddTo(m *wire.Report, _ quota.Instant, rules *ruleset.Rules) {
	r, s := &l.record, &l.section
	s.Version, s.Worst, s.Steps = rules.Index.Version(), r.worstStep(), s.Steps[:0]
	if r.since != 0 && r.generation == rules.Generation && len(r.steps) == rules.Index.Len() {
		l.addSteps(rules, true)
		l.addSteps(rules, false)
	}
	m.Ladder, l.sent = s, r.changes
}

// addSteps adds the policies whose requests have needed the ladder. Without needed it adds the
// other policies that can need it.
func (l *Ladder) addSteps(rules *ruleset.Rules, needed bool) {
	for i, step := range l.record.steps {
		if len(l.section.Steps) == wire.MaxSteps {
			return
		}
		of := rules.Index.Policy(uint32(i))
		switch {
		case needed != (step > 0), of.Mode == policy.ModeLocal, of.Enforced == policy.EnforcedOff:
			continue
		case !needed:
			step = byte(policy.StepLeases)
		}
		l.section.Steps = append(l.section.Steps, wire.PolicyStep{Policy: uint32(i), Step: policy.Step(step)})
	}
}

// EndReport implements report.Part. A section that the control plane did not take is sent again.
func (l *Ladder) EndReport(end report.End, now quota.Instant) {
	if end == report.Taken {
		l.acked, l.again = l.sent, now+quota.Instant(repeat)
	}
}
