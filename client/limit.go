package client

import "time"

// limit is a client's knowledge of one policy of a server, from the answers so far.
//
// An answer gives two facts: the tokens that are left now, and the reset, at which the bucket is
// full again if the client sends no more. So after the reset in the answer to request n, requests
// up to n no longer count, and the client may send quota - (requests sent after n). That holds for
// every algorithm, so answers need not name it.
//
// Tokens are kept as levels. The level is the number of requests, counted from the first request
// on, that may have been sent in all: level - sent requests may be sent now.
type limit struct {
	// quota is the number of tokens of a full bucket.
	quota int64
	// sent is the number of requests sent so far, pending the number of those requests that have no
	// answer yet.
	sent, pending int64
	// level is the level after the newest answer; newest is the number of that answer's request.
	level, newest int64
	// marks are higher levels of the future, in the order of their requests.
	marks []mark
	// last is the time of the last request.
	last time.Time
	// span is the longest reset so far. share is a random number of at least 0 and below 1.
	span  time.Duration
	share float64
}

// mark is a level and the instant from which it holds.
type mark struct {
	at    time.Time
	level int64
}

// maxMarks bounds the marks: a limit has at most 2*maxMarks of them, and two marks in a row add at
// least 1/maxMarks of the quota.
const maxMarks = 32

// advance moves the limit to now: the marks whose time has come raise its level.
func (l *limit) advance(now time.Time, spread time.Duration) {
	kept := l.marks[:0]
	for _, m := range l.marks {
		if l.trustedAt(m, spread).After(now) {
			kept = append(kept, m)
		} else {
			l.level = max(l.level, m.level)
		}
	}
	l.marks = kept
}

// trustedAt returns the time from which the client trusts a mark. It is later than the mark by a
// random share of the spread, so that clients that wait for the same instant do not all send in it.
// The delay shrinks with the tokens that the mark adds: tokens that return one by one need none.
func (l *limit) trustedAt(m mark, spread time.Duration) time.Time {
	gain := float64(min(max(m.level-l.level, 0), l.quota)) / float64(l.quota)
	return m.at.Add(time.Duration(l.share * gain * float64(min(l.span/16, spread))))
}

// learnAnswer adds the answer to a request to the limit's knowledge. Requests that were pending
// when this request was sent may have reached the server after it.
func (l *limit) learnAnswer(now time.Time, sent spend, said Limit, refused bool, share float64, spread time.Duration) {
	l.quota = max(l.quota, said.Left, 1)
	if said.Quota > 0 {
		l.quota = said.Quota
	}
	level := said.Left + sent.number - sent.before
	l.advance(now, spread)
	if sent.number <= l.newest {
		return
	}
	// Other callers took the difference, or a request costs more than one token. The marks do not
	// count it yet.
	taken := max(l.level-level, 0)
	for i := range l.marks {
		l.marks[i].level -= taken
	}
	l.newest, l.level, l.share = sent.number, level, share
	switch {
	case !refused:
		l.span = max(l.span, said.Reset)
		l.addMark(mark{now.Add(said.Reset), l.quota + sent.number - sent.before})
	case said.Left == 0:
		l.marks = append(l.marks[:0], mark{now.Add(said.Reset), l.sent + 1})
	}
}

// addMark appends a mark. It drops the marks before it that are neither earlier nor higher. If the
// new mark adds less than 1/maxMarks of the quota to the second to last mark, it replaces the last
// mark.
func (l *limit) addMark(m mark) {
	n := len(l.marks)
	for n > 0 && !l.marks[n-1].at.Before(m.at) && l.marks[n-1].level <= m.level {
		n--
	}
	if n > 1 && l.marks[n-1].level <= m.level && (m.level-l.marks[n-2].level)*maxMarks < l.quota {
		n--
	}
	l.marks = append(l.marks[:n], m)
	if len(l.marks) > 2*maxMarks {
		l.marks = l.marks[1:]
	}
}

// nextWait returns the wait before the next request. While half of the quota is left, it is 0. With
// fewer tokens, it spreads them until the next mark. Without tokens, it lasts until the next mark.
func (l *limit) nextWait(now time.Time, spread time.Duration) time.Duration {
	l.advance(now, spread)
	free := l.level - l.sent
	next, ok := l.earliestMark(max(l.level, l.sent) + 1)
	switch {
	case !ok && free < 1 && l.pending > 0:
		return waitForAnswer
	case !ok || 2*free >= l.quota:
		return 0
	case free > 0:
		return max(l.last.Add(next.at.Sub(l.last)/time.Duration(2*free)).Sub(now), 0)
	}
	return l.trustedAt(next, spread).Sub(now)
}

// waitForAnswer is the wait for the answer to a pending request. The answer ends it early.
const waitForAnswer = time.Second

// earliestMark returns the earliest mark of at least a level. If there is none and no token is
// left, it returns the last mark.
func (l *limit) earliestMark(level int64) (best mark, ok bool) {
	for _, m := range l.marks {
		if m.level >= level && (!ok || m.at.Before(best.at)) {
			best, ok = m, true
		}
	}
	if !ok && l.level <= l.sent && len(l.marks) > 0 {
		return l.marks[len(l.marks)-1], true
	}
	return best, ok
}
