package rls

import (
	"context"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// caller is the caller of a call in the penalties of one policy.
type caller struct {
	match.Subject
	// by is the same for package penalties.
	by         penalties.Caller
	descriptor int
}

// addCallers adds the caller of the call for each policy with penalties, each once. A policy that
// only an Envoy can count for is included if its penalties hold under every policy.
func (d *decision) addCallers(r *match.Result, descriptor int) {
	for _, s := range r.Subjects {
		rule := d.view.Index.Penalty(s.Policy)
		if !rule.All && !d.hasPolicy(s.Policy) || d.hasCaller(&s) {
			continue
		}
		by := penalties.Caller{
			Key: s.PenaltyKey(), Shadow: s.Shadow,
			Policy: d.view.Set.Policies[s.Policy].Name, Rule: rule, Version: d.view.Version,
		}
		d.callers = append(d.callers, caller{s, by, descriptor})
	}
}

// hasPolicy reports whether a policy has a part in the decision.
func (d *decision) hasPolicy(policy uint32) bool {
	for _, hits := range [...][]hit{d.hits, d.shadows} {
		for i := range hits {
			if hits[i].Policy == policy {
				return true
			}
		}
	}
	return false
}

func (d *decision) hasCaller(s *match.Subject) bool {
	for i := range d.callers {
		if d.callers[i].Policy == s.Policy && d.callers[i].Key == s.Key {
			return true
		}
	}
	return false
}

// isFor reports whether the caller is the caller of a hit.
func (c *caller) isFor(h *hit) bool {
	return c.Policy == h.Policy && (c.descriptor == h.descriptor || c.by.Rule.All)
}

// callerOf returns the caller whose refusal counts if the hit refuses; nil if the policy has no
// penalties.
func (d *decision) callerOf(h *hit) *caller {
	for i := range d.callers {
		if c := &d.callers[i]; c.isFor(h) {
			return c
		}
	}
	return nil
}

// refusePenalised refuses the call if a penalty in force applies, and reports whether it did. A
// call without an enforced policy is not refused.
func (d *decision) refusePenalised() (refused bool) {
	limits := len(d.hits)
	for i := range d.callers {
		c := &d.callers[i]
		if !decide.LooksForPenalty(&c.Subject, limits) {
			continue
		}
		left := d.service.config.Penalties.Find(&c.by, d.callerIdentity)
		switch {
		case left == 0:
		case c.Shadow:
			c.Penalised = true
		default:
			h := d.hitFor(c)
			h.refuse(policy.ReasonPenalty, policy.ByPenalty, left)
			h.reset, refused = left, true
		}
	}
	return refused
}

// lookAround describes the buckets of the limits that apply to a call which a penalty refuses, and
// uses the time when they let the call through if it is later. It takes no tokens, and leaves out
// buckets whose state is not known.
func (d *decision) lookAround(ctx context.Context, hits []hit) {
	// Collect the limits that decide by a bucket. Without them there is nothing to look at.
	d.items = d.items[:0]
	for i := range hits {
		if h := &hits[i]; h.Verdict == match.Limited {
			d.addItem(h)
		}
	}
	if len(d.items) == 0 {
		return
	}
	// Look at the buckets without taking tokens.
	for i := range d.items {
		d.items[i].Waiting = 0
	}
	d.findRefusing()
	one := d.service.lookAtBuckets(ctx, d.callerOf(d.refusing).by.Key, d.view.Version, d.items)
	if one == nil || one.answers == nil {
		return
	}
	// Complete the hits by the answers, and find the longest wait.
	wait, now := quota.Span(0), d.service.config.Now()
	for i := range hits {
		if h := &hits[i]; h.item != none {
			a := one.answers[h.item]
			a.NotBefore, a.FullAfter = one.leftOf(a.NotBefore, now), one.leftOf(a.FullAfter, now)
			wait = max(wait, h.lookAt(&a))
		}
	}
	d.findRefusing()
	if h := d.refusing; h.reason == policy.ReasonPenalty {
		h.retry = max(h.retry, wait)
		h.reset = h.retry
	}
}

// lookAt describes the bucket of a hit, and returns the wait until it has enough tokens. A hit that
// no wait helps refuses.
func (h *hit) lookAt(a *wire.LeaseAnswer) quota.Span {
	if a.State == wire.ItemUnknown || a.State == wire.ItemUnavailable {
		return 0
	}
	h.describeBucket(a.Level, a.FullAfter)
	switch {
	case a.State == wire.ItemSuspended:
		h.refuse(policy.ReasonSuspended, policy.ByRequest, quota.Never)
	case h.cost == 0:
	case a.NotBefore < quota.Never:
		return a.NotBefore
	default:
		h.refuseBy(quota.Never)
	}
	return 0
}

// hitFor returns the hit that represents a penalty. If the policy of the penalty does not apply to
// the call, and its penalties hold under every policy, it adds a hit.
func (d *decision) hitFor(c *caller) *hit {
	for i := range d.hits {
		if h := &d.hits[i]; c.isFor(h) {
			return h
		}
	}
	d.hits = append(d.hits, hit{
		Hit:    match.Hit{Policy: c.Policy, Limit: c.Limit, Key: c.Key},
		policy: &d.view.Set.Policies[c.Policy], limit: *d.view.Index.Limit(c.Limit), descriptor: wholeCall, item: none,
	})
	return &d.hits[len(d.hits)-1]
}

// countOffences counts the refusal of the call for the penalties of the refusing policy, if the
// caller's own use is the reason. If a penalty begins, the answer has the wait until its end.
func (d *decision) countOffences() {
	if d.refusing == nil || !answer.Kinds[d.refusing.reason].Counts {
		return
	}
	if c := d.callerOf(d.refusing); c != nil {
		left := d.service.config.Penalties.CountRefusal(&c.by, d.callerIdentity())
		if h := d.refusing; !c.Shadow {
			h.retry, h.reset = max(h.retry, left), max(h.reset, left)
		}
	}
}
