package leasing

import (
	"slices"

	"github.com/weir-proxy/weir/filter/internal/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// queue is where requests wait: first come, first served at each bucket. It decides what is asked
// for next, and neither sends nor reads anything. Set lines before use.
type queue struct {
	// requests are all that wait, in the order in which they came. Some may have ended.
	requests []*request
	// waiting is how many of them have not ended, beside the trials, of which trying have not.
	waiting, trying int
	// resolved are the streams of requests that have ended, to be taken by the caller; tried are
	// the numbers of trials that have.
	resolved, tried inflight.Resolved
	// lines are the lines of single buckets; together counts by optimistic bucket the lines that a
	// call carries of requests for it and others.
	lines    map[keyhash.Key]*line
	together map[keyhash.Key]int
	// ready are the lines in which requests wait that no call carries yet, the first one first, and
	// kept those with tokens to keep; trials are ready lines of trials. What is in them may have
	// gone with a call meanwhile.
	ready, kept, trials []*line
	// keepBy is when the tick asks for tokens to keep; 0 if there are none.
	keepBy quota.Instant
}

// join queues a request's tickets.
func (q *queue) join(tickets []*Ticket) {
	first := tickets[0]
	r := &request{
		stream: first.Stream, trial: first.Trial, deadline: first.Deadline, tickets: slices.Clone(tickets),
	}
	if len(tickets) == 1 {
		r.line = q.lineOf(first.Need)
	} else {
		r.line = &line{need: first.Need, several: true}
	}
	r.line.trial = r.trial != 0
	r.line.waiting = append(r.line.waiting, r)
	q.requests = append(q.requests, r)
	*q.count(r)++
	q.markReady(r.line)
}

// count is the number of those that wait like r.
func (q *queue) count(r *request) *int {
	if r.trial != 0 {
		return &q.trying
	}
	return &q.waiting
}

// keep notes tokens to keep, to be asked for by an instant, and which were used. These alone make
// no call.
func (q *queue) keep(need Need, tokens int64, by quota.Instant, spent [2]lease.Spent) {
	if tokens > 0 && (q.keepBy == 0 || by < q.keepBy) {
		q.keepBy = by
	}
	l := q.lineOf(need)
	l.keep = max(l.keep, tokens)
	if l.spent == [2]lease.Spent{} {
		l.spent = spent
	}
	q.markReady(l)
	q.forget(l)
}

func (q *queue) lineOf(need Need) *line {
	l := q.lines[need.Bucket]
	if l == nil {
		l = &line{}
		q.lines[need.Bucket] = l
	}
	l.need = need
	return l
}

// isAsked reports whether a call is under way that requests for a bucket wait in.
func (q *queue) isAsked(bucket keyhash.Key) bool {
	l := q.lines[bucket]
	return l != nil && l.call != nil || q.together[bucket] > 0
}

// noteTogether notes by its buckets that a call carries a line now, or does so no longer.
func (q *queue) noteTogether(l *line, by int) {
	for _, bucket := range l.optimistic {
		if q.together[bucket] += by; q.together[bucket] == 0 {
			delete(q.together, bucket)
		}
	}
}

// markReady has a line's requests, and its tokens to keep, go with one of the next calls.
func (q *queue) markReady(l *line) {
	if len(l.waiting) > 0 && !l.isReady {
		l.isReady = true
		if l.trial {
			q.trials = append(q.trials, l)
		} else {
			q.ready = append(q.ready, l)
		}
	}
	if l.keep > 0 && !l.isKept {
		l.isKept = true
		q.kept = append(q.kept, l)
	}
}

// gather takes lines into a call, as many as may travel together, and fills it up with tokens to
// keep that the tick would soon ask for. The others stay.
func (q *queue) gather(now quota.Instant, room *room) *call {
	call := &call{sent: now}
	q.ready = q.gatherLines(call, q.ready, room)
	if len(call.items) > 0 && now+quota.Instant(askAhead) >= q.keepBy {
		q.gatherKept(call, room)
	}
	return call
}

// gatherLines takes lines into a call, as many as may travel together, and returns the others.
func (q *queue) gatherLines(call *call, lines []*line, room *room) (rest []*line) {
	rest = lines[:0]
	for _, l := range lines {
		l.isReady = false
		switch {
		case l.call != nil: // callEnded marks the line ready again.
		case len(l.waiting) == 0:
			q.forget(l)
		case call.hasSpace(l, room):
			for _, t := range l.waiting[0].tickets {
				if l.several && t.Need.Optimistic {
					l.optimistic = append(l.optimistic, t.Need.Bucket)
				}
			}
			q.noteTogether(l, 1)
			call.add(l, room.items())
		default:
			l.isReady = true
			rest = append(rest, l)
		}
	}
	clear(lines[len(rest):])
	return rest
}

// gatherKept takes tokens to keep into a call.
func (q *queue) gatherKept(call *call, room *room) {
	rest := q.kept[:0]
	for _, l := range q.kept {
		l.isKept = false
		switch {
		case l.call != nil: // callEnded marks the line ready again.
		case l.keep > 0 && call.fits(l, 1, room):
			call.carryKept(l)
			q.forget(l)
		case l.keep > 0:
			l.isKept = true
			rest = append(rest, l)
		default:
			q.forget(l)
		}
	}
	clear(q.kept[len(rest):])
	q.kept = rest
	if len(rest) == 0 {
		q.keepBy = 0
	}
}

// fits reports whether the call has space for so many items of a line.
func (c *call) fits(l *line, items int, room *room) bool {
	return len(c.items) == 0 || sameSet(c.items, l.need.Version) && len(c.items)+items <= room.items()
}

// hasSpace reports whether the requests of a line may travel in the call. After the first line of
// its policy set without space the call is full: the next ones would overtake that line.
func (c *call) hasSpace(l *line, room *room) bool {
	if !sameSet(c.items, l.need.Version) {
		return false
	}
	c.full = c.full || !c.fits(l, len(l.waiting[0].tickets), room)
	return !c.full && (c.purpose == forTrials || c.asks < room.free(c.sent))
}

// carryKept has the call carry the tokens to keep of a line alone.
func (c *call) carryKept(l *line) {
	it := c.carry(asks, &l.need)
	it.need.Cost, it.keep, it.spent = max(it.need.Cost, 1), l.keep, l.spent
	l.keep, l.spent, l.kept = 0, [2]lease.Spent{}, c
}

// keepsWith reports whether tokens to keep of the line go with the call, or with a later one.
func (l *line) keepsWith(c *call) bool { return l.keep > 0 || l.kept == c }

// add has the call carry the requests of a line, each item the next ones that it can ask for, and
// the tokens to keep, which are an item of their own where other limits decide the requests, too.
// A request for several buckets has one item for each.
func (c *call) add(l *line, most int) {
	if c.purpose != forTrials {
		c.asks++
	}
	for c.addNext(l); !l.several && len(l.waiting) > 0 && len(c.items) < most; {
		c.addNext(l)
	}
	if l.keep > 0 && len(c.items) < most { // They would come after the next request asks.
		c.carryKept(l)
	}
}

// addNext has the call carry the first requests of a line, all that one item can ask for.
func (c *call) addNext(l *line) {
	first := l.waiting[0]
	keep, spent := int64(0), [2]lease.Spent{}
	if need := &first.tickets[0].Need; !need.Looks { // To look is to ask for nothing else.
		spent, l.spent = l.spent, spent
		if !need.Beside {
			keep, l.keep = l.keep, 0
		}
	}
	n := 1
	for n < len(l.waiting) && l.waiting[n].tickets[0].Need.asksLike(&first.tickets[0].Need) {
		n++
	}
	waiters := l.waiting[:n:n]
	l.waiting, l.call = l.waiting[n:], c
	l.parts++
	for _, r := range waiters {
		r.call = c
	}
	for i, t := range first.tickets {
		need := l.needOf(t)
		it := c.carry(asks, &need)
		it.line, it.waiters = l, waiters
		it.waiting, it.keep, it.spent = int64(n), keep, spent
		it.joined = i < len(first.tickets)-1
		if it.need.Cost == 0 || it.need.Looks { // To look is to ask for nothing.
			it.waiting, it.need.Cost = 0, max(it.need.Cost, 1)
		}
	}
}

// needOf is what a ticket asks for. The line of a single bucket knows the newest policy set, the
// ticket what this request takes.
func (l *line) needOf(t *Ticket) Need {
	if l.several {
		return t.Need
	}
	need := l.need
	need.Cost, need.Optimistic, need.Reserves = t.Need.Cost, t.Need.Optimistic, t.Need.Reserves
	need.Looks, need.Beside = t.Need.Looks, t.Need.Beside
	need.adopt(&t.Need)
	return need
}

// callEnded takes in that a line's call has ended. Requests that it carried and that keep waiting
// go back to the head of the line. They alone make no call, because the answer has said that to ask
// is of no use yet: only if others wait behind them the line is asked for at once.
func (q *queue) callEnded(l *line, waitOn []*request) {
	q.noteTogether(l, -1)
	l.call, l.parts, l.waitOn, l.asks, l.optimistic = nil, 0, nil, false, nil
	q.markReady(l)
	for _, r := range waitOn {
		r.call = nil
	}
	l.waiting = slices.Concat(waitOn, l.waiting)
	q.forget(l)
}

// end ends a request whose tickets have their outcome.
func (q *queue) end(r *request) {
	q.withdraw(r)
	if r.trial != 0 {
		q.tried = append(q.tried, r.trial)
	} else {
		q.resolved = append(q.resolved, r.stream)
	}
}

// withdraw takes a request out of the queue. If a call carries it, the answer finds it ended.
func (q *queue) withdraw(r *request) {
	if l := r.line; r.call == nil {
		at := slices.Index(l.waiting, r)
		l.waiting = slices.Delete(l.waiting, at, at+1)
	}
	r.ended, r.tickets = true, nil
	*q.count(r)--
}

// cancel withdraws a stream's request.
func (q *queue) cancel(stream uint32) {
	for _, r := range q.requests {
		if r.stream == stream && r.trial == 0 && !r.ended {
			q.withdraw(r)
			q.forget(r.line)
		}
	}
}

// compact drops the requests that have ended, and returns the others.
func (q *queue) compact() []*request {
	if len(q.requests) > q.waiting+q.trying {
		q.requests = slices.DeleteFunc(q.requests, func(r *request) bool { return r.ended })
	}
	return q.requests
}

// forget drops the line of a bucket that no request waits for.
func (q *queue) forget(l *line) {
	if len(l.waiting) == 0 && l.call == nil && l.keep == 0 && !l.isReady && !l.isKept && !l.several {
		delete(q.lines, l.need.Bucket)
	}
}
