// Package limiter turns the hits of a request into one decision: look at every bucket, ask the centre for what is missing,
// then charge, so that a refused request is charged nowhere.
package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/delay"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/filter/internal/ruleset"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Stats counts decisions, for the filter's metrics.
type Stats struct {
	Banned, Exempt, Unlimited, Allowed, Refused uint64
	// Bypassed are requests that a policy would apply to and none does, since operators have switched them off.
	Bypassed                                         uint64
	ShadowAllowed, ShadowRefused, ShadowUndetermined uint64
	// Of candidates: draft limits beside the enforced ones.
	CandidateAllowed, CandidateRefused, CandidateUndetermined uint64
	// Turned are requests of leaky buckets that too many wait before, Gone those whose client went away before their decision.
	Contended, ChargedInVain, Waited, Delayed, Turned, Gone uint64
	// Decided counts what decided: each hit of an allowed request, of a refused one the hit that refuses.
	Decided [Sources]uint64
}

// Limiter decides for one VM.
type Limiter struct {
	Stats Stats
	// Ahead is by how much Unix time is ahead of the instants that requests come with. Windows of the calendar begin by it.
	Ahead quota.Span

	store    *bucketstore.Store
	desk     *leasing.Desk // nil without a control plane: every policy is local then
	delays   delay.Queue
	local    localTake
	own      ownTake
	window   windowTake
	vacate   vacate
	full     full
	spend    leasing.Spend
	use      leasing.Use
	together []*leasing.Ticket
}

// New makes a limiter. Without a desk every policy is decided by this node's own buckets.
func New(store *bucketstore.Store, desk *leasing.Desk) *Limiter {
	return &Limiter{store: store, desk: desk, delays: delay.Queue{Bound: leasing.MaxWaiting}}
}

// Begin decides a new request, or pauses it.
func (l *Limiter) Begin(req *Request, rules *ruleset.Rules, a *match.Attributes, now quota.Instant) Status {
	req.rules, req.held, req.deadline, req.Delay = rules, false, 0, 0
	req.Hits, req.shadows = req.Hits[:0], req.shadows[:0]
	if rules.Index.Off() {
		l.Stats.Bypassed++
		return Bypassed
	}
	standing := rules.Index.Standing(a)
	if standing == match.Open || standing == match.Exempt && rules.Index.Bars() {
		req.matched = rules.Index.Match(a, req.matched[:0])
		if rules.Index.Barred() {
			standing = match.Banned
		}
	}
	switch standing {
	case match.Banned:
		req.Ban = rules.Index.Ban()
		l.Stats.Banned++
		return Banned
	case match.Exempt:
		l.Stats.Exempt++
		return Unlimited
	}
	req.own = append(req.own[:0], rules.Index.Own()...)
	req.consumer, req.turn = rules.Index.Person()
	for _, m := range req.matched {
		if m.Shadow {
			req.shadows = append(req.shadows, m)
		} else {
			req.Hits = append(req.Hits, Hit{Hit: m, by: l.decidedBy(req.policyOf(m)), view: unknown})
		}
	}
	if len(req.Hits) == 0 {
		if rules.Index.Bypassed() {
			l.Stats.Bypassed++
			l.watch(req, now)
			return Bypassed
		}
		l.Stats.Unlimited++
		l.watch(req, now)
		return Unlimited
	}
	for i := range req.Hits {
		switch req.Hits[i].Verdict {
		case match.RefusedAbsent:
			return l.refuse(req, i, Absent, now)
		case match.RefusedCost:
			return l.refuse(req, i, BadCost, now)
		}
	}
	return l.decide(req, now)
}

func (l *Limiter) decidedBy(p *match.Policy) by {
	switch {
	case p.Mode == policy.ModeLocal, l.desk == nil:
		return byBucket
	case p.Mode == policy.ModeOptimistic:
		return byTab
	}
	return byCredit
}

