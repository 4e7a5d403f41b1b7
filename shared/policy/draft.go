package policy

import (
	"strconv"

	"github.com/weir-proxy/weir/shared/quota"
)

// draft is the part that is being read: one policy of the set, and one limit of it. There are
// thousands of policies, so the readers of their fields are made once for all policies, and find
// the current policy in the draft.
type draft struct {
	set                          *Set
	policy                       Policy
	limited, byTier, partitioned bool
	limit                        Limit
	burst                        int64
	figures                      Figures
	good                         bool
	maxHold                      quota.Span
	// inClass means that the match of a class is being read. untrusted means that it depends on a
	// header that it does not call trusted.
	inClass, untrusted       bool
	fields, ofMatch, ofLimit []field
}

func (r *reader) readPolicies(path string, n Node, set *Set) {
	// Check the list, and make room for its policies.
	if n.Kind != List {
		r.wrongKind(path, n, "a list")
		return
	}
	if n.listSize() > MaxPolicies {
		r.failAt(path, "has "+strconv.Itoa(n.listSize())+" policies; at most "+strconv.Itoa(MaxPolicies)+" are allowed")
		return
	}
	if r.each == nil && n.listSize() > 0 {
		set.Policies = make([]Policy, 0, n.listSize())
	}
	// Read each policy, and check it against the policies before it.
	taken, shown, limits := newRegister(n.listSize()), newRegister(n.listSize()), 0
	n.eachItem(func(i int, item Node) {
		p := r.readPolicyAt(path, i, item, set)
		if earlier, is := taken.addName(p.Name); is {
			r.failAt(r.indexPath(path, i)+".name",
				"is taken by policies["+strconv.Itoa(earlier)+"]: names must be unique")
		} else if name, is := shown.addShown(p); is {
			r.failAt(r.indexPath(path, i)+".name", "has RateLimit name two limits "+name+": take another name")
		}
		r.addNeeds(i, p)
		r.countWide(r.indexPath(path, i), p)
		limits += len(p.Limits) + len(p.Candidate)
		if r.each == nil {
			set.Policies = append(set.Policies, *p)
		} else if len(r.problems) == 0 {
			r.each(p)
		}
	})
	r.mustHold(path, limits <= MaxSetLimits, "have "+strconv.Itoa(limits)+" limits, of all tiers together; at most "+
		strconv.Itoa(MaxSetLimits)+" are allowed")
}

// readPolicyAt reads a policy of the list, with paths only if it has problems.
func (r *reader) readPolicyAt(path string, i int, n Node, set *Set) *Policy {
	before := len(r.problems)
	r.quiet = true
	p := r.readPolicy("", n, set)
	r.quiet = false
	if len(r.problems) > before {
		r.problems = r.problems[:before]
		p = r.readPolicy(r.indexPath(path, i), n, set)
	}
	return p
}

func (r *reader) readPolicy(path string, n Node, set *Set) *Policy {
	d := &r.draft
	d.set, d.limited, d.byTier, d.partitioned = set, false, false, false
	p := &d.policy
	*p = Policy{Cost: Cost{Fixed: 1}, OnFailure: DefaultOnFailure, Enforced: EnforcedAll}
	if d.fields == nil {
		d.fields = r.policyFields()
	}
	r.readCounting(path, n, &p.Counting) // first, because the limits need it
	r.readHold(path, n)
	r.readMap(path, n, d.fields...)
	if n.Kind == Map {
		r.requireField(path, n, "name", "")
		r.mustHold(path+".limit", d.limited || d.byTier || containsText(n.Keys, "adaptive"),
			"is missing: write limit: {quota: 100, window: 1m}")
		r.mustHold(path+".limits", !d.limited || !d.byTier, "is given beside limit: write one of the two")
		r.mustHold(path+".partition", d.partitioned, "is missing: say whose bucket it is, [] for one bucket for all")
	}
	p.numberFigures()
	r.completeForCalls(path, p)
	r.readField(path, n, "reserve", func(path string, n Node) { r.readReserve(path, n, p, set) })
	r.readAdaptive(path, n, p)
	if p.Adaptive.Percentile == 0 {
		r.checkPolicy(path, p)
		r.inFlightFits(path, n, p)
	}
	r.penaltyFits(path, p)
	r.commitFits(path, p)
	p.Renew()
	return p
}

