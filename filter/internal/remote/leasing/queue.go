package leasing

import (
	"slices"

	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// queue holds the requests that wait: first come, first served at each bucket. It chooses the lines
// of the next call, and neither sends nor reads messages. Set lines before use.
type queue struct {
	// requests are all waiting requests in order of arrival. Some may have ended.
	requests []*request
	// waiting is the number of requests that have not ended, without trials. trying is the number
	// of trials that have not ended.
	waiting, trying int
	// resolved are the streams of ended requests, to be taken by the caller. tried are the numbers
	// of ended trials.
	resolved, tried inflight.Resolved
	// lines are the lines of single buckets. together is, by optimistic bucket, the number of lines
	// under way whose request needs this bucket and other buckets.
	lines    map[keyhash.Key]*line
	together map[keyhash.Key]int
	// ready are the lines with requests that no call carries yet, in order. kept are the lines with
	// tokens to keep. trials are the ready lines of trials. A line in these lists may have gone
	// with a call meanwhile.
	ready, kept, trials []*line
	// keepBy is when the tick asks for tokens to keep; 0 if there are none.
	keepBy quota.Instant
}

// addRequest queues a request's tickets.
func (q *queue) addRequest(tickets []*Ticket) {
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
	*q.waitingLike(r)++
	q.markReady(r.line)
}

// waitingLike returns the counter for requests like r: waiting or trying.
func (q *queue) waitingLike(r *request) *int {
	if r.trial != 0 {
		return &q.trying
	}
	return &q.waiting
}

// keepTokens notes tokens to keep, to be asked for by an instant, and used tokens to report. Used
// tokens alone cause no call.
func (q *queue) keepTokens(need Need, tokens int64, by quota.Instant, spent [2]lease.Spent) {
	if tokens > 0 && (q.keepBy == 0 || by < q.keepBy) {
		q.keepBy = by
	}
	l := q.lineOf(need)
	l.keep = max(l.keep, tokens)
	if l.spent == [2]lease.Spent{} {
		l.spent = spent
	}
	q.markReady(l)
	q.forgetLine(l)
}

// lineOf returns the line of a bucket with its newest need. It creates a missing line.
func (q *queue) lineOf(need Need) *line {
	l := q.lines[need.Bucket]
	if l == nil {
		l = &line{}
		q.lines[need.Bucket] = l
	}
	l.need = need
	return l
}

// isAsked reports whether a call is under way in which requests for a bucket wait.
func (q *queue) isAsked(bucket keyhash.Key) bool {
	l := q.lines[bucket]
	return l != nil && l.call != nil || q.together[bucket] > 0
}

// isToAsk reports whether requests wait to ask about a need's bucket, under its policy set, in a
// call that has not left.
func (q *queue) isToAsk(need *Need) bool {
	for _, l := range q.ready {
		if l.need.Version != need.Version { // A call has the lines of one policy set.
			continue
		}
		for _, r := range l.waiting {
			for _, t := range r.tickets {
				if t.Need.Bucket == need.Bucket {
					return true
				}
			}
		}
	}
	return false
}

// noteTogether adds by to the counts of a line's optimistic buckets: 1 when a call takes the line,
// -1 when the call ends.
func (q *queue) noteTogether(l *line, by int) {
	for _, bucket := range l.optimistic {
		if q.together[bucket] += by; q.together[bucket] == 0 {
			delete(q.together, bucket)
		}
	}
}

// markReady puts a line into the lists for the next calls, for its requests and for its tokens to
// keep.
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

// gatherCall moves lines into a new call, as far as they may travel together. If there is space, it
// adds tokens to keep that are due soon. Other lines stay.
func (q *queue) gatherCall(now quota.Instant, room *room) *call {
	call := &call{sent: now}
	q.ready = q.gatherLines(call, q.ready, room)
	if len(call.items) > 0 && now+quota.Instant(askAhead) >= q.keepBy {
		q.gatherKept(call, room)
	}
	return call
}

// gatherLines moves lines into a call as far as they may travel together, and returns the lines
// that stay.
func (q *queue) gatherLines(call *call, lines []*line, room *room) (rest []*line) {
	rest = lines[:0]
	for _, l := range lines {
		l.isReady = false
		switch {
		case l.call != nil: // callEnded marks the line ready again.
		case len(l.waiting) == 0:
			q.forgetLine(l)
		case call.hasSpace(l, room):
			for _, t := range l.waiting[0].tickets {
				if l.several && t.Need.Optimistic {
					l.optimistic = append(l.optimistic, t.Need.Bucket)
				}
			}
			q.noteTogether(l, 1)
			call.addLine(l, room.maxItems())
		default:
			l.isReady = true
			rest = append(rest, l)
		}
	}
	clear(lines[len(rest):])
	return rest
}

// gatherKept adds the tokens to keep of all lines to a call, as long as there is space. Other lines
// stay for the next call.
func (q *queue) gatherKept(call *call, room *room) {
	rest := q.kept[:0]
	for _, l := range q.kept {
		l.isKept = false
		switch {
		case l.call != nil: // callEnded marks the line ready again.
		case l.keep > 0 && call.fitsItems(l, 1, room):
			call.carryKept(l)
			q.forgetLine(l)
		case l.keep > 0:
			l.isKept = true
			rest = append(rest, l)
		default: // A call with requests has asked for the tokens.
			q.forgetLine(l)
		}
	}
	clear(q.kept[len(rest):])
	q.kept = rest
	if len(rest) == 0 {
		q.keepBy = 0
	}
}

// fitsItems reports whether the call has space for a number of items of a line.
func (c *call) fitsItems(l *line, items int, room *room) bool {
	return len(c.items) == 0 || sameSet(c.items, l.need.Version) && len(c.items)+items <= room.maxItems()
}

// hasSpace reports whether the requests of a line may travel in the call. Once a line of the same
// policy set has no space, the call is full: later lines must not overtake that line.
func (c *call) hasSpace(l *line, room *room) bool {
	if !sameSet(c.items, l.need.Version) {
		return false
	}
	c.full = c.full || !c.fitsItems(l, len(l.waiting[0].tickets), room)
	return !c.full && (c.purpose == forTrials || c.asks < room.freeLines(c.sent))
}

// carryKept adds an item to the call for a line's tokens to keep.
func (c *call) carryKept(l *line) {
	it := c.addItem(asks, &l.need)
	it.need.Cost, it.keep, it.spent = max(it.need.Cost, 1), l.keep, l.spent
	l.keep, l.spent, l.kept = 0, [2]lease.Spent{}, c
}

// keepsWith reports whether a line's tokens to keep are in the call, or will be in a later call.
func (l *line) keepsWith(c *call) bool { return l.keep > 0 || l.kept == c }

// addLine adds the requests of a line to the call. Each item has the next requests that it can ask
// for together. Tokens to keep are in the first item, or in an item of their own if other limits
// decide the requests too. A request for several buckets has an item for each bucket.
func (c *call) addLine(l *line, most int) {
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

// addNext adds the first requests of a line to the call: all requests that fit into one item.
func (c *call) addNext(l *line) {
	first := l.waiting[0]
	keep, spent := int64(0), [2]lease.Spent{}
	if need := &first.tickets[0].Need; !need.Looks { // A look asks for nothing else.
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
		it := c.addItem(asks, &need)
		it.line, it.waiters = l, waiters
		it.waiting, it.keep, it.spent = int64(n), keep, spent
		it.joined = i < len(first.tickets)-1
		if it.need.Cost == 0 || it.need.Looks { // A look asks for no tokens.
			it.waiting, it.need.Cost = 0, max(it.need.Cost, 1)
		}
	}
}

// needOf returns the need that a ticket's item asks with. The line of a single bucket has the
// newest policy set; the ticket has the request's cost.
func (l *line) needOf(t *Ticket) Need {
	if l.several {
		return t.Need
	}
	need := l.need
	need.Cost, need.Optimistic, need.Reserves = t.Need.Cost, t.Need.Optimistic, t.Need.Reserves
	need.Looks, need.Beside = t.Need.Looks, t.Need.Beside
	need.adoptFigures(&t.Need)
	return need
}

// callEnded handles the end of a line's call. Requests that keep waiting go back to the head of the
// line. They alone cause no call, because the answer was that asking is of no use yet. The line is
// asked for at once only if other requests wait behind them.
func (q *queue) callEnded(l *line, waitOn []*request) {
	q.noteTogether(l, -1)
	l.call, l.parts, l.waitOn, l.asks, l.optimistic = nil, 0, nil, false, nil
	q.markReady(l)
	for _, r := range waitOn {
		r.call = nil
	}
	l.waiting = slices.Concat(waitOn, l.waiting)
	q.forgetLine(l)
}

// endRequest removes a request whose tickets have their outcome, and notes it for the caller.
func (q *queue) endRequest(r *request) {
	q.withdrawRequest(r)
	if r.trial != 0 {
		q.tried = append(q.tried, r.trial)
	} else {
		q.resolved = append(q.resolved, r.stream)
	}
}

// withdrawRequest takes a request out of the queue. If a call carries the request, the answer finds
// it ended.
func (q *queue) withdrawRequest(r *request) {
	if l := r.line; r.call == nil {
		at := slices.Index(l.waiting, r)
		l.waiting = slices.Delete(l.waiting, at, at+1)
	}
	r.ended, r.tickets = true, nil
	*q.waitingLike(r)--
}

// cancelStream withdraws a stream's request.
func (q *queue) cancelStream(stream uint32) {
	for _, r := range q.requests {
		if r.stream == stream && r.trial == 0 && !r.ended {
			q.withdrawRequest(r)
			q.forgetLine(r.line)
		}
	}
}

// compact drops the ended requests, and returns the others that wait.
func (q *queue) compact() []*request {
	if len(q.requests) > q.waiting+q.trying {
		q.requests = slices.DeleteFunc(q.requests, func(r *request) bool { return r.ended })
	}
	return q.requests
}

// forgetLine deletes the line of a bucket that no request waits for.
func (q *queue) forgetLine(l *line) {
	if len(l.waiting) == 0 && l.call == nil && l.keep == 0 && !l.isReady && !l.isKept && !l.several {
		delete(q.lines, l.need.Bucket)
	}
}
