package limiter

import (
	"slices"

	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// A trial decides a request for a policy in shadow, or for a candidate. The code that decides
// requests decides it, on buckets of its own. It waits for the control plane and for places in
// flight in the background, while its request goes on. If a request would use on_failure, the
// outcome of a trial is unknown.
type trial struct {
	Request
	number uint32
	// of is the trial's request; nil if the trial need not know it, or if the request is over.
	of *Request
	// lost: no answer came for some hit.
	lost bool
	// begun is when the trial began. ended is when its request was over, if the trial was not over
	// yet.
	begun, ended quota.Instant
	// waited is the time that it waited for its places. It holds them until its request is over.
	waited quota.Span
	// identity is the caller of the request, if the policy has penalties.
	identity wire.Identity
	// next is the next trial in trials.spare.
	next *trial
}

// trials are the trials of one VM.
type trials struct {
	// waiting are the waiting trials by number; last is the last number.
	waiting map[uint32]*trial
	last    uint32
	// spare are unused trials, linked by next.
	spare *trial
	// ending are places that trials hold after their requests are over, because the trials got them
	// later. next is at or before the instant at which the first is freed.
	ending []ending
	next   quota.Instant
}

// ending is a place in flight that is to be freed.
type ending struct {
	place inflight.Place
	at    quota.Instant
}

// id returns the number of a trial, 0 for nil.
func (t *trial) id() uint32 {
	if t == nil {
		return 0
	}
	return t.number
}

// newTrial makes the trial of one policy's limits.
func (l *Limiter) newTrial(req *Request, run []match.Hit, now quota.Instant) *trial {
	all := &l.trials
	t := all.spare
	if t == nil {
		t = &trial{}
	}
	all.spare = t.next
	if all.last++; all.last == 0 {
		all.last++
	}
	t.reset(req.rules)
	t.trial, t.number, t.lost, t.of = t, all.last, false, req
	t.begun, t.ended, t.waited = now, 0, 0
	t.Stream, t.deadline = req.Stream, now+quota.Instant(leasing.TrialPatience)
	t.own, t.consumer = append(t.own[:0], req.own...), req.consumer
	t.exceptionsRevision, t.rank = req.exceptionsRevision, req.rank
	if s := req.subjectOf(run[0].Policy); s != nil && !run[0].Candidate {
		t.subjects = append(t.subjects, *s)
	}
	for i := range run {
		l.addOpenHit(&t.Request, &run[i])
	}
	return t
}

// addLooks adds hits that only look: at the other policies' buckets that the request would have
// charged and has not asked about.
func (l *Limiter) addLooks(t *trial, req *Request) {
	for i := range req.Hits {
		h := &req.Hits[i]
		if h.Policy == t.Hits[0].Policy || h.view != unknown {
			continue
		}
		m := h.Hit
		m.Cost = 0
		seen := l.addOpenHit(&t.Request, &m)
		if seen.least = h.Cost; seen.limit.InFlight { // To look would be to take a place.
			t.lose(seen)
		}
	}
}

// checkLeast refuses a hit that a trial only looks at if its bucket has too few tokens.
func (h *Hit) checkLeast() ruling {
	if h.Remaining < h.least {
		return h.refuse(policy.ReasonQuota, quota.Second)
	}
	return passes
}

// lose notes that the outcome of a hit is unknown. The other hits are still decided, because
// another hit may refuse.
func (t *trial) lose(h *Hit) {
	t.lost, h.least = true, 0
	h.decideBy(fallbacks[policy.StepAllow])
}

// await lets a trial wait for its tokens or places. The request keeps a link to it if the trial
// holds places while the request lasts, or if it may begin a penalty. The trial's reservations are
// settled with the request's.
func (l *Limiter) await(t *trial, req *Request) {
	if l.trials.waiting == nil {
		l.trials.waiting = make(map[uint32]*trial)
	}
	l.trials.waiting[t.number] = t
	linked := len(t.subjects) > 0
	for i := range t.Hits {
		h := &t.Hits[i]
		linked = linked || h.limit.InFlight
		if h.commit != nil && h.Cost > 0 {
			r := new(reservation)
			r.commit, r.taken.Tokens, r.central = h.commit, h.Cost, new(leasing.Reservation)
			r.cost, r.trailed = none, -1
			r.setUnfinished(h)
			t.reserved, req.reserved = append(t.reserved, r), append(req.reserved, r)
		}
	}
	if t.of = nil; linked {
		t.of, req.trials = req, append(req.trials, t)
	}
}

// SettleTrials continues the trials that have their tokens or places, or will not get them.
func (l *Limiter) SettleTrials(now quota.Instant) {
	for {
		tried := l.flights.TakeTried()
		if len(tried) == 0 && l.leases != nil {
			tried = l.leases.TakeTried()
		}
		if len(tried) == 0 {
			return
		}
		for _, number := range tried {
			if t := l.trials.waiting[number]; t != nil {
				l.Resume(&t.Request, now)
				if l.penalties != nil && l.penalties.Unnamed() {
					l.penalties.Name(&t.identity)
				}
			}
		}
	}
}

// passTrial ends a trial that all its buckets allow.
func (l *Limiter) passTrial(t *trial, now quota.Instant) Status {
	if t.lost {
		l.endTrial(t, unknown, now)
		return Allowed
	}
	reserved := t.reserved
	for i := range t.Hits {
		h := &t.Hits[i]
		if h.ticket.Outcome == leasing.Granted && h.ticket.Name > 0 {
			l.grantTrial(reserved[0], h, now)
			reserved = reserved[1:]
		}
		if h.knowsBucket() {
			t.countLeft(h, h.Remaining)
		}
	}
	l.endTrial(t, allows, now)
	return Allowed
}

// grantTrial takes in the grant of a trial's reservation. The cost may be known already.
func (l *Limiter) grantTrial(r *reservation, h *Hit, now quota.Instant) {
	l.Stats.Settled.Reserved += uint64(h.Cost)
	r.central.Need, r.central.Name = h.ticket.Need, h.ticket.Name
	if r.settled {
		l.settleReservation(nil, r, r.actual, now)
	}
}

// failTrial ends a trial that the ith hit refuses.
func (l *Limiter) failTrial(t *trial, i int, reason policy.Reason, now quota.Instant) Status {
	h, seen := &t.Hits[i], refuses
	switch {
	case h.least > 0: // Another policy would have refused the request.
		seen = uncounted
	case reason == policy.ReasonTooManyWaiting, reason == policy.ReasonContended, reason == policy.ReasonFailure:
		seen = unknown
	case reason == policy.ReasonQuota:
		t.countLeft(h, 0)
	}
	if seen == refuses && answer.Kinds[decide.Blame(reason, h.seat.Elsewhere || h.doubt)].Counts {
		l.countOffence(&t.Request, h.Policy, true, now)
	}
	l.endTrial(t, seen, now)
	return Refused
}

// endTrial counts a trial. A trial that passes holds its tokens and places until its request is
// over; any other trial gives them back.
func (l *Limiter) endTrial(t *trial, seen view, now quota.Instant) {
	if seen != uncounted {
		l.countTrial(&t.Request, &t.Hits[0].Hit, seen)
	}
	waited := t.paused
	l.unpauseRequest(&t.Request)
	delete(l.trials.waiting, t.number)
	if seen != allows {
		l.giveBack(&t.Request, now)
		l.leaveGuards(&t.Request, now)
		l.vacatePlaces(&t.Request, 0, now)
		if !waited {
			l.refundAll(&t.Request, now)
		}
	}
	switch {
	case !waited:
		t.of.adoptTrial(t)
	case t.of != nil: // endTrials ends it later.
		t.waited = quota.Span(now - t.begun)
		return
	default:
		l.freeLater(t, now+t.ended-t.begun)
	}
	l.trials.recycle(t)
}

// recycle keeps a trial for reuse.
func (all *trials) recycle(t *trial) {
	t.of, t.next, all.spare = nil, all.spare, t
}

// adoptTrial makes a request the holder of its trial's places, entries and reservations.
func (req *Request) adoptTrial(t *trial) {
	req.places = append(req.places, t.places...)
	req.entries = append(req.entries, t.entries...)
	for _, r := range t.reserved {
		r.cost += len(req.Costs)
	}
	req.reserved, req.Costs = append(req.reserved, t.reserved...), append(req.Costs, t.Costs...)
}

// endTrials tells the trials of a request that it is over. A trial that got its places after a wait
// holds them longer by that wait.
func (l *Limiter) endTrials(req *Request, now quota.Instant) {
	for _, t := range req.trials {
		t.of, t.ended = nil, now
		if !t.paused {
			l.freeLater(t, now+quota.Instant(t.waited))
			l.trials.recycle(t)
		}
	}
	req.trials = req.trials[:0]
}

// freeLater schedules a trial's places to be freed at an instant.
func (l *Limiter) freeLater(t *trial, at quota.Instant) {
	all := &l.trials
	for _, place := range t.places {
		if len(all.ending) == 0 || at < all.next {
			all.next = at
		}
		all.ending = append(all.ending, ending{place, at})
	}
	t.places = t.places[:0]
}

// freeDue frees the places that are due.
func (l *Limiter) freeDue(now quota.Instant) {
	all := &l.trials
	if len(all.ending) == 0 || now < all.next {
		return
	}
	all.next = quota.Forever
	all.ending = slices.DeleteFunc(all.ending, func(e ending) bool {
		if e.at > now {
			all.next = min(all.next, e.at)
			return false
		}
		l.flights.Release(e.place, now)
		return true
	})
}

// Names reports whether a trial of the request may begin a penalty. Then the caller must call
// NameTrials.
func (req *Request) Names() bool {
	for _, t := range req.trials {
		if len(t.subjects) > 0 {
			return true
		}
	}
	return false
}

// NameTrials gives the identity of a request's caller to its trials.
func (req *Request) NameTrials(id *wire.Identity) {
	for _, t := range req.trials {
		t.identity = id.Clone()
	}
}
