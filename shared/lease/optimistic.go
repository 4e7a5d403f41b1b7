package lease

import "github.com/weir-proxy/weir/shared/quota"

// Each node decides about optimistic buckets alone and reports afterwards. The control plane keeps
// the whole debt, without a cap, so an excess is paid back. Over all nodes at most
//
//	burst + rate·t + (nodes - 1 + crashes in t)·slack
//
// is used in any interval t: a node uses at most slack beyond what the control plane knows, and no
// more than the level of its last answer and what was earned since.

const (
	// ReportEvery is how often a node reports what it used; at once if that is half of the slack.
	ReportEvery = 100 * quota.Millisecond
	// ReportRarely is how often it reports less than a rareShare-th of the slack. All nodes
	// together so keep at most a thirty-second of the burst to themselves for longer than
	// ReportEvery.
	ReportRarely = quota.Second
	rareShare    = 16
	// answerTakes is how long an answer takes on its way, as a rule.
	answerTakes = Deadline / 5
)

// slackPercent is the share of the burst by which all nodes together may exceed it.
const slackPercent = 50

// Slack is how many tokens each of the nodes may use before the control plane knows: half the burst
// divided by all nodes but one, at least 1 and at most the burst. A single node has the whole
// burst, and is exact.
func Slack(p quota.Params, nodes int64) int64 {
	if nodes <= 1 {
		return p.Burst
	}
	slack := p.Burst / 100 * slackPercent
	slack += p.Burst % 100 * slackPercent / 100
	return max(1, slack/(nodes-1))
}

// Overshoot is the most that nodes can use beyond burst + rate·t.
func Overshoot(p quota.Params, nodes int64) int64 { return (max(nodes, 1) - 1) * Slack(p, nodes) }

// Account is what one node has used of an optimistic bucket, and the last answer about it. All
// workers of the node share it. The zero value has used nothing and has no answer.
type Account struct {
	// Unknown are the used tokens that the control plane has not acknowledged, Reported those of
	// them in the report under way.
	Unknown, Reported int64
	// Sent is about when the report under way was sent, and its name; 0 for none.
	Sent quota.Instant
	// Debt is the units missing from a full bucket at Heard, by the last answer; Heard is 0 before
	// the first.
	Debt  int64
	Heard quota.Instant
	// Unit is how many units of Debt are a token where callers bring figures of their own: as many
	// as in the largest figures, which can express what any caller used. 0: the Den of the figures.
	Unit int64
	// Since is when the first of the unknown tokens was used, Last when the last was.
	Since, Last quota.Instant
	// Resting are tokens of a full bucket that were granted, and that count as leased until Rests.
	// So long the bucket does not refill beyond them. Names of reports do not wait for that,
	// because questions that leave meanwhile must not seem to come before them.
	Resting int64
	Rests   quota.Instant
	// Stale: an operator has given the bucket tokens that no answer counts yet, or the limit was
	// changed, so that the control plane decides until the next one.
	Stale bool
	// Inherited: Debt may be another bucket's. The control plane, which has heard of no such debt,
	// decides in place of each refusal until its next answer.
	Inherited bool
	// Doubt: the bucket may lack tokens that were not used, by the last answer that tells.
	Doubt bool
}

// Use spends n tokens at now if the node may, with the bucket's slack. A refused Use spends nothing
// and returns when to come again.
func (a Account) Use(now quota.Instant, p quota.Params, slack, n int64) (Account, quota.Result) {
	switch {
	case n <= 0:
		return a, quota.Result{Allowed: true}
	case n > p.Burst:
		return a, quota.Result{RetryAfter: quota.Never}
	}
	// The use since the answer must fit into the slack, and into what the answer left and was
	// earned since.
	if a.Stale || a.Unknown+n > min(slack, p.Burst) || a.Wait(now, p, n) > 0 {
		return a, quota.Result{RetryAfter: max(a.Wait(now, p, n), quota.Millisecond)}
	}
	if a.Unknown == 0 {
		a.Since = now
	}
	a.Unknown += n
	a.Last = max(a.Last, now)
	return a, quota.Result{Allowed: true}
}

