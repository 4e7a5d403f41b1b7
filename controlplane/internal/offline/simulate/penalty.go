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

// offender is what is remembered of a caller by the penalties of a policy.
type offender struct {
	penalty.Record
	refusals penalty.Refusals
}

// penalised is the caller by whose penalty a request is refused, nil if no penalty refuses it. Like
// in the filter one that no enforced policy applies to passes. It notes which penalties in shadow
// would have refused the request.
func (d *decider) penalised(subjects []match.Subject, now quota.Instant) (worst *match.Subject) {
	last := int64(0)
	for i := range subjects {
		s := &subjects[i]
		o := d.offenders[s.PenaltyKey()]
		switch {
		case o == nil || !decide.LooksForPenalty(s, len(d.open)) || !o.InForce(millis(now)):
		case s.Shadow:
			s.Penalised = true
		case o.Until > last:
			worst, last = s, o.Until
		}
	}
	return worst
}

// offend counts that a policy has refused the caller, if that is the caller's own use.
func (d *decider) offend(subjects []match.Subject, number uint32, reason policy.Reason, now quota.Instant) {
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
		if o.refusals.Add(rule, millis(now)) {
			o.Record = rule.Offend(o.Record, millis(now), 0)
		}
		return // Those behind it are others that the request names beside its own.
	}
}

// rememberOffender keeps an offender. If there are too many, another one is forgotten.
func (d *decider) rememberOffender(key keyhash.Key, o *offender) {
	d.forgotten += makeRoom(d.offenders, d.most)
	d.offenders[key] = o
}

// extend makes the penalty of a caller start over, if its rule says so.
func (d *decider) extend(s *match.Subject, now quota.Instant) {
	rule := d.index.Penalty(s.Policy)
	if o := d.offenders[s.PenaltyKey()]; rule.Extend {
		o.Record = rule.Prolong(o.Record, millis(now), 0)
	}
}

// held reports whether a penalty of a policy in shadow would have refused the request.
func held(subjects []match.Subject, policy uint32) bool {
	for _, s := range subjects {
		if s.Policy == policy && s.Penalised {
			return true
		}
	}
	return false
}

func millis(at quota.Instant) int64 { return int64(at) / int64(quota.Millisecond) }

// refuseBy is the verdict on a request that a penalty refuses.
func (d *decider) refuseBy(s *match.Subject, a *match.Attributes, r *record) (v verdict) {
	h := match.Hit{Policy: s.Policy, Key: s.Key}
	for _, one := range d.open {
		if one.Policy == s.Policy {
			h = one
			break
		}
	}
	d.extend(s, r.at)
	return verdict{policy: int(h.Policy), key: h.Key, who: d.who(h, a, r)}
}
