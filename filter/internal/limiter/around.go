package limiter

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// A refusal says when all hits let the request through, and not only the one that refuses it. What
// this node knows of the central buckets of the others may be old: the caller may have used them
// through another node. So the node asks for them first and only looks: a refused request is
// charged nowhere. A caller that goes on though it is refused gets what was asked for just before:
// it is asked at most once in askedAgain for a bucket, askedOften times if other nodes share it.

const (
	// askedAgain is the shortest wait that a refusal names. A caller that waits for so long, and is
	// refused for another reason then, so gets an answer by news of all its buckets.
	askedAgain = quota.Second
	askedOften = 4
	// lookedMost is for how many buckets a VM knows when it heard of them last.
	lookedMost = 256
)

// looked is when this VM heard of which buckets, each at a place by its key.
type looked [lookedMost]struct {
	bucket uint64
	at     quota.Instant
	look   bool
	// looks are those since an instant, in one askedAgain.
	since quota.Instant
	looks uint8
}

// note notes that the control plane has answered about a bucket, to a request that looked or to one
// that wanted tokens.
func (l *looked) note(key *keyhash.Key, now quota.Instant, look bool) {
	bucket := binary.LittleEndian.Uint64(key[:8])
	e := &l[bucket%lookedMost]
	if e.bucket != bucket || now >= e.since+quota.Instant(askedAgain) {
		e.since, e.looks = now, 0
	}
	if look {
		e.looks++
	}
	e.bucket, e.at, e.look = bucket, now, look
}

// just reports whether there was a look just before, or, about a bucket that lacks the tokens as
// far as this node knows, any answer. If other nodes share the bucket, they may have used it since.
func (l *looked) just(key *keyhash.Key, now quota.Instant, lacks, shared bool) bool {
	bucket := binary.LittleEndian.Uint64(key[:8])
	e := &l[bucket%lookedMost]
	if e.bucket != bucket || now >= e.at+quota.Instant(askedAgain) || shared && e.looks < askedOften {
		return false
	}
	return (e.look || lacks) && e.at != 0
}

// often reports whether as many looks were just before as a bucket is worth that other nodes share.
func (l *looked) often(key *keyhash.Key, now quota.Instant) bool {
	bucket := binary.LittleEndian.Uint64(key[:8])
	e := &l[bucket%lookedMost]
	return e.bucket == bucket && now < e.since+quota.Instant(askedAgain) && e.looks >= askedOften
}

// knownWaits are what looks have found out of windows that lack tokens, each at a place by its key
// and the cost: for how long a node does not know by itself.
type knownWaits [lookedMost]struct {
	bucket uint64
	cost   int64
	// left is how many tokens it held as far as was known. Whatever uses some changes that.
	left int64
	// until is how long the cost has to wait, as of an instant.
	until, at quota.Instant
}

// place is where the wait of a hit is, and by which bucket.
func (w *knownWaits) place(h *Hit) (at int, bucket uint64) {
	bucket = binary.LittleEndian.Uint64(h.Key[:8])
	return int((bucket ^ uint64(h.Cost)*0x9e3779b97f4a7c15) % lookedMost), bucket
}

// note notes until when a hit has to wait, whose bucket was just described.
func (w *knownWaits) note(h *Hit, until, now quota.Instant) {
	at, bucket := w.place(h)
	e := &w[at]
	e.bucket, e.cost, e.left, e.until, e.at = bucket, h.Cost, h.Remaining, until, now
}

// of is how long a hit has to wait by a look just before, if nothing more is known of its bucket.
func (w *knownWaits) of(h *Hit, now quota.Instant) (wait quota.Span, known bool) {
	at, bucket := w.place(h)
	e := &w[at]
	same := e.bucket == bucket && e.cost == h.Cost && e.left == h.Remaining
	return quota.Span(e.until - now), same && now < e.at+quota.Instant(askedAgain) && now < e.until
}

// refuseKnowing ends a request that the i-th hit refuses, or pauses it until the control plane has
// said when the other hits let it through.
func (l *Limiter) refuseKnowing(req *Request, i int, reason policy.Reason, now quota.Instant) Status {
	if req.Refusing = i; reason == policy.ReasonPenalty { // No bucket was looked at.
		l.lookAround(req, now)
	}
	knows := req.trial != nil || reason != policy.ReasonPenalty && reason != policy.ReasonQuota
	if knows || !l.askAround(req, now) {
		return l.refuse(req, i, reason, now)
	}
	req.refuses, req.Reason = true, reason
	l.vacate(req, 0, now)
	l.pause(req, now)
	l.leases.Flush(now)
	return Paused
}