// Resume goes on with a paused request once a ticket has ended. It returns Paused while others are open.
func (l *Limiter) Resume(req *Request, now quota.Instant) Status {
	for i := range req.Hits {
		if h := &req.Hits[i]; h.asked && h.ticket.Outcome == leasing.Waiting {
			return Paused
		}
	}
	refusing := -1
	for i := range req.Hits {
		h := &req.Hits[i]
		if !h.asked {
			continue
		}
		h.asked = false
		switch {
		case h.ticket.Outcome == leasing.Granted && now < h.ticket.Until:
			h.settled, h.view = true, allows
			l.describe(req, h, h.ticket.Level, h.ticket.FullAt, now)
			if l.queued(req, h) {
				h.release = now + quota.Instant(h.ticket.Delay)
			}
		case h.ticket.Outcome == leasing.Spared:
			h.view = allows
			l.describe(req, h, h.ticket.Level, h.ticket.FullAt, now)
		case h.ticket.Outcome == leasing.Refused:
			h.view = refuses
			l.describe(req, h, 0, h.ticket.FullAt, now)
			h.Retry = max(quota.Span(h.ticket.Until-now), 1)
			refusing = later(req, refusing, i)
		default:
			since := l.desk.FailingSince(now)
			if h.ticket.Outcome == leasing.Failed && h.ticket.Until > 0 {
				since = min(since, h.ticket.Until)
			}
			l.climb(req, i, now, since)
		}
	}
	if refusing >= 0 {
		return l.refuse(req, refusing, Quota, now)
	}
	return l.decide(req, now)
}

// maxRounds bounds how often a request may start over because another took what it had seen.
const maxRounds = 3

// decide looks at all open hits, asks the centre for what is missing, and charges. A single hit is charged at first sight.
func (l *Limiter) decide(req *Request, now quota.Instant) Status {
	for range maxRounds {
		if len(req.Hits) > 1 {
			if refusing, reason := l.pass(req, now, false); refusing >= 0 {
				return l.refuse(req, refusing, reason, now)
			}
			if status, done := l.ask(req, now); done {
				return status
			}
		}
		if refusing, reason := l.pass(req, now, true); refusing >= 0 {
			return l.refuse(req, refusing, reason, now)
		}
		if status, done := l.ask(req, now); done {
			return status
		}
		if settled(req) {
			l.Stats.Allowed++
			for i := range req.Hits {
				h := &req.Hits[i]
				l.Stats.Decided[sources[h.by]]++
				if i == 0 || req.Hits[i-1].Policy != h.Policy {
					req.rules.Tally.Add(h.Policy, ruleset.CountAllowed)
				}
			}
			l.watch(req, now)
			l.finish(req)
			return l.hold(req, now)
		}
	}
	return l.refuse(req, 0, Contended, now)
}

// pass looks at, or with commit charges, every hit that is not settled, and returns the one that must wait longest of those
// that refuse; -1 for none.
func (l *Limiter) pass(req *Request, now quota.Instant, commit bool) (refusing int, reason Reason) {
	refusing = -1
	for i := range req.Hits {
		if req.Hits[i].settled || req.Hits[i].by == byTicket {
			continue
		}
		ok, why := l.take(req, i, now, commit)
		h := &req.Hits[i]
		switch {
		case !ok:
			h.view = refuses
		case h.by == byTicket:
			h.view = unknown
			continue
		default:
			h.view = allows
			continue
		}
		if worst := later(req, refusing, i); worst == i {
			refusing, reason = i, why
		}
		if commit {
			return refusing, reason
		}
	}
	return refusing, reason
}

// take decides one hit. It reports whether the hit may pass; one whose tokens must be fetched turns into byTicket and may.
func (l *Limiter) take(req *Request, i int, now quota.Instant, commit bool) (bool, Reason) {
	h := &req.Hits[i]
	p := req.policyOf(h.Hit)
	switch h.by {
	case byAllow:
		h.settled = commit
		return true, Quota
	case byDeny:
		h.Retry = quota.Second
		return false, Failure
	}
	if l.queued(req, h) && l.takeKept(req, h, now, commit) {
		return true, Quota
	}
	switch h.by {
	case byCredit:
		return l.takeCredit(req, i, now, commit)
	case byTab:
		return l.takeTab(req, i, now, commit)
	}
	limit := req.LimitOf(&h.Hit)
	params := limit.Params
	if h.by == byShare {
		params = lease.Share(params, l.desk.Nodes())
		if h.Cost > params.Burst && h.Cost <= limit.Params.Burst {
			h.Retry = quota.Second
			return false, Failure
		}
	}
	var part share
	if h.by == byShare {
		part = h.share(params)
	}
	seen, err := l.takeLocal(req, &h.Hit, part, params, now, commit)
	switch {
	case err != nil:
		return l.contended(h, p)
	case seen.turned:
		h.Retry = quota.Second
		l.Stats.Turned++
		return false, TooManyWaiting
	}
	h.Known, h.Remaining, h.Reset = true, seen.remaining, quota.Span(max(seen.fullAt-now, 0))
	h.Retry = seen.result.RetryAfter
	if h.settled = commit && seen.result.Allowed; h.settled && l.queued(req, h) {
		h.release, h.params, h.after = now+quota.Instant(seen.delay), l.local.used, l.local.after
	}
	return seen.result.Allowed, emptyOrTooDear(h)
}

