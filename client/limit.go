package client

import "time"

// limit is what a client knows of one policy of a server, from the answers so far.
//
// All it believes is the meaning of an answer: so much is left now, and at the reset the bucket is
// full again, if no more is sent. So at the reset that came with request n, what was sent up to n
// is forgiven, and quota - (requests sent after n) may be sent. That holds for every algorithm, so
// answers need not name it.
//
// Amounts are levels: what may be sent is the level less all that was sent.
type limit struct {
	quota int64
	// sent counts the requests that went out, flying those of them without an answer yet.
	sent, flying int64
	// level is what the newest answer left; newest is the number of its request.
	level, newest int64
	// marks are higher levels and when they come, by the number of the request.
	marks []mark
	// last is when a request was sent last.
	last time.Time
	// span is the longest reset that was seen, share a random number of at least 0 and below 1.
	span  time.Duration
	share float64
}

// mark is a level that holds from an instant on.
type mark struct {
	at    time.Time
	level int64
}

// maxMarks bounds what a limit remembers: a mark stands for 1/maxMarks of the quota.
const maxMarks = 32

// advance moves to now: the levels of marks that have passed hold.
func (l *limit) advance(now time.Time, spread time.Duration) {
	kept := l.marks[:0]
	for _, m := range l.marks {
		if l.comes(m, spread).After(now) {
			kept = append(kept, m)
		} else {
			l.level = max(l.level, m.level)
		}
	}
	l.marks = kept
}

// comes is when a mark is believed. Clients that wait for the same instant do not come in the same
// instant. What comes in a trickle needs no such care, and bears no delay.
func (l *limit) comes(m mark, spread time.Duration) time.Time {
	gain := float64(min(max(m.level-l.level, 0), l.quota)) / float64(l.quota)
	return m.at.Add(time.Duration(l.share * gain * float64(min(l.span/16, spread))))
}

// learn takes in what the answer to a request says. The requests that flew when it was sent may
// have reached the server after it.
func (l *limit) learn(now time.Time, of spend, said Limit, refused bool, share float64, spread time.Duration) {
	l.quota = max(l.quota, said.Left, 1)
	if said.Quota > 0 {
		l.quota = said.Quota
	}
	level := said.Left + of.number - of.before
	l.advance(now, spread)
	if of.number <= l.newest {
		return
	}
	// Other callers took the difference, or a request costs more than one. The marks do not know of
	// it.
	taken := max(l.level-level, 0)
	for i := range l.marks {
		l.marks[i].level -= taken
	}
	l.newest, l.level, l.share = of.number, level, share
	switch {
	case !refused:
		l.span = max(l.span, said.Reset)
		l.note(mark{now.Add(said.Reset), l.quota + of.number - of.before})
	case said.Left == 0:
		l.marks = append(l.marks[:0], mark{now.Add(said.Reset), l.sent + 1})
	}
}

// note remembers a mark and drops those that it makes useless: higher ones that come earlier make
// others useless, and one that is hardly higher than the last but one replaces the last.
func (l *limit) note(m mark) {
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

// wait is how long the next request should wait: not at all while half of the quota is left, then
// so that what is left lasts until more comes, and until more comes if nothing is left.
func (l *limit) wait(now time.Time, spread time.Duration) time.Duration {
	l.advance(now, spread)
	free := l.level - l.sent
	next, ok := l.earliest(max(l.level, l.sent) + 1)
	switch {
	case !ok && free < 1 && l.flying > 0:
		return unknown
	case !ok || 2*free >= l.quota:
		return 0
	case free > 0:
		return max(l.last.Add(next.at.Sub(l.last)/time.Duration(2*free)).Sub(now), 0)
	}
	return l.comes(next, spread).Sub(now)
}

// unknown is the wait for an answer that is on its way.
const unknown = time.Second

// earliest is the mark that first brings a level, or else, where nothing is left, the last one.
func (l *limit) earliest(level int64) (best mark, ok bool) {
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
