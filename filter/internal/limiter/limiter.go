// Package limiter turns the hits of a request into one decision: look at every bucket, ask the centre for what is missing,
// then charge, so that a refused request is charged nowhere.
package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Stats counts decisions, for the filter's metrics.
type Stats struct {
	Banned, Exempt, Unlimited, Allowed, Refused      uint64
	ShadowAllowed, ShadowRefused, ShadowUndetermined uint64
	FailureShare, FailureAllowed, FailureRefused     uint64
	Contended, ChargedInVain, Waited                 uint64
}

// Limiter decides for one VM.
type Limiter struct {
	Stats Stats

	store *bucketstore.Store
	desk  *leasing.Desk // nil without a control plane: every policy is local then
	local localTake
	spend leasing.Spend
}

// New makes a limiter. Without a desk every policy is decided by this node's own buckets.
func New(store *bucketstore.Store, desk *leasing.Desk) *Limiter {
	return &Limiter{store: store, desk: desk}
}

// Begin decides a new request, or pauses it.
func (l *Limiter) Begin(req *Request, rules *Rules, a *match.Attributes, now quota.Instant) Status {
	req.rules, req.held, req.deadline = rules, false, 0
	req.Hits, req.shadows = req.Hits[:0], req.shadows[:0]
	switch rules.Index.Standing(a) {
	case match.Banned:
		l.Stats.Banned++
		return Banned
	case match.Exempt:
		l.Stats.Exempt++
		return Unlimited
	}
	req.matched = rules.Index.Match(a, req.matched[:0])
	for _, m := range req.matched {
		if m.Shadow {
			req.shadows = append(req.shadows, m)
		} else {
			req.Hits = append(req.Hits, Hit{Hit: m, by: l.decidedBy(req.policyOf(m))})
		}
	}
	if len(req.Hits) == 0 {
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
	if p.Mode == policy.ModeLocal || l.desk == nil {
		return byBucket
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
			h.settled = true
			l.describe(req, h, h.ticket.Level, h.ticket.FullAt, now)
		case h.ticket.Outcome == leasing.Refused:
			l.describe(req, h, 0, h.ticket.FullAt, now)
			h.Retry = max(quota.Span(h.ticket.Until-now), 1)
			refusing = later(req, refusing, i)
		default:
			l.climb(req, i, now, l.desk.FailingSince(now))
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
				if h := &req.Hits[i]; i == 0 || req.Hits[i-1].Policy != h.Policy {
					req.rules.Tally.add(h.Policy, CountAllowed)
				}
			}
			l.watch(req, now)
			l.finish(req)
			return Allowed
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
		if ok {
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

// ask queues a ticket for every hit whose tokens are missing. It is done if the request now waits, or cannot. Where it is doubtful
// that one of several is granted, the others are asked for only after it was, or its refusal would cost them a token.
func (l *Limiter) ask(req *Request, now quota.Instant) (status Status, done bool) {
	waits, doubtful := false, false
	for i := range req.Hits {
		h := &req.Hits[i]
		doubtful = doubtful || h.by == byTicket && !h.settled && h.doubtful
	}
	for i := range req.Hits {
		h := &req.Hits[i]
		if h.by != byTicket || h.settled || doubtful && !h.doubtful {
			continue
		}
		waits, h.asked = true, true
		h.ticket = leasing.Ticket{Stream: req.Stream, Need: l.need(req, h), Deadline: req.deadline}
		if !l.desk.Join(now, &h.ticket) {
			l.desk.Cancel(req.Stream)
			return l.refuse(req, i, TooManyWaiting, now), true
		}
		req.deadline = h.ticket.Deadline
		l.keep(req, h, now)
	}
	if !waits {
		return Allowed, false
	}
	if !req.held {
		req.held = true
		req.rules.Held++
		l.Stats.Waited++
	}
	l.desk.Flush(now)
	return Paused, true
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
	if h.by == byCredit {
		return l.takeCredit(req, i, now, commit)
	}
	kind, params := bucketstore.Local, req.limitOf(h.Hit).Params
	if h.by == byShare {
		kind, params = bucketstore.Share, lease.Share(params, l.desk.Nodes())
		if h.Cost > params.Burst && h.Cost <= req.limitOf(h.Hit).Params.Burst {
			h.Retry = quota.Second
			return false, Failure
		}
	}
	l.local = localTake{params: params, generation: req.rules.Generation, now: now, cost: h.Cost, commit: commit}
	if err := l.store.Update(kind, h.Key, now, &l.local); err != nil {
		return l.contended(h, p)
	}
	h.Remaining, h.Reset = l.local.remaining, l.local.reset
	h.Retry = l.local.result.RetryAfter
	h.settled = commit && l.local.result.Allowed
	return l.local.result.Allowed, quotaOrTooDear(h)
}

// quotaOrTooDear is the reason of a refusal by a bucket.
func quotaOrTooDear(h *Hit) Reason {
	if h.Retry == quota.Never {
		return TooDear
	}
	return Quota
}

func (l *Limiter) takeCredit(req *Request, i int, now quota.Instant, commit bool) (bool, Reason) {
	h := &req.Hits[i]
	need := l.need(req, h)
	tooDear := h.Cost > need.Params.Burst
	need.Strict = need.Strict || tooDear
	l.spend = leasing.Spend{Need: need, Now: now, Commit: commit && h.Cost > 0}
	if err := l.store.Update(bucketstore.Leased, h.Key, now, &l.spend); err != nil {
		return l.contended(h, req.policyOf(h.Hit))
	}
	if tooDear {
		l.describe(req, h, l.spend.Level, l.spend.FullAt, now)
		h.Retry = quota.Never
		return false, TooDear
	}
	h.keep = l.spend.Keep
	switch l.spend.State {
	case leasing.Ready:
		l.describe(req, h, l.spend.Level, l.spend.FullAt, now)
		h.settled = commit
		l.keep(req, h, now)
	case leasing.Exhausted:
		l.describe(req, h, 0, l.spend.FullAt, now)
		h.Retry = quota.Span(l.spend.Until - now)
		return false, Quota
	default:
		if since, away := l.desk.Away(now); away {
			l.climb(req, i, now, since)
			return l.take(req, i, now, commit)
		}
		h.by, h.doubtful = byTicket, l.spend.Doubtful
	}
	return true, Quota
}

// keep notes the tokens that a hit wants beyond its own.
func (l *Limiter) keep(req *Request, h *Hit, now quota.Instant) {
	if h.keep > 0 {
		l.desk.Keep(now, l.need(req, h), h.keep)
		h.keep = 0
	}
}

func (l *Limiter) need(req *Request, h *Hit) leasing.Need {
	p := req.policyOf(h.Hit)
	return leasing.Need{
		Bucket: h.Key, Limit: h.Limit, Version: req.rules.Index.Version(),
		Params: req.limitOf(h.Hit).Params, Cost: h.Cost, Strict: p.Mode == policy.ModeStrict,
	}
}

// describe fills in what clients see of a central bucket, by what the centre said of it.
func (l *Limiter) describe(req *Request, h *Hit, level int64, fullAt, now quota.Instant) {
	p := req.limitOf(h.Hit).Params
	h.Remaining = min(max(level, 0), p.Burst)
	h.Reset = quota.Span(max(fullAt-now, 0))
}

// describeRefusal sets when the bucket will be full, where no bucket has said so: when the wait is over it holds the cost and
// lacks the rest.
func (l *Limiter) describeRefusal(req *Request, h *Hit) {
	p := req.limitOf(h.Hit).Params
	if h.Retry != quota.Never && (h.by == byShare || h.by != byBucket && h.Reset == 0) {
		h.Reset = h.Retry + p.ResetAfter(quota.State{Debt: p.UnitsFor(p.Burst - h.Cost)}, 0)
	}
}

// contended decides a hit whose bucket changed at every attempt, by the policy's failure setting.
func (l *Limiter) contended(h *Hit, p *match.Policy) (bool, Reason) {
	l.Stats.Contended++
	if p.OnFailure.Then == policy.ThenAllow {
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
		if other.by == byTicket && other.ticket.Outcome == leasing.Granted {
			l.desk.GiveBack(now, &other.ticket)
		} else if other.settled && other.by <= byCredit && other.Cost > 0 {
			l.Stats.ChargedInVain++
		}
	}
	if reason == Failure {
		l.Stats.FailureRefused++
	}
	l.Stats.Refused++
	req.rules.Tally.add(h.Policy, CountRefused)
	l.finish(req)
	return Refused
}

// Cancel ends a paused request whose client went away.
func (l *Limiter) Cancel(req *Request) {
	if req.held {
		l.desk.Cancel(req.Stream)
		l.finish(req)
	}
}

func (l *Limiter) finish(req *Request) {
	if req.held {
		req.held = false
		req.rules.Held--
	}
}
