package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// ask queues a ticket for the hit whose tokens are missing; several go to the centre as one, which grants all or none of them. It
// is done if the request now waits, or cannot.
func (l *Limiter) ask(req *Request, now quota.Instant) (status Status, done bool) {
	if !chooseAsked(req) {
		return Allowed, false
	}
	l.together = l.together[:0]
	for i := range req.Hits {
		h := &req.Hits[i]
		if !h.asked {
			continue
		}
		if l.queued(req, h) && l.delays.Full() {
			l.Stats.Turned++
			return l.refuse(req, i, TooManyWaiting, now), true
		}
		h.ticket = leasing.Ticket{Stream: req.Stream, Need: l.need(req, h), Deadline: req.deadline}
		l.together = append(l.together, &h.ticket)
	}
	joined := false
	if len(l.together) == 1 {
		joined = l.desk.Join(now, l.together[0])
	} else {
		joined = l.desk.JoinAll(now, l.together)
	}
	if !joined {
		l.Stats.Turned++
		l.withoutAsking(req, now)
		return Allowed, false
	}
	for i := range req.Hits {
		if h := &req.Hits[i]; h.asked {
			req.deadline = h.ticket.Deadline
			l.keep(req, h)
		}
	}
	if !req.held {
		req.held = true
		req.rules.Held++
		l.Stats.Waited++
	}
	l.desk.Flush(now)
	return Paused, true
}

// chooseAsked marks the hits to ask about now, and reports false if there are none: all together,
// but those of optimistic buckets last and one by one. What is granted of these serves no other
// request, so it is asked for when nothing else can refuse.
func chooseAsked(req *Request) bool {
	var optimistic *Hit
	some := false
	for i := range req.Hits {
		h := &req.Hits[i]
		h.asked = false
		switch {
		case h.by != byTicket || h.settled:
		case req.policyOf(h.Hit).Mode == policy.ModeOptimistic:
			optimistic = h
		default:
			h.asked, some = true, true
		}
	}
	if !some && optimistic != nil {
		optimistic.asked, some = true, true
	}
	return some
}

func (l *Limiter) takeCredit(req *Request, i int, now quota.Instant, commit bool) (bool, Reason) {
	h := &req.Hits[i]
	need := l.need(req, h)
	tooDear := h.Cost > need.Params.Burst
	need.Strict = need.Strict || tooDear
	l.spend = leasing.Spend{Need: need, Now: now, Commit: commit && h.Cost > 0}
	// A refusal that cannot be stored is one all the same.
	if err := l.store.Update(bucketstore.Leased, h.Key, now, &l.spend); err != nil && l.spend.State != leasing.Exhausted {
		return l.contended(h, req.policyOf(h.Hit))
	}
	if tooDear {
		l.describe(req, h, l.spend.Level, l.spend.FullAt, now)
		h.Retry = quota.Never
		return false, TooDear
	}
	h.keep, h.keepBy = l.spend.Keep, l.spend.KeepBy
	switch l.spend.State {
	case leasing.Ready:
		l.describe(req, h, l.spend.Level, l.spend.FullAt, now)
		h.settled = commit
		l.keep(req, h)
	case leasing.Exhausted:
		l.describe(req, h, 0, l.spend.FullAt, now)
		h.Retry = quota.Span(l.spend.Until - now)
		return false, Quota
	default:
		h.holds, h.heard = l.spend.Holds, l.spend.Known
		if since, away := l.desk.Away(); away {
			l.climb(req, i, now, since)
			return l.take(req, i, now, commit)
		}
		h.by = byTicket
	}
	return true, Quota
}

// takeTab decides a hit of an optimistic bucket: this node alone, within its slack, and reported afterwards.
func (l *Limiter) takeTab(req *Request, i int, now quota.Instant, commit bool) (bool, Reason) {
	h := &req.Hits[i]
	use, err := l.useTab(req, &h.Hit, now, commit)
	if err != nil {
		return l.contended(h, req.policyOf(h.Hit))
	}
	h.Known, h.Remaining, h.Reset, h.Retry = true, use.Remaining, use.Reset, use.Result.RetryAfter
	if h.settled = commit && use.Result.Allowed; use.Result.Allowed {
		return true, Quota
	}
	h.holds, h.heard = use.Remaining, use.Heard
	if since, away := l.desk.Away(); away && h.Retry != quota.Never {
		l.climb(req, i, now, since)
		return l.take(req, i, now, commit)
	}
	if use.Asks {
		h.by = byTicket
		return true, Quota
	}
	return false, emptyOrTooDear(h)
}

// useTab looks at what this node has used of an optimistic bucket, and with commit uses more of it.
func (l *Limiter) useTab(req *Request, m *match.Hit, now quota.Instant, commit bool) (*leasing.Use, error) {
	u := &l.use
	*u = leasing.Use{Need: l.need(req, &Hit{Hit: *m}), Now: now, Commit: commit}
	u.Slack = l.desk.Slack(u.Params)
	err := l.store.Update(bucketstore.Optimistic, m.Key, now, u)
	if err == nil && commit && u.Result.Allowed && u.Cost > 0 {
		l.desk.Report(now, u.Need, u.Due)
	}
	return u, err
}

// keep notes the tokens that a hit wants beyond its own.
func (l *Limiter) keep(req *Request, h *Hit) {
	if h.keep > 0 {
		l.desk.Keep(l.need(req, h), h.keep, h.keepBy)
		h.keep = 0
	}
}

func (l *Limiter) need(req *Request, h *Hit) leasing.Need {
	p, limit := req.policyOf(h.Hit), req.LimitOf(&h.Hit)
	n := leasing.Need{
		Bucket: h.Key, Limit: h.Limit, Version: req.rules.Index.Version(), Params: limit.Params, Cost: h.Cost,
		Strict: p.Mode != policy.ModeLeased, Optimistic: p.Mode == policy.ModeOptimistic,
		Algorithm: limit.Algorithm,
	}
	if p.ByConsumer {
		if n.Turn = req.turn; h.Knows != match.Told {
			n.Consumer, n.Place = req.consumer, h.Place+1
		}
	}
	return n
}
