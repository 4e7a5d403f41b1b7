package failover

import (
	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/filter/internal/ruleset"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Times of reports: at least apart, and repeated while the control plane does not answer a worker.
const (
	reportTimeout = quota.Second
	apart         = quota.Second
	repeat        = 10 * quota.Second
)

// pauses are the pauses after reports that did not arrive.
var pauses = rpc.Backoff{First: 250 * quota.Millisecond, Longest: quota.Second}

// reporter reports the ladder to the control plane. Only the leader's does.
type reporter struct {
	client rpc.Client
	clock  rpc.Clock

	underWay bool
	// sent are the changes in the report under way, acked those in the last report that arrived.
	sent, acked uint64
	// next is when another report may leave, again when one must leave even without a change.
	next, again quota.Instant
	pause       quota.Span
	random      rpc.Rand
	message     wire.Report
	ladder      wire.Ladder
	body        []byte
}

// report sends a report if one is due. After a failure it sends the newest state as a whole, after
// a pause.
func (l *Ladder) report(now quota.Instant, rules *ruleset.Rules) {
	p, r := &l.reporter, &l.record
	if p.underWay || now < p.next || r.changes == r.reported && (r.since == 0 || now < p.again) {
		return
	}
	p.ladder.Version, p.ladder.Worst = rules.Index.Version(), r.worst()
	p.ladder.Steps = p.ladder.Steps[:0]
	if r.since != 0 && r.generation == rules.Generation && len(r.steps) == rules.Index.Len() {
		p.addSteps(r.steps, rules, true)
		p.addSteps(r.steps, rules, false)
	}
	p.message.Ladder = &p.ladder
	p.body = wire.AppendReport(p.body[:0], &p.message)
	p.underWay, p.sent = true, r.changes
	err := p.client.Call(rpc.ReportPath, p.body, reportTimeout, func(status int, _ []byte) {
		l.answered(p.clock.Now(), rpc.Of(status) == rpc.Answered)
	})
	if err != nil {
		l.answered(now, false)
	}
}

// addSteps adds the policies whose requests have needed the ladder or, without needed, the others
// that can need it.
func (p *reporter) addSteps(steps []byte, rules *ruleset.Rules, needed bool) {
	for i, step := range steps {
		if len(p.ladder.Steps) == wire.MaxSteps {
			return
		}
		of := rules.Index.Policy(uint32(i))
		switch {
		case needed != (step > 0), of.Mode == policy.ModeLocal, of.Enforced == policy.EnforcedOff:
			continue
		case !needed:
			step = byte(policy.StepLeases)
		}
		p.ladder.Steps = append(p.ladder.Steps, wire.PolicyStep{Policy: uint32(i), Step: policy.Step(step)})
	}
}

func (l *Ladder) answered(now quota.Instant, arrived bool) {
	p := &l.reporter
	p.underWay = false
	if arrived {
		l.Reported++
		p.acked, p.pause = p.sent, 0
		p.next, p.again = now+quota.Instant(apart), now+quota.Instant(repeat)
		return
	}
	l.Failed++
	p.pause = pauses.After(p.pause)
	p.next = now + rpc.Spread(p.pause, p.random.Jitter())
}
