package policy

import (
	"strconv"

	"github.com/weir-proxy/weir/shared/quota"
)

// draft is what is being read: one policy of the set, and one limit of it. There are thousands, so
// the readers of their fields are made once for all of them, and find the current one in the draft.
type draft struct {
	set                          *Set
	policy                       Policy
	limited, byTier, partitioned bool
	limit                        Limit
	burst                        int64
	figures                      Figures
	good                         bool
	maxHold                      quota.Span
	// inClass: the match that is read is that of a class; untrusted: it goes by a header that it
	// does not call trusted.
	inClass, untrusted       bool
	fields, ofMatch, ofLimit []field
}

func (r *reader) policies(path string, n Node, set *Set) {
	if n.Kind != List {
		r.wrongKind(path, n, "a list")
		return
	}
	if n.size() > MaxPolicies {
		r.problem(path, "has "+strconv.Itoa(n.size())+" policies; at most "+strconv.Itoa(MaxPolicies)+" are allowed")
		return
	}
	if r.each == nil && n.size() > 0 {
		set.Policies = make([]Policy, 0, n.size())
	}
	taken, shown, limits := newRegister(n.size()), newRegister(n.size()), 0
	n.each(func(i int, item Node) {
		p := r.nth(path, i, item, set)
		if earlier, is := taken.add(p.Name); is {
			r.problem(r.index(path, i)+".name", "is taken by policies["+strconv.Itoa(earlier)+"]: names must be unique")
		} else if name, is := shown.show(p); is {
			r.problem(r.index(path, i)+".name", "has RateLimit name two limits "+name+": take another name")
		}
		r.needsOf(i, p)
		r.widely(r.index(path, i), p)
		limits += len(p.Limits) + len(p.Candidate)
		if r.each == nil {
			set.Policies = append(set.Policies, *p)
		} else if len(r.problems) == 0 {
			r.each(p)
		}
	})
	r.present(path, limits <= MaxSetLimits, "have "+strconv.Itoa(limits)+" limits, of all tiers together; at most "+
		strconv.Itoa(MaxSetLimits)+" are allowed")
}

// nth reads a policy of the list, with paths only if it has problems.
func (r *reader) nth(path string, i int, n Node, set *Set) *Policy {
	before := len(r.problems)
	r.quiet = true
	p := r.policy("", n, set)
	r.quiet = false
	if len(r.problems) > before {
		r.problems = r.problems[:before]
		p = r.policy(r.index(path, i), n, set)
	}
	return p
}

func (r *reader) policy(path string, n Node, set *Set) *Policy {
	d := &r.draft
	d.set, d.limited, d.byTier, d.partitioned = set, false, false, false
	p := &d.policy
	*p = Policy{Cost: Cost{Fixed: 1}, OnFailure: DefaultOnFailure, Enforced: EnforcedAll}
	if d.fields == nil {
		d.fields = r.policyFields()
	}
	r.counting(path, n, &p.Counting) // first, because the limits need it
	r.hold(path, n)
	r.object(path, n, d.fields...)
	if n.Kind == Map {
		r.required(path, n, "name", "")
		r.present(path+".limit", d.limited || d.byTier || contains(n.Keys, "adaptive"),
			"is missing: write limit: {quota: 100, window: 1m}")
		r.present(path+".limits", !d.limited || !d.byTier, "is given beside limit: write one of the two")
		r.present(path+".partition", d.partitioned, "is missing: say whose bucket it is, [] for one bucket for all")
	}
	p.numberFigures()
	r.ofCalls(path, p)
	r.field(path, n, "reserve", func(path string, n Node) { r.reserve(path, n, p, set) })
	r.adaptive(path, n, p)
	if p.Adaptive.Percentile == 0 {
		r.fits(path, p)
		r.inFlightFits(path, n, p)
	}
	r.penaltyFits(path, p)
	r.commitFits(path, p)
	p.Renew()
	return p
}

// policyFields are the fields of the policy that is being read.
func (r *reader) policyFields() []field {
	d := &r.draft
	done := func(string, Node) {}
	part := func(path string, n Node) { r.part(path, n, &d.policy.Partition) }
	candidate := func(path string, n Node) { d.policy.Candidate = r.limits(path, n, d.policy.Counting) }
	return []field{
		{"name", func(path string, n Node) { d.policy.Name = r.policyName(path, n) }},
		{"match", r.match},
		{"partition", func(path string, n Node) {
			d.partitioned = true
			r.list(path, n, part)
		}},
		{"if_absent", func(path string, n Node) {
			r.enum(path, n, (*uint8)(&d.policy.IfAbsent), ifAbsents)
		}},
		{"limit", func(path string, n Node) {
			d.limited = true
			d.policy.Limits = r.limits(path, n, d.policy.Counting)
		}},
		{"limits", func(path string, n Node) { d.byTier = true; r.tierLimits(path, n, &d.policy, d.set) }},
		{"candidate", func(path string, n Node) {
			r.object(path, n, field{"limit", candidate})
			r.required(path, n, "limit", ": write {limit: {quota: 80, window: 1m}}")
		}},
		{"cost", func(path string, n Node) { r.cost(path, n, &d.policy.Cost) }},
		{"mode", func(path string, n Node) {
			r.enum(path, n, (*uint8)(&d.policy.Mode), modes)
		}},
		{"on_failure", func(path string, n Node) { r.onFailure(path, n, &d.policy.OnFailure) }},
		{"enforcement", func(path string, n Node) { r.enforcement(path, n, &d.policy.Enforced) }},
		{"algorithm", done}, {"subwindows", done}, {"align", done}, {"max_wait", done},
		{"max_hold", done}, {"reserve", done},
		{"adaptive", done}, {"shed_by", done},
		{"response", func(path string, n Node) { r.response(path, n, &d.policy.Response, AnswerCount) }},
		{"penalty", func(path string, n Node) { d.policy.Penalty = r.penaltyOf(path, n) }},
	}
}

// fits refuses limits that no request could pass, and combinations that a mode cannot honour.
func (r *reader) fits(path string, p *Policy) {
	for _, l := range p.Limits {
		if burst, fits := p.costFits(l); !fits {
			r.problem(path+".cost", "is above the burst of "+burst+": every request would be refused")
			break
		}
	}
	algorithm := p.Counting.Algorithm
	switch {
	case p.Mode == ModeLeased && algorithm.Estimates():
		r.problem(path+".mode", "cannot be leased with "+algorithm.String()+": its estimate goes by when requests "+
			"came, which is not known of leased tokens; use mode strict or local, or algorithm: sliding_window")
	case p.Mode == ModeLeased && algorithm.Queues():
		r.problem(path+".mode", "cannot be leased with "+algorithm.String()+
			": a queue needs one place that gives out the turns; use mode strict or local")
	case p.Mode == ModeOptimistic && !algorithm.PaysBack():
		r.problem(path+".mode", "cannot be optimistic with "+algorithm.String()+
			": what was used too much is paid back out of a rate, "+
			"which a window or a queue does not have; use algorithm: token_bucket, or another mode")
	}
}

// need is a part of a policy's partition that needs the consumer or the tier.
type need struct {
	policy, part int
	kind         PartKind
}

// needsOf notes what the i-th policy needs of the identity, which may follow the policies. It notes
// no more of each kind than problems are listed.
func (r *reader) needsOf(i int, p *Policy) {
	for j, part := range p.Partition {
		if kind := part.Kind; (kind == PartConsumer || kind == PartTier) && r.noted[kind] < maxProblems {
			r.noted[kind]++
			r.needs = append(r.needs, need{i, j, kind})
		}
	}
}