// Asks reports whether the control plane should decide about n tokens that Use refused: the bucket
// may hold them, as far as the node knows. So no request is refused because the node has used its
// slack, or because it knows nothing yet.
func (a Account) Asks(now quota.Instant, p quota.Params, n int64) bool {
	return n <= p.Burst &&
		(a.Stale || a.Inherited || a.Wait(now, p, n) == 0 || a.doubts(a.Heard) && a.surely().Wait(now, p, n) == 0 ||
			now >= a.Heard+quota.Instant(answerTakes) && a.soonest().Wait(now, p, n) == 0)
}

// soonest is the account if what rests came back as soon as it may.
func (a Account) soonest() Account {
	a.Rests -= quota.Instant(Deadline + answerTakes)
	return a
}

// doubts reports whether an answer may count the report under way, which left before an instant.
func (a Account) doubts(at quota.Instant) bool { return a.Sent != 0 && a.Sent <= at }

// surely is the account without the report under way: what is missing of the bucket at least.
func (a Account) surely() Account {
	a.Unknown -= min(a.Reported, a.Unknown)
	return a
}

// Answer is the control plane's answer to requests of Cost tokens each that asked at Sent.
type Answer struct {
	Sent quota.Instant
	// Debt is what the bucket lacks, the granted tokens among it.
	Debt int64
	// Cost is at least 1. Granted are the requests that it had tokens for, Wanted those of them
	// that still wait.
	Cost, Granted, Wanted int64
	// Paid are tokens of granted requests that have gone, and were charged for others.
	Paid int64
}

// Decided takes in an answer and returns how many requests may use their tokens. Meanwhile the node
// went on deciding alone. So granted tokens may be used only as far as the bucket holds them in
// addition to all that the node has not reported; the others cover as much of that. It reports
// false, and changes nothing, if that hangs on a report that has no answer: the answer to the
// question may count it already, also if it left later, because messages overtake each other.
func (a Account) Decided(now quota.Instant, p quota.Params, by Answer) (after Account, used int64, sure bool) {
	after = a.hear(now, by.Sent, p, by.Debt)
	if full := by.Debt <= units(by.Granted*by.Cost, a.unit(p)); full && by.Granted > 0 {
		after.Resting, after.Rests = by.Granted*by.Cost, now+quota.Instant(Untold)
	}
	used = after.covers(now, p, by)
	if a.Sent != 0 && after.surely().covers(now, p, by) > used {
		return a, 0, false
	}
	return after.GiveBack((by.Granted-used)*by.Cost - by.Paid), used, true
}

// covers is how many of the requests that wait may use their tokens beside what is not reported.
// None may if the bucket lacks more than it holds without that.
func (a Account) covers(now quota.Instant, p quota.Params, by Answer) int64 {
	unit := a.unit(p)
	owed, full := a.owed(now, p), p.Burst*unit
	if owed > full {
		return 0
	}
	over := ceilDiv(max(owed+units(a.Unknown, unit)-full, 0), unit)
	spare := (by.Granted-by.Wanted)*by.Cost - by.Paid // Tokens of requests that have gone cover it first.
	return max(by.Wanted-ceilDiv(max(over-spare, 0), by.Cost), 0)
}

// GiveBack counts n granted tokens that no request used for n tokens that the node would report.
// Those may be in the report under way, whose answer must not cover tokens that are used later.
func (a Account) GiveBack(n int64) Account {
	a.Unknown -= min(n, a.Unknown)
	a.Reported = min(a.Reported, a.Unknown)
	return a
}

// hear takes a debt from the control plane, which was asked at an instant. Answers to two calls may
// overtake each other, so the larger debt counts. Heard is never before the name of a report under
// way, which may be ahead of the clock, because its answer can be older than this one.
func (a Account) hear(now, sent quota.Instant, p quota.Params, debt int64) Account {
	heard := max(a.Heard, now, a.Sent)
	if sent > a.Rests-quota.Instant(Untold) && debt < a.resting(p) { // It has come back.
		a.Resting = 0
	}
	if a.Stale || a.Inherited {
		a.Debt, a.Stale, a.Inherited = 0, false, false
	}
	a.Debt = max(a.owed(heard, p), debt)
	a.Heard = heard
	return a
}

