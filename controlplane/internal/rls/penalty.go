package rls

import (
	"github.com/weir-proxy/weir/controlplane/internal/penalties"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
)

// caller is who makes a call, as the penalties of one policy know it.
type caller struct {
	penalties.Caller
	number, limit uint32
	key           keyhash.Key
	descriptor    int
	// shadow: a penalty refuses nothing. held: such a penalty is in force.
	shadow, held bool
}

// addCallers adds who makes the call by the policies that have penalties, each once. One of a
// policy that only an Envoy can count for counts if its penalties hold under every policy.
func (d *decision) addCallers(r *match.Result, descriptor int) {
	for i := range r.Subjects {
		s := &r.Subjects[i]
		rule := d.view.index.Penalty(s.Policy)
		if !rule.All && !d.has(s.Policy) || d.knows(s) {
			continue
		}
		c := caller{number: s.Policy, limit: s.Limit, key: s.Key, descriptor: descriptor, shadow: s.Shadow}
		c.Caller = penalties.Caller{
			Key: s.Key, Shadow: s.Shadow,
			Policy: d.view.set.Policies[s.Policy].Name, Rule: rule, Version: d.view.version,
		}
		d.callers = append(d.callers, c)
	}
}

// has reports whether a policy has a part in the decision.
func (d *decision) has(policy uint32) bool {
	for _, hits := range [...][]hit{d.hits, d.shadows} {
		for i := range hits {
			if hits[i].Policy == policy {
				return true
			}
		}
	}
	return false
}

func (d *decision) knows(s *match.Subject) bool {
	for i := range d.callers {
		if d.callers[i].number == s.Policy && d.callers[i].key == s.Key {
			return true
		}
	}
	return false
}

// callerOf is who offends a hit's policy if the hit refuses; nil if the policy has no penalties.
func (d *decision) callerOf(h *hit) *caller {
	for i := range d.callers {
		c := &d.callers[i]
		if c.number == h.Policy && (c.descriptor == h.descriptor || c.Rule.All) {
			return c
		}
	}
	return nil
}

// penalised has the penalties in force refuse the call, and reports whether one does. A call that
// no enforced policy applies to is not refused.
func (d *decision) penalised() (refused bool) {
	limited := len(d.hits) > 0
	for i := range d.callers {
		c := &d.callers[i]
		if !c.shadow && !limited {
			continue
		}
		left := d.service.config.Penalties.Find(&c.Caller, d.identify)
		switch {
		case left == 0:
		case c.shadow:
			c.held = true
		default:
			h := d.hitFor(c)
			h.refuse(forPenalty, byPenalty, left)
			h.reset, refused = left, true
		}
	}
	return refused
}

// hitFor is the hit that stands for a penalty. One of a policy that does not apply to the call, and
// whose penalty holds under every policy, is added.
func (d *decision) hitFor(c *caller) *hit {
	for i := range d.hits {
		if h := &d.hits[i]; h.Policy == c.number && (h.descriptor == c.descriptor || c.Rule.All) {
			return h
		}
	}
	d.hits = append(d.hits, hit{
		Hit: match.Hit{Policy: c.number, Limit: c.limit, Key: c.key}, policy: &d.view.set.Policies[c.number],
		limit: *d.view.index.Limit(c.limit), descriptor: wholeCall, item: none,
	})
	return &d.hits[len(d.hits)-1]
}

// offend counts that a policy has refused the caller because its quota is used up. No other refusal
// counts: they are not the caller's doing.
func (d *decision) offend() {
	if d.refusing == nil || d.refusing.reason != forQuota {
		return
	}
	if c := d.callerOf(d.refusing); c != nil {
		d.service.config.Penalties.Refused(&c.Caller, d.identify())
	}
}
