package failover

import (
	"strconv"

	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// maxNamed bounds the policies in one line of the log.
const maxNamed = 5

// announce counts and logs the steps that the process entered and left with the stored change.
func (l *Ladder) announce(now quota.Instant, t Trouble, was standing, rules *ruleset.Rules) {
	is := l.standingNow()
	since := max(was.since, is.since)
	for step := policy.StepGround; step < policy.Steps; step++ {
		before, after := was.mask>>step&1, is.mask>>step&1
		if before == after {
			continue
		}
		ms := strconv.FormatInt(int64(now-since)/int64(quota.Millisecond), 10)
		text := " after " + ms + " ms without an answer of the control plane"
		if after == 0 {
			l.Left[step]++
			if step != policy.StepGround {
				l.log.Info("weir: failure ladder: left " + step.String() + text)
			}
			continue
		}
		l.Entered[step]++
		text = "weir: failure ladder: entered " + step.String() + text
		if step == policy.StepGround {
			l.log.Info(text)
			continue
		}
		if t.Open {
			text += " (" + t.How.String() + ")"
		}
		l.log.Warn(text + l.policyNames(step, rules))
	}
}

// policyNames lists the first policies on a step.
func (l *Ladder) policyNames(step policy.Step, rules *ruleset.Rules) string {
	list, n := "", 0
	for i, s := range l.record.steps {
		if policy.Step(s) != step || l.record.generation != rules.Generation || i >= rules.Index.Len() {
			continue
		}
		n++
		if n <= maxNamed {
			list += ", " + string(rules.Index.Text(rules.Index.Policy(uint32(i)).Name))
		}
	}
	if n > maxNamed {
		list += " and " + strconv.Itoa(n-maxNamed) + " more"
	}
	if list != "" {
		list = ": " + list[2:]
	}
	return list
}