// Wait is how long until the bucket holds n tokens in addition to all that the node has not
// reported, as far as the node knows; 0 if it holds them now.
func (a Account) Wait(now quota.Instant, p quota.Params, n int64) quota.Span {
	spare := p.Burst*a.unit(p) - units(a.Unknown+n, a.unit(p))
	return max(a.waitFor(a.Debt, a.Heard, spare, now, p), a.waitFor(a.resting(p), a.Rests, spare, now, p))
}

// waitFor is how long until a debt that is paid off since an instant is as low as spare.
func (a Account) waitFor(debt int64, from quota.Instant, spare int64, now quota.Instant, p quota.Params) quota.Span {
	unit := a.unit(p)
	over := a.left(debt, from, now, p) - spare
	if over <= 0 {
		return 0
	}
	if unit == p.Den {
		return quota.Span(max(from-now, 0)) + quota.Span(ceilDiv(over, p.Num))
	}
	// Whole tokens are earned since then.
	tokens := p.Earned(quota.Span(max(now-from, 0))) + ceilDiv(over, unit)
	return max(1, quota.Span(from-now)+quota.Span(ceilDiv(units(tokens, p.Den), p.Num)))
}

// Untold is by how much a wait is too short that Wait says, because the control plane has not heard
// of all that the node used: a bucket that was full before earns those tokens again only from then
// on. In units other than those of p the part of a token is lost that was earned since the last
// answer. What is earned while an answer is on its way the node does not count.
func (a Account) Untold(now quota.Instant, p quota.Params, slack int64) (late quota.Span) {
	if a.Unknown == 0 {
		return 0
	}
	rest, told := a, quota.Span(0)
	if a.Sent != 0 {
		told, rest = Deadline, a.surely()
		rest.Sent, rest.Since = 0, now
	}
	if rest.Unknown > 0 {
		told += quota.Span(max(rest.Due(now, slack)-now, 0)) + Deadline
	}
	if a.unit(p) == p.Den { // As long as more is missing the bucket earns.
		told -= quota.Span(ceilDiv(a.owed(now, p), p.Num))
	}
	late = max(told, answerTakes)
	if since := quota.Span(now - a.earnsFrom(now, p)); a.unit(p) != p.Den && since > 0 {
		late += since - quota.Span(ceilDiv(units(p.Earned(since), p.Den), p.Num))
	}
	return late
}

// earnsFrom is since when what the bucket owes at now is paid off.
func (a Account) earnsFrom(now quota.Instant, p quota.Params) quota.Instant {
	if a.left(a.resting(p), a.Rests, now, p) > a.left(a.Debt, a.Heard, now, p) {
		return a.Rests
	}
	return a.Heard
}

// resting is what the resting tokens owe.
func (a Account) resting(p quota.Params) int64 { return units(a.Resting, a.unit(p)) }

// unit is how many units of the debt are a token.
func (a Account) unit(p quota.Params) int64 {
	if a.Unit == 0 {
		return p.Den
	}
	return a.Unit
}

// owed is the debt at now: that of the last answer, and at least what rests.
func (a Account) owed(now quota.Instant, p quota.Params) int64 {
	return max(a.left(a.Debt, a.Heard, now, p), a.left(a.resting(p), a.Rests, now, p))
}

// left is what is left at now of a debt that is paid off since an instant. In units other than
// those of p it has earned whole tokens.
func (a Account) left(debt int64, from, now quota.Instant, p quota.Params) int64 {
	unit, since := a.unit(p), max(now-from, 0)
	if unit == p.Den {
		return earned(debt, since, p.Num)
	}
	return max(0, debt-units(p.Earned(quota.Span(since)), unit))
}

// Remaining is the whole tokens in the bucket at now, as far as the node knows: a hint.
func (a Account) Remaining(now quota.Instant, p quota.Params) int64 {
	unit := a.unit(p)
	return max(0, (p.Burst*unit-a.owed(now, p)-units(a.Unknown, unit))/unit)
}

