package simulate

import (
	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// offender is the history of a caller for the penalties of a policy.
type offender struct {
	penalty.Record
	refusals penalty.Refusals
}

// findPenalty returns the caller whose penalty refuses a request, or nil if no penalty refuses it.
// As in the filter, a penalty does not refuse requests that no enforced policy matches. It marks
// the callers whose penalty in shadow would have refused the request.
func (d *decider) findPenalty(subjects []match.Subject, now quota.Instant) (worst *match.Subject) {
	last := int64(0)
	for i := range subjects {
		s := &subjects[i]
		o := d.offenders[s.PenaltyKey()]
		switch {
		case o == nil || !decide.LooksForPenalty(s, len(d.open)) || !o.InForce(toMillis(now)):
		case s.Shadow:
			s.Penalised = true
		case o.Until > last:
			worst, last = s, o.Until
		}
	}
	return worst
}

// countOffence counts a refusal by a policy, if the reason is the caller's own use.
func (d *decider) countOffence(subjects []match.Subject, number uint32, reason policy.Reason, now quota.Instant) {
	if !answer.Kinds[reason].Counts {
		return
	}
	for i := range subjects {
		s := &subjects[i]
		if s.Policy != number {
			continue
		}
		key, rule := s.PenaltyKey(), d.index.Penalty(s.Policy)
		o := d.offenders[key]
		if o == nil {
			o = &offender{}
			d.rememberOffender(key, o)
		}
		if o.refusals.Add(rule, toMillis(now)) {
			o.Record = rule.Offend(o.Record, toMillis(now), 0)
		}
		return // The subjects after this one are others that the request names too.
	}
}

// rememberOffender stores an offender. If there are too many, it first drops offenders.
func (d *decider) rememberOffender(key keyhash.Key, o *offender) {
	d.forgotten += makeRoom(d.offenders, d.most)
	d.offenders[key] = o
}

// extendPenalty restarts the penalty of a caller, if the rule says so.
func (d *decider) extendPenalty(s *match.Subject, now quota.Instant) {
	rule := d.index.Penalty(s.Policy)
	if o := d.offenders[s.PenaltyKey()]; rule.Extend {
		o.Record = rule.Prolong(o.Record, toMillis(now), 0)
	}
}

// isHeld reports whether a penalty of a policy in shadow would have refused the request.
func isHeld(subjects []match.Subject, policy uint32) bool {
	for _, s := range subjects {
		if s.Policy == policy && s.Penalised {
			return true
		}
	}
	return false
}

// toMillis returns a time in Unix milliseconds.
func toMillis(at quota.Instant) int64 { return int64(at) / int64(quota.Millisecond) }

// refuseBy returns the verdict on a request that a penalty refuses.
func (d *decider) refuseBy(s *match.Subject, a *match.Attributes, r *record) (v verdict) {
	h := match.Hit{Policy: s.Policy, Key: s.Key}
	for _, one := range d.open {
		if one.Policy == s.Policy {
			h = one
			break
		}
	}
	d.extendPenalty(s, r.at)
	return verdict{policy: int(h.Policy), key: h.Key, who: d.identifyCaller(h, a, r)}
}