// emptyOrTooDear is the reason of a refusal by a bucket. That a share is used up says nothing of the limit: there would be more if the
// control plane answered.
func emptyOrTooDear(h *Hit) Reason {
	switch {
	case h.Retry == quota.Never:
		return TooDear
	case h.by == byShare:
		return Failure
	}
	return Quota
}

// describe fills in what clients see of a central bucket, by what the centre said of it.
func (l *Limiter) describe(req *Request, h *Hit, level int64, fullAt, now quota.Instant) {
	p := req.LimitOf(&h.Hit).Params
	h.Known, h.Remaining = true, min(max(level, 0), p.Burst)
	h.Reset = quota.Span(max(fullAt-now, 0))
}

// describeRefusal sets when the bucket will be full, where no bucket has said so: when the wait is over it holds the cost and
// lacks the rest.
func (l *Limiter) describeRefusal(req *Request, h *Hit) {
	limit := req.LimitOf(&h.Hit)
	p := limit.Params
	if limit.Algorithm.Windowed() && h.by != byShare {
		if h.Retry != quota.Never && h.Retry > h.Reset+lease.Deadline { // By less the time of an answer tells them apart.
			h.Reset = h.Retry
		}
		return
	}
	if h.Retry != quota.Never && (h.by == byShare || h.by != byBucket && h.Reset == 0) {
		h.Reset = h.Retry + p.ResetAfter(quota.State{Debt: p.UnitsFor(p.Burst - h.Cost)}, 0)
	}
}

// contended decides a hit whose bucket changed at every attempt, by the policy's failure setting.
func (l *Limiter) contended(h *Hit, p *match.Policy) (bool, Reason) {
	l.Stats.Contended++
	if p.OnFailure.Last().Do == policy.StepAllow {
		h.by = byAllow
		h.settled = true
		return true, Quota
	}
	h.Retry = quota.Second
	return false, Contended
}

// refuse ends a request. Tokens that came for it serve the next one; what else was charged already is lost and counted.
func (l *Limiter) refuse(req *Request, i int, reason Reason, now quota.Instant) Status {
	h := &req.Hits[i]
	req.Refusing, req.Reason = i, reason
	if reason == Absent || reason == BadCost || reason == TooDear {
		h.Retry = quota.Never
	} else {
		h.Retry = max(h.Retry, 1)
	}
	h.Left, h.Remaining = h.Remaining, 0
	l.describeRefusal(req, h)
	for j := range req.Hits {
		other := &req.Hits[j]
		if other.settled && other.release != 0 {
			l.leave(l.placeOf(other), now)
		} else if other.by == byTicket && other.ticket.Outcome == leasing.Granted {
			l.desk.GiveBack(now, &other.ticket)
		} else if other.settled && other.by <= byTab && other.Cost > 0 {
			l.Stats.ChargedInVain++
		}
	}
	req.Source = h.refusedBy(reason)
	l.Stats.Decided[req.Source]++
	l.Stats.Refused++
	req.rules.Tally.Add(h.Policy, ruleset.CountRefused)
	l.watchRefused(req, now)
	l.finish(req)
	return Refused
}

// Cancel ends a paused or delayed request whose client went away.
func (l *Limiter) Cancel(req *Request, now quota.Instant) {
	if req.held {
		l.Stats.Gone++
		l.desk.Cancel(req.Stream)
		l.finish(req)
	} else if freed, ok := l.delays.Leave(req.Stream); ok {
		l.leave(freed, now)
	}
}

func (l *Limiter) finish(req *Request) {
	if req.held {
		req.held = false
		req.rules.Held--
	}
}
