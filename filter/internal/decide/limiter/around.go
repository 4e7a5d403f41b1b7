package limiter

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// A refusal names the wait until all hits let the request through, not only the refusing hit. The
// node's knowledge of the other central buckets may be old: the caller may have used them through
// another node. So the node asks about them first, and only looks: a refused request is charged
// nowhere. A caller that repeats its request in spite of a refusal gets the last known wait: the
// node asks at most once per askedAgain for a bucket, or askedOften times if other nodes share it.

const (
	// askedAgain is the shortest wait that a refusal names. So a caller that waits that long, and
	// is then refused for another reason, gets an answer from fresh knowledge of all its buckets.
	askedAgain = quota.Second
	askedOften = 4
	// lookedMost is the number of buckets for which a VM remembers when it last heard of them.
	lookedMost = 256
)

// looked has, by bucket, when this VM last heard of it. The bucket's key gives the index.
type looked [lookedMost]struct {
	bucket uint64
	at     quota.Instant
	look   bool
	// looks counts the looks since the instant since, within one askedAgain.
	since quota.Instant
	looks uint8
}

// note stores that the control plane has answered about a bucket. Look: the request only looked.
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

// isFresh reports whether a look at the bucket was made within askedAgain. If the bucket lacks
// tokens as far as this node knows, any answer counts as a look. If other nodes share the bucket,
// askedOften looks are needed, because those nodes may have used it since.
func (l *looked) isFresh(key *keyhash.Key, now quota.Instant, lacks, shared bool) bool {
	bucket := binary.LittleEndian.Uint64(key[:8])
	e := &l[bucket%lookedMost]
	if e.bucket != bucket || now >= e.at+quota.Instant(askedAgain) || shared && e.looks < askedOften {
		return false
	}
	return (e.look || lacks) && e.at != 0
}

// isLookedOften reports whether askedOften looks at the bucket were made within askedAgain.
func (l *looked) isLookedOften(key *keyhash.Key, now quota.Instant) bool {
	bucket := binary.LittleEndian.Uint64(key[:8])
	e := &l[bucket%lookedMost]
	return e.bucket == bucket && now < e.since+quota.Instant(askedAgain) && e.looks >= askedOften
}

// knownWaits are the waits, found by looks, of windows that lack tokens. A node cannot compute
// these waits itself. Bucket and cost give the index.
type knownWaits [lookedMost]struct {
	bucket uint64
	cost   int64
	// left is the window's known number of tokens at the time of the look. The wait is valid only
	// while it is the same.
	left int64
	// until is when the cost can be charged, as known at the instant at.
	until, at quota.Instant
}

// indexOf returns the index for a hit, and the first bytes of its bucket's key.
func (w *knownWaits) indexOf(h *Hit) (at int, bucket uint64) {
	bucket = binary.LittleEndian.Uint64(h.Key[:8])
	return int((bucket ^ uint64(h.Cost)*0x9e3779b97f4a7c15) % lookedMost), bucket
}

// note stores the instant until which a hit must wait. Its bucket was just described.
func (w *knownWaits) note(h *Hit, until, now quota.Instant) {
	at, bucket := w.indexOf(h)
	e := &w[at]
	e.bucket, e.cost, e.left, e.until, e.at = bucket, h.Cost, h.Remaining, until, now
}

// waitOf returns a hit's wait from a look within askedAgain, if nothing newer is known of its
// bucket.
func (w *knownWaits) waitOf(h *Hit, now quota.Instant) (wait quota.Span, known bool) {
	at, bucket := w.indexOf(h)
	e := &w[at]
	same := e.bucket == bucket && e.cost == h.Cost && e.left == h.Remaining
	return quota.Span(e.until - now), same && now < e.at+quota.Instant(askedAgain) && now < e.until
}

// refuseKnowing ends a request that the ith hit refuses, or pauses it until the control plane has
// answered when the other hits let it through.
func (l *Limiter) refuseKnowing(req *Request, i int, reason policy.Reason, now quota.Instant) Status {
	if req.Refusing = i; reason == policy.ReasonPenalty { // No bucket was looked at.
		l.lookAround(req, now)
	}
	knows := req.trial != nil || reason != policy.ReasonPenalty && reason != policy.ReasonQuota
	if knows || !l.askAround(req, now) {
		return l.refuseRequest(req, i, reason, now)
	}
	req.refuses, req.Reason = true, reason
	l.vacatePlaces(req, 0, now)
	l.pauseRequest(req, now)
	l.leases.Flush(now)
	return Paused
}

// askAround asks the control plane about the buckets that decide when the request passes. It
// reports whether it asked about any.
func (l *Limiter) askAround(req *Request, now quota.Instant) bool {
	l.together = l.together[:0]
	shared := l.leases != nil && l.leases.Shared()
	for i := range req.Hits {
		h := &req.Hits[i]
		if h.Retry == quota.Never { // No wait helps, whatever tokens the other buckets have.
			l.together = l.together[:0]
			break
		}
		asks := h.missing && !h.passed && !h.queued && h.rule.Mode != policy.ModeOptimistic
		if h.asked = asks && !l.knowsWait(req, i, now, shared); h.asked {
			h.ticket = leasing.Ticket{Stream: req.Stream, Need: h.need, Deadline: req.deadline}
			h.ticket.Need.Looks, h.ticket.Need.Reserves = true, false
			if h.ticket.Need.Cost > 0 { // The tokens in hand are too few; ask for the rest.
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

// knowsWait reports whether the wait of the ith hit is known, from fresh knowledge. For a window
// that lacks tokens only a look with the same cost can tell.
func (l *Limiter) knowsWait(req *Request, i int, now quota.Instant, shared bool) bool {
	h := &req.Hits[i]
	if !h.lacks || !h.limit.Algorithm.Windowed() {
		return l.looked.isFresh(&h.Key, now, h.lacks, shared)
	}
	wait, known := l.knownWaits.waitOf(h, now)
	if !known || shared && !l.looked.isLookedOften(&h.Key, now) {
		return false
	}
	if i == req.Refusing { // It is under a penalty.
		wait = max(wait, h.Retry)
	}
	h.Retry = wait
	return true
}

// readAround reads the answers about the buckets that were asked about, and refuses the request. A
// bucket without an answer keeps its known wait.
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
	return l.refuseRequest(req, req.Refusing, req.Reason, now)
}

// lookAround checks buckets for the time at which a refused request passes, without asking the
// control plane. For a penalised request it checks all buckets. For a request that has waited it
// checks the buckets that the request has not asked about, because other requests have used them
// meanwhile.
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
			h.Retry = wait // The wait has just ended, and how much longer the window lacks tokens is not known.
		}
		h.Retry = max(h.Retry, wait)
	}
}
