package limiter

import (
	"slices"

	"github.com/weir-proxy/weir/filter/internal/inflight"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// A trial is what a policy in shadow, or a candidate, would make of a request. It is decided by the
// code that decides requests, on buckets of its own, and waits for the control plane and for places
// in flight in the background. The request that it is about goes on meanwhile. Where a request
// would go by on_failure, nothing is known of a trial.
type trial struct {
	Request
	number uint32
	// of is the request that it is about, nil if the trial need not know it, or if it is over.
	of *Request
	// lost: no answer came for one of its hits.
	lost bool
	// begun is when it began. ended is when its request was over, if that was before the trial was.
	begun, ended quota.Instant
	// waited is how long it waited for its places, which it holds for as long as the request lasts.
	waited quota.Span
	// identity is who made the request, if the policy has penalties.
	identity wire.Identity
	// next is the following one of those to spare.
	next *trial
}

// trials are those of one VM.
type trials struct {
	// waiting are those that wait, by their numbers; last is the last number.
	waiting map[uint32]*trial
	last    uint32
	// spare are free for further ones.
	spare *trial
	// ending are places that trials hold longer than their requests lasted, since they got them
	// later. next is not later than when the first is to be freed.
	ending []ending
	next   quota.Instant
}

// ending is a place in flight that is to be freed.
type ending struct {
	place inflight.Place
	at    quota.Instant
}

// id is the number of a trial, 0 of none.
func (t *trial) id() uint32 {
	if t == nil {
		return 0
	}
	return t.number
}

// newTrial makes the trial of limits of one policy.
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
		l.open(&t.Request, &run[i])
	}
	return t
}

// look has a trial look at the buckets that its request would have spent from beside those of its
// policy, as far as they were not asked about it.
func (l *Limiter) look(t *trial, req *Request) {
	for i := range req.Hits {
		h := &req.Hits[i]
		if h.Policy == t.Hits[0].Policy || h.view != unknown {
			continue
		}
		m := h.Hit
		m.Cost = 0
		seen := l.open(&t.Request, &m)
		if seen.least = h.Cost; seen.limit.InFlight { // To look would be to take a place.
			t.lose(seen)
		}
	}
}

// suffices refuses a hit that a trial only looks at if its bucket holds too little.
func (h *Hit) suffices() ruling {
	if h.Remaining < h.least {
		return h.refuse(policy.ReasonQuota, quota.Second)
	}
	return passes
}

// lose notes that nothing is known of a hit. The others are still decided: one of them may refuse.
func (t *trial) lose(h *Hit) {
	t.lost, h.least = true, 0
	h.decideBy(fallbacks[policy.StepAllow])
}

// await has a trial go on when it gets what it waits for. Its request notes it if it holds places
// while the request lasts, or if it may begin a penalty; what it will have reserved is settled with
// the request.
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
			r.end(h)
			t.reserved, req.reserved = append(t.reserved, r), append(req.reserved, r)
		}
	}
	if t.of = nil; linked {
		t.of, req.trials = req, append(req.trials, t)
	}
}

// SettleTrials goes on with the trials that have got what they waited for, or will not get it.
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

// passTrial ends a trial that all its buckets have let through.
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
			t.use(h, h.Remaining)
		}
	}
	l.endTrial(t, allows, now)
	return Allowed
}

// grantTrial takes in what the control plane has granted of a reservation, whose cost may be known
// already.
func (l *Limiter) grantTrial(r *reservation, h *Hit, now quota.Instant) {
	l.Stats.Settled.Reserved += uint64(h.Cost)
	r.central.Need, r.central.Name = h.ticket.Need, h.ticket.Name
	if r.settled {
		l.settle(nil, r, r.actual, now)
	}
}

// failTrial ends a trial that the i-th hit refuses.
func (l *Limiter) failTrial(t *trial, i int, reason policy.Reason, now quota.Instant) Status {
	h, seen := &t.Hits[i], refuses
	switch {
	case h.least > 0: // Another policy would have refused the request.
		seen = uncounted
	case reason == policy.ReasonTooManyWaiting, reason == policy.ReasonContended, reason == policy.ReasonFailure:
		seen = unknown
	case reason == policy.ReasonQuota:
		t.use(h, 0)
	}
	if seen == refuses && answer.Kinds[decide.Blame(reason, h.seat.Elsewhere || h.doubt)].Counts {
		l.offend(&t.Request, h.Policy, true, now)
	}
	l.endTrial(t, seen, now)
	return Refused
}

// endTrial counts a trial. What one that passes has taken it holds for as long as its request
// lasts; what another has taken goes back.
func (l *Limiter) endTrial(t *trial, seen view, now quota.Instant) {
	if seen != uncounted {
		l.count(&t.Request, &t.Hits[0].Hit, seen)
	}
	waited := t.paused
	l.unpause(&t.Request)
	delete(l.trials.waiting, t.number)
	if seen != allows {
		l.giveBack(&t.Request, now)
		l.leaveGuards(&t.Request, now)
		l.vacate(&t.Request, 0, now)
		if !waited {
			l.refund(&t.Request, now)
		}
	}
	switch {
	case !waited:
		t.of.adopt(t)
	case t.of != nil: // endTrials has it end.
		t.waited = quota.Span(now - t.begun)
		return
	default:
		l.freeLater(t, now+t.ended-t.begun)
	}
	l.trials.recycle(t)
}

// recycle has a trial serve as another one.
func (all *trials) recycle(t *trial) {
	t.of, t.next, all.spare = nil, all.spare, t
}

// adopt has a request hold what its trial has taken.
func (req *Request) adopt(t *trial) {
	req.places = append(req.places, t.places...)
	req.entries = append(req.entries, t.entries...)
	for _, r := range t.reserved {
		r.cost += len(req.Costs)
	}
	req.reserved, req.Costs = append(req.reserved, t.reserved...), append(req.Costs, t.Costs...)
}

// endTrials notes that a request is over for its trials. Those that got their places later than it
// went on hold them for longer by that.
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

// freeLater frees the places of a trial at an instant.
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

// free frees the places whose time has come.
func (l *Limiter) free(now quota.Instant) {
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

// Names reports whether a trial of the request may begin a penalty, so that NameTrials is to be
// called.
func (req *Request) Names() bool {
	for _, t := range req.trials {
		if len(t.subjects) > 0 {
			return true
		}
	}
	return false
}

// NameTrials says to the trials of a request who made it.
func (req *Request) NameTrials(id *wire.Identity) {
	for _, t := range req.trials {
		t.identity = id.Clone()
	}
}
