package rls

import (
	"context"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// watchTime is the longest time that the store may take for decisions in shadow.
const watchTime = time.Second

// run has the limits of one policy in shadow, or of its candidate; all of them must allow.
type run struct {
	policy    uint32
	candidate bool
	// from and to are the places of its items.
	from, to int
	seen     Shadow
	// caller is the caller whose refusal counts if the policy would have refused; nil if the policy
	// has no penalties.
	caller *penalties.Caller
	who    wire.Identity
}

// watchShadows decides the policies in shadow and the candidates of a call. Each is charged if it
// would have allowed the call, and counted in any case. No caller waits for it. If atStore calls
// are already decided in shadow, the decision is undetermined.
func (d *decision) watchShadows() {
	if len(d.shadows) == 0 {
		return
	}
	d.items = d.items[:0]
	var runs []run
	for i := range d.shadows {
		h := &d.shadows[i]
		if d.refusing != nil && !d.countsForHit(h) {
			continue
		}
		last := len(runs) - 1
		goesOn := last >= 0 && decide.IsSameTrial(&d.shadows[i-1].Hit, &h.Hit) &&
			d.shadows[i-1].descriptor == h.descriptor
		if !goesOn {
			runs = append(runs, d.runOf(h))
			last++
		} else {
			d.items[len(d.items)-1].Joined = true
		}
		if h.Verdict != match.Limited || h.cost > h.limit.Params.Burst {
			runs[last].seen = ShadowRefused
		}
		d.items = append(d.items, h.leaseItem())
		runs[last].to = len(d.items)
	}
	d.service.watchRuns(d.view, runs, d.items)
}

// runOf returns a new run with the hit. A penalty that would have refused the call is checked
// before its limits.
func (d *decision) runOf(h *hit) run {
	r := run{policy: h.Policy, candidate: h.Candidate, from: len(d.items), seen: ShadowAllowed}
	c := d.callerOf(h)
	switch {
	case c == nil || h.Candidate:
	case c.Penalised:
		r.seen = ShadowRefused
	default:
		r.caller, r.who = &penalties.Caller{}, d.callerIdentity().Clone()
		*r.caller = c.by
	}
	return r
}

// countsForHit reports whether a hit is tried on a refused call.
func (d *decision) countsForHit(h *hit) bool {
	others := false
	for i := range d.hits {
		others = others || d.hits[i].refuses && d.hits[i].Policy != h.Policy
	}
	return decide.TriesRefused(&h.Hit, d.refusing.Policy == h.Policy, others)
}

// watchRuns asks for the items of the runs that can be allowed, and counts all runs. The items are
// the caller's.
func (s *Service) watchRuns(view *calls.View, runs []run, items []wire.LeaseItem) {
	request := wire.LeaseRequest{Node: NodeName, Version: view.Version}
	for i := range runs {
		if r := &runs[i]; r.seen == ShadowAllowed {
			first := len(request.Items)
			request.Items = append(request.Items, items[r.from:r.to]...)
			r.from, r.to = first, len(request.Items)
		}
	}
	if !s.watching.Take() {
		s.countRuns(view, runs, nil)
		return
	}
	s.beside(func() {
		defer s.watching.Leave()
		ctx, cancel := context.WithTimeout(context.Background(), watchTime)
		defer cancel()
		var answers []wire.LeaseAnswer
		if len(request.Items) > 0 {
			reply, err := s.config.Leases.Grant(ctx, request)
			if err == nil && len(reply.Items) == len(request.Items) {
				answers = reply.Items
			}
		}
		s.countRuns(view, runs, answers)
	})
}

// countRuns counts the results of runs; without answers the asked runs are undetermined.
func (s *Service) countRuns(view *calls.View, runs []run, answers []wire.LeaseAnswer) {
	for i := range runs {
		r := &runs[i]
		if r.seen == ShadowAllowed {
			var offends bool
			if r.seen, offends = r.readOutcome(answers); offends && r.caller != nil {
				s.config.Penalties.CountRefusal(r.caller, &r.who)
			}
		}
		name := view.Set.Policies[r.policy].Name
		s.config.Meter.Watched(name, r.candidate, r.seen)
		if r.seen != ShadowAllowed && s.config.Tried != nil {
			s.config.Tried(name, r.candidate, r.seen == ShadowUndetermined)
		}
	}
}

// readOutcome reads the answers to a run, and reports whether a refusal counts for a penalty.
func (r *run) readOutcome(answers []wire.LeaseAnswer) (seen Shadow, offends bool) {
	if len(answers) < r.to {
		return ShadowUndetermined, false
	}
	seen, longest := ShadowAllowed, quota.Span(0)
	for i := r.from; i < r.to; i++ {
		a, reason := &answers[i], policy.ReasonSuspended
		switch wait := quota.Never; a.State {
		case wire.ItemGranted:
			wait, reason = a.NotBefore, decide.Blame(decide.BucketReason(a.NotBefore), a.Doubt)
			fallthrough
		case wire.ItemSuspended:
			if wait > longest {
				seen, longest, offends = ShadowRefused, wait, answer.Kinds[reason].Counts
			}
		default:
			return ShadowUndetermined, false
		}
	}
	return seen, offends
}