// askAround asks for the buckets that have to say when the request passes, and reports whether
// there are any.
func (l *Limiter) askAround(req *Request, now quota.Instant) bool {
	l.together = l.together[:0]
	shared := l.leases != nil && l.leases.Shared()
	for i := range req.Hits {
		h := &req.Hits[i]
		if h.Retry == quota.Never { // No wait helps, whatever the others hold.
			l.together = l.together[:0]
			break
		}
		asks := h.missing && !h.passed && !h.queued && h.rule.Mode != policy.ModeOptimistic
		if h.asked = asks && !l.knowsWait(req, i, now, shared); h.asked {
			h.ticket = leasing.Ticket{Stream: req.Stream, Need: h.need, Deadline: req.deadline}
			h.ticket.Need.Looks, h.ticket.Need.Reserves = true, false
			if h.ticket.Need.Cost > 0 { // What is in hand is too little, and the rest is to come.
				h.ticket.Need.Cost = max(h.ticket.Need.Cost-h.inHand, 1)
			}
			l.together = append(l.together, &h.ticket)
		}
	}
	if len(l.together) > 0 && l.leases.Ask(now, l.together...) {
		return true
	}
	for i := range req.Hits {
		req.Hits[i].asked = false
	}
	return false
}

// knowsWait reports whether it is known for how long the i-th hit has to wait for its bucket, by
// news that are new enough. Only a look for the same cost can say it of a window that lacks the
// tokens.
func (l *Limiter) knowsWait(req *Request, i int, now quota.Instant, shared bool) bool {
	h := &req.Hits[i]
	if !h.lacks || !h.limit.Algorithm.Windowed() {
		return l.looked.just(&h.Key, now, h.lacks, shared)
	}
	wait, known := l.knownWaits.of(h, now)
	if !known || shared && !l.looked.often(&h.Key, now) {
		return false
	}
	if i == req.Refusing { // It is under a penalty.
		wait = max(wait, h.Retry)
	}
	h.Retry = wait
	return true
}

// readAround takes in what the control plane says of the buckets that were asked for, and refuses.
// One that has no answer keeps what is known of it.
func (l *Limiter) readAround(req *Request, now quota.Instant) Status {
	for i := range req.Hits {
		h := &req.Hits[i]
		if t := &h.ticket; h.asked && t.Outcome == leasing.Spared {
			l.looked.note(&h.Key, now, true)
			l.describe(h, t.Level, t.FullAt, now)
			wait := quota.Never
			if t.Until != quota.Forever {
				wait = quota.Span(max(t.Until-now, 0))
			}
			if h.view = refuses; wait == 0 {
				h.view = allows
			}
			if i == req.Refusing { // It is under a penalty.
				wait = max(wait, h.Retry)
			}
			if h.Retry = wait; t.Until != quota.Forever {
				l.knownWaits.note(h, t.Until, now)
			}
		}
		h.asked = false
	}
	req.refuses = false
	return l.refuse(req, req.Refusing, req.Reason, now)
}

// lookAround looks at buckets that may say when a refused request passes, without a question to the
// control plane: at all of them for a penalised request, and for one that has waited at those that
// it has not asked for, because other requests have used them meanwhile.
func (l *Limiter) lookAround(req *Request, now quota.Instant) {
	for i := range req.Hits {
		h := &req.Hits[i]
		own := h.decider == &local || h.decider == &optimistic
		asked := req.paused && h.ticket.Need.Cost > 0
		if h.Verdict != match.Limited || h.passed || !own && (asked || h.decider != &leased) {
			continue
		}
		wait := h.Retry
		if h.Retry = 0; i != req.Refusing {
			wait = 0
		}
		h.missing = h.decider.take(l, req, h, now, look) == missing
		if h.missing && req.paused && wait > 0 && h.limit.Algorithm.Windowed() {
			h.Retry = wait // It has just ended, and for how long the window lacks more is not known.
		}
		h.Retry = max(h.Retry, wait)
	}
}