// policyFields are the fields of the policy that is being read.
// The fields that several readers below share.
func (r *reader) policyFields() []field {
	d := &r.draft
	done := func(string, Node) {}
	part := func(path string, n Node) { r.readPart(path, n, &d.policy.Partition) }
	candidate := func(path string, n Node) { d.policy.Candidate = r.readLimits(path, n, d.policy.Counting) }
	// In the order of the documentation. Fields with done are read with other fields.
	return []field{
		{"name", func(path string, n Node) { d.policy.Name = r.readPolicyName(path, n) }},
		{"match", r.readMatch},
		{"partition", func(path string, n Node) {
			d.partitioned = true
			r.readList(path, n, part)
		}},
		{"if_absent", func(path string, n Node) {
			r.readEnum(path, n, (*uint8)(&d.policy.IfAbsent), ifAbsents)
		}},
		{"limit", func(path string, n Node) {
			d.limited = true
			d.policy.Limits = r.readLimits(path, n, d.policy.Counting)
		}},
		{"limits", func(path string, n Node) { d.byTier = true; r.readTierLimits(path, n, &d.policy, d.set) }},
		{"candidate", func(path string, n Node) {
			r.readMap(path, n, field{"limit", candidate})
			r.requireField(path, n, "limit", ": write {limit: {quota: 80, window: 1m}}")
		}},
		{"cost", func(path string, n Node) { r.readCost(path, n, &d.policy.Cost) }},
		{"mode", func(path string, n Node) {
			r.readEnum(path, n, (*uint8)(&d.policy.Mode), modes)
		}},
		{"on_failure", func(path string, n Node) { r.readOnFailure(path, n, &d.policy.OnFailure) }},
		{"enforcement", func(path string, n Node) { r.readEnforcement(path, n, &d.policy.Enforced) }},
		{"algorithm", done}, {"subwindows", done}, {"align", done}, {"max_wait", done},
		{"max_hold", done}, {"reserve", done},
		{"adaptive", done}, {"shed_by", done},
		{"response", func(path string, n Node) { r.readResponse(path, n, &d.policy.Response, AnswerCount) }},
		{"penalty", func(path string, n Node) { d.policy.Penalty = r.readPenalty(path, n) }},
	}
}

// checkPolicy refuses limits that no request could pass, and combinations that a mode cannot
// support.
func (r *reader) checkPolicy(path string, p *Policy) {
	for _, l := range p.Limits {
		if burst, fits := p.costFits(l); !fits {
			r.failAt(path+".cost", "is above the burst of "+burst+": every request would be refused")
			break
		}
	}
	algorithm := p.Counting.Algorithm
	switch {
	case p.Mode == ModeLeased && algorithm.Estimates():
		r.failAt(path+".mode", "cannot be leased with "+algorithm.String()+": its estimate needs the times of "+
			"requests, which leased tokens do not have; use mode strict or local, or algorithm: sliding_window")
	case p.Mode == ModeLeased && algorithm.Queues():
		r.failAt(path+".mode", "cannot be leased with "+algorithm.String()+
			": a queue needs one place that gives out the turns; use mode strict or local")
	case p.Mode == ModeOptimistic && !algorithm.PaysBack():
		r.failAt(path+".mode", "cannot be optimistic with "+algorithm.String()+
			": excess use is paid back at a rate, "+
			"which a window or a queue does not have; use algorithm: token_bucket, or another mode")
	}
}

// need is a part of a policy's partition that needs the consumer or the tier.
type need struct {
	policy, part int
	kind         PartKind
}

// addNeeds records the parts of the identity that the i-th policy needs, because the identity may
// follow the policies. It records at most as many of each kind as problems are listed.
func (r *reader) addNeeds(i int, p *Policy) {
	for j, part := range p.Partition {
		if kind := part.Kind; (kind == PartConsumer || kind == PartTier) && r.noted[kind] < maxProblems {
			r.noted[kind]++
			r.needs = append(r.needs, need{i, j, kind})
		}
	}
}
