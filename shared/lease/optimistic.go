package lease

import "github.com/weir-proxy/weir/shared/quota"

// Optimistic buckets are decided by each node alone and reported afterwards. The centre keeps the whole debt, without a cap, so
// what was used too much is paid back. Over all nodes at most
//
//	burst + rate·t + (nodes - 1 + crashes in t)·slack
//
// is used in any interval t: a node uses no more than slack beyond what the centre knows of, and not even that beyond the level
// of the centre's last answer and what was earned since.

// ReportEvery is how often a node reports what it used; earlier if that is half the slack.
const ReportEvery = 100 * quota.Millisecond

// slackPercent is the share of the burst by which all nodes together may pass it.
const slackPercent = 50

// Slack is how many tokens each of nodes may use before the centre knows: half the burst for all but one of them together, at
// least 1 and at most the burst. A node alone has the whole burst, and is exact.
func Slack(p quota.Params, nodes int64) int64 {
	if nodes <= 1 {
		return p.Burst
	}
	slack := p.Burst / 100 * slackPercent
	slack += p.Burst % 100 * slackPercent / 100
	return max(1, slack/(nodes-1))
}

// DecidesAlone is what a request may cost so that no node ever asks the control plane about it.
func DecidesAlone(p quota.Params, nodes int64) int64 {
	if nodes <= 1 {
		return p.Burst // A node alone knows all that was used.
	}
	return decides(Slack(p, nodes))
}

// decides is the cost that fits into a slack soon: a node reports when half of it is used.
func decides(slack int64) int64 { return max(slack/2, 1) }

// Overshoot is what nodes can use beyond burst + rate·t at most.
func Overshoot(p quota.Params, nodes int64) int64 { return (max(nodes, 1) - 1) * Slack(p, nodes) }

// Tab is what one node has used of an optimistic bucket and what it last heard of it, shared by all its workers. The zero value
// has used nothing and heard nothing.
type Tab struct {
	// Unknown are the tokens used that the centre has not acknowledged, Reported those of them in the report under way.
	Unknown, Reported int64
	// Sent is about when the report under way was sent, and its name; 0 for none.
	Sent quota.Instant
	// Debt are the units missing from a full bucket at Heard, by the centre's last answer; Heard is 0 before the first.
	Debt  int64
	Heard quota.Instant
	// Since is when the first of the unknown tokens was used, Last when the last was.
	Since, Last quota.Instant
}

// Use spends n tokens at now if the node may, of a bucket whose slack is given. A refused Use spends nothing and says when to
// come again.
func (t Tab) Use(now quota.Instant, p quota.Params, slack, n int64) (Tab, quota.Result) {
	switch {
	case n <= 0:
		return t, quota.Result{Allowed: true}
	case n > p.Burst:
		return t, quota.Result{RetryAfter: quota.Never}
	}
	// What is used beyond the answer must fit into the slack, and into what the answer left with
	// the earnings since.
	if t.Unknown+n > min(slack, p.Burst) || t.wait(now, p, n) > 0 {
		return t, quota.Result{RetryAfter: t.Wait(now, p, n)}
	}
	if t.Unknown == 0 {
		t.Since = now
	}
	t.Unknown += n
	t.Last = max(t.Last, now)
	return t, quota.Result{Allowed: true}
}

// Asks reports whether the control plane is to decide on n tokens that Use has refused: the bucket
// holds them, as far as the node knows, and they are too many to be sure of a place in the slack
// later.
func (t Tab) Asks(now quota.Instant, p quota.Params, slack, n int64) bool {
	return n > decides(slack) && n <= p.Burst && t.wait(now, p, n) == 0
}

// Decided takes in the control plane's answer to a question: the debt that the bucket had then,
// with granted tokens in it, of which requests that still wait want some. It returns how many these
// may use: all or none. The node went on deciding alone while it waited. So they are used only if
// the bucket holds them beside all that the node has not reported; else they stand for so much of
// that.
func (t Tab) Decided(now quota.Instant, p quota.Params, debt, granted, wanted int64) (Tab, int64) {
	t = t.hear(now, p, debt)
	if t.wait(now, p, 0) > 0 {
		wanted = 0
	}
	return t.GiveBack(granted - wanted), wanted
}

// GiveBack takes n granted tokens that no request has used for n that the node would report. Those
// may be in the report under way: its answer must not make up for tokens that are used later.
func (t Tab) GiveBack(n int64) Tab {
	t.Unknown -= min(n, t.Unknown)
	t.Reported = min(t.Reported, t.Unknown)
	return t
}