// FullAfter is the wait until the bucket is full, as far as the node knows.
func (a Account) FullAfter(now quota.Instant, p quota.Params) quota.Span {
	unit := a.unit(p)
	owed := a.owed(now, p) + units(a.Unknown, unit)
	if unit != p.Den {
		owed = units(ceilDiv(owed, unit), p.Den)
	}
	return quota.Span(ceilDiv(owed, p.Num))
}

const (
	// Patience is how long a report waits for the end of its call before it is made again as a
	// whole, by any worker: longer than a call lasts. Only if the worker that sent it is gone no
	// end comes. The control plane may then count it twice, so too little is admitted.
	Patience = 6 * quota.Second
	// repeatAfter is how soon a report is made again whose call has ended without an answer.
	repeatAfter = 250 * quota.Millisecond
)

// Due is when to report: the later, the less of the slack is used. It is quota.Forever if there is
// nothing to report.
func (a Account) Due(now quota.Instant, slack int64) quota.Instant {
	switch {
	case a.Unknown == 0:
		return quota.Forever
	case a.Sent != 0:
		return a.Sent + quota.Instant(Patience)
	case 2*a.Unknown >= slack:
		return now
	case rareShare*a.Unknown >= slack:
		return a.Since + quota.Instant(ReportEvery)
	}
	return a.Since + quota.Instant(ReportRarely)
}

// Report notes that all unknown uses are being reported at now. Sent names the report, Reported is
// its amount.
func (a Account) Report(now quota.Instant) Account {
	a.Reported, a.Sent = a.Unknown, max(now, a.Heard+1, a.Sent+1)
	return a
}

// Unanswered notes that the call of the report under way has ended without an answer. The report is
// made again soon, under a newer name: this one is of the past.
func (a Account) Unanswered(now quota.Instant) Account {
	if a.Sent = now - quota.Instant(Patience-repeatAfter); a.Sent == 0 {
		a.Sent--
	}
	return a
}

// Answered takes the control plane's answer to the report named sent: the debt of the bucket,
// including the report. It ignores the answer to an earlier report than the one under way.
func (a Account) Answered(now, sent quota.Instant, p quota.Params, debt int64) Account {
	if sent == 0 || a.Sent != sent {
		return a
	}
	if a.Heard < a.Sent {
		a.Debt = 0 // No question was answered meanwhile, so this is the latest answer.
	}
	a = a.hear(now, sent, p, debt)
	a.Unknown -= min(a.Reported, a.Unknown)
	a.Reported, a.Sent, a.Since = 0, 0, now
	return a
}

// Convert converts the account to other figures, or another unit: what was used stays used. How
// much of it the other figures owe the control plane knows, which decides until its next answer.
func (a Account) Convert(p, next quota.Params, unit int64) Account {
	tokens := ceilDiv(a.Debt, a.unit(p))
	a.Unit, a.Stale = unit, a.Stale || a.Debt > 0
	a.Debt = units(tokens, a.unit(next))
	return a
}

// Idle is the instant from which the account equals an absent one, provided that its uses are
// reported.
func (a Account) Idle(p quota.Params) quota.Instant {
	at := max(a.Heard, a.Last)
	idle := at + quota.Instant(a.FullAfter(at, p))
	if a.Unknown > 0 {
		idle += quota.Instant(ReportRarely + Patience)
	}
	return idle
}

// count is Grant for a report: the use counts even if the bucket does not hold it. The debt may
// exceed a whole burst, and is paid back before any token is left. It saturates far above every
// burst.
func (l Ledger) count(now quota.Instant, ask Ask) (Ledger, Grant) {
	l = l.bring(now, ask).expressing(ask.Used, ask)
	l.Debt = min(l.Debt+units(ask.Used, l.Params.Den), maxUnits)
	level := max(0, ask.Params.Burst-l.Params.TokensIn(l.Debt))
	return l, Grant{Debt: l.debtFor(ask), Level: level, Changed: true}
}

// debtFor is the debt in the units in which a node counts it: those of the largest figures where
// callers bring their own.
func (l Ledger) debtFor(ask Ask) int64 {
	if !ask.own() || l.Params.Den == ask.Most.Den {
		return l.Debt
	}
	return units(l.Params.TokensIn(l.Debt), ask.Most.Den)
}