// hear takes in a debt that the control plane had. Answers to two calls may change places on their
// way, so the larger debt counts. Heard is never before the name of a report under way, which may
// be ahead of the clock: its answer can be older than this one.
func (t Tab) hear(now quota.Instant, p quota.Params, debt int64) Tab {
	heard := max(t.Heard, now, t.Sent)
	t.Debt = max(earned(t.Debt, heard-t.Heard, p.Num), debt)
	t.Heard = heard
	return t
}

// Wait is how long n tokens take to come, as far as the node knows; at least a millisecond.
func (t Tab) Wait(now quota.Instant, p quota.Params, n int64) quota.Span {
	return max(t.wait(now, p, n), quota.Millisecond)
}

// wait is 0 if the bucket holds n tokens beside all that the node has not reported.
func (t Tab) wait(now quota.Instant, p quota.Params, n int64) quota.Span {
	owed := earned(t.Debt, now-t.Heard, p.Num) + units(t.Unknown+n, p.Den) - p.Burst*p.Den
	return quota.Span(ceilDiv(max(owed, 0), p.Num))
}

// Remaining is the whole tokens that the node believes the bucket to hold at now: a hint.
func (t Tab) Remaining(now quota.Instant, p quota.Params) int64 {
	return max(0, (p.Burst*p.Den-earned(t.Debt, now-t.Heard, p.Num)-units(t.Unknown, p.Den))/p.Den)
}

// FullAfter is the wait until the bucket is full, as far as the node knows.
func (t Tab) FullAfter(now quota.Instant, p quota.Params) quota.Span {
	return quota.Span(ceilDiv(earned(t.Debt, now-t.Heard, p.Num)+units(t.Unknown, p.Den), p.Num))
}

// Patience is how long a report may go without an answer before it is made again, in whole: the centre may count it twice then,
// and too little is admitted.
const Patience = 250 * quota.Millisecond

// Due is when to report; it does not lie after now if half the slack is used. Never without anything to report.
func (t Tab) Due(now quota.Instant, slack int64) quota.Instant {
	switch {
	case t.Unknown == 0:
		return quota.Instant(quota.Never)
	case t.Sent != 0:
		return t.Sent + quota.Instant(Patience)
	case 2*t.Unknown >= slack:
		return now
	}
	return t.Since + quota.Instant(ReportEvery)
}

// Report notes that all unknown uses are being reported at now. Sent tells this report from every other; Reported is what it
// says.
func (t Tab) Report(now quota.Instant) Tab {
	t.Reported, t.Sent = t.Unknown, max(now, t.Heard+1, t.Sent+1)
	return t
}

// Answered takes in the centre's answer to the report of that Sent: the debt that it has of the bucket, the report included. The
// answer to an earlier report than the one under way is no news.
func (t Tab) Answered(now, sent quota.Instant, p quota.Params, debt int64) Tab {
	if sent == 0 || t.Sent != sent {
		return t
	}
	if t.Heard < t.Sent {
		t.Debt = 0 // No question was answered meanwhile, so this is the latest news.
	}
	t = t.hear(now, p, debt)
	t.Unknown -= min(t.Reported, t.Unknown)
	t.Reported, t.Sent, t.Since = 0, 0, now
	return t
}

// Convert carries what is known of the bucket over to other figures: what was used stays used.
func (t Tab) Convert(p, next quota.Params) Tab {
	t.Debt = units(p.TokensIn(t.Debt), next.Den)
	return t
}

// Idle is the instant from which the tab says no more than an absent one, as long as what it has to report is reported.
func (t Tab) Idle(p quota.Params) quota.Instant {
	at := max(t.Heard, t.Last)
	idle := at + quota.Instant(t.FullAfter(at, p))
	if t.Unknown > 0 {
		idle += quota.Instant(Patience)
	}
	return idle
}

// count is Grant for a report: what a node has used is booked, whatever the bucket holds. The debt may pass a whole burst; it is
// paid back before anything is left. It saturates far above every burst.
func (l Ledger) count(now quota.Instant, ask Ask) (Ledger, Grant) {
	l = l.bring(now, ask)
	p := l.Params
	l.Debt = min(l.Debt+units(ask.Used, p.Den), maxUnits)
	return l, Grant{Debt: l.Debt, Level: max(0, (p.Burst*p.Den-l.Debt)/p.Den), Changed: true}
}
