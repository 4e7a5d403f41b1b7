package lease

import "github.com/weir-proxy/weir/shared/quota"

// Each node decides about optimistic buckets alone and reports afterwards. The control plane keeps
// the whole debt, without a cap, so an excess is paid back. All nodes together use at most
//
//	burst + rate·t + (nodes - 1 + crashes in t)·slack
//
// in any interval t: a node uses at most slack beyond the control plane's knowledge, and no more
// than the level of its last answer and the tokens earned since.

const (
	// ReportEvery is how often a node reports its use. It reports at once if that is half of the
	// slack.
	ReportEvery = 100 * quota.Millisecond
	// ReportRarely is how often it reports a use of less than a rareShare-th of the slack. So all
	// nodes together hide at most a thirty-second of the burst for longer than ReportEvery.
	ReportRarely = quota.Second
	rareShare    = 16
	// answerTakes is the usual time of an answer on its way.
	answerTakes = Deadline / 5
)

// slackPercent is the share of the burst by which all nodes together may exceed it.
const slackPercent = 50

// Slack returns how many tokens each of the nodes may use before the control plane knows: half the
// burst divided by all nodes but one, at least 1 and at most the burst. A single node has the whole
// burst, and is exact.
func Slack(p quota.Params, nodes int64) int64 {
	if nodes <= 1 {
		return p.Burst
	}
	slack := p.Burst / 100 * slackPercent
	slack += p.Burst % 100 * slackPercent / 100
	return max(1, slack/(nodes-1))
}

// Overshoot returns the most tokens that nodes can use beyond burst + rate·t.
func Overshoot(p quota.Params, nodes int64) int64 { return (max(nodes, 1) - 1) * Slack(p, nodes) }

// Account is a node's use of an optimistic bucket, and the last answer about it. All workers of the
// node share it. The zero value has used nothing and has no answer.
type Account struct {
	// Unknown is the number of used tokens that the control plane has not acknowledged. Reported is
	// the number of these tokens in the report under way.
	Unknown, Reported int64
	// Sent is about when the report under way was sent. It is also the report's name; 0 for none.
	Sent quota.Instant
	// Debt is the units missing from a full bucket at Heard, by the last answer; Heard is 0 before
	// the first answer.
	Debt  int64
	Heard quota.Instant
	// Unit is the number of units of Debt in a token where callers bring figures of their own. It
	// is the Den of the largest figures, which can express any caller's use. 0 means the Den of the
	// figures.
	Unit int64
	// Since is when the first of the unknown tokens was used, Last when the last token was used.
	Since, Last quota.Instant
	// Resting is the number of granted tokens of a full bucket, which count as leased until Rests.
	// Until then the bucket does not refill beyond them. Names of reports do not wait for that,
	// because questions that leave meanwhile must not seem to come before them.
	Resting int64
	Rests   quota.Instant
	// Stale means that an operator has given the bucket tokens that no answer counts yet, or that
	// the limit was changed. The control plane then decides until its next answer.
	Stale bool
	// Inherited means that Debt may belong to another bucket. The control plane, which knows of no
	// such debt, decides in place of each refusal until its next answer.
	Inherited bool
	// Doubt means that the bucket may lack tokens that were not used, by the last answer that
	// tells.
	Doubt bool
}

// Use spends n tokens at now if the node may, with the bucket's slack. A refused Use spends nothing
// and returns when to retry.
func (a Account) Use(now quota.Instant, p quota.Params, slack, n int64) (Account, quota.Result) {
	switch {
	case n <= 0:
		return a, quota.Result{Allowed: true}
	case n > p.Burst:
		return a, quota.Result{RetryAfter: quota.Never}
	}
	// The use since the answer must fit into the slack, and into the tokens that the answer left
	// and that were earned since.
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
// slack, or because it has no answer yet.
func (a Account) Asks(now quota.Instant, p quota.Params, n int64) bool {
	return n <= p.Burst &&
		(a.Stale || a.Inherited || a.Wait(now, p, n) == 0 ||
			a.mayCountReport(a.Heard) && a.withoutReport().Wait(now, p, n) == 0 ||
			now >= a.Heard+quota.Instant(answerTakes) && a.restingEarly().Wait(now, p, n) == 0)
}

// restingEarly returns the account if the resting tokens came back as soon as they may.
func (a Account) restingEarly() Account {
	a.Rests -= quota.Instant(Deadline + answerTakes)
	return a
}

// mayCountReport reports whether an answer at an instant may already count the report under way.
func (a Account) mayCountReport(at quota.Instant) bool { return a.Sent != 0 && a.Sent <= at }

// withoutReport returns the account without the report under way: the least that the bucket lacks.
func (a Account) withoutReport() Account {
	a.Unknown -= min(a.Reported, a.Unknown)
	return a
}

// Answer is the control plane's answer to requests of Cost tokens each, which asked at Sent.
type Answer struct {
	Sent quota.Instant
	// Debt is the units missing from the bucket, including the granted tokens.
	Debt int64
	// Cost is at least 1. Granted is the number of requests that got tokens, Wanted the number of
	// these requests that still wait.
	Cost, Granted, Wanted int64
	// Paid is the number of tokens of granted requests that have gone, which were charged for other
	// requests.
	Paid int64
}

// Decided reads an answer and returns how many requests may use their tokens. Meanwhile the node
// went on deciding alone. So granted tokens may be used only if the bucket holds them in addition
// to all tokens that the node has not reported; the other granted tokens cover unreported tokens.
// It reports false, and changes nothing, if the decision depends on a report without an answer. The
// answer to the question may count that report already, even if the report left later, because
// messages overtake each other.
func (a Account) Decided(now quota.Instant, p quota.Params, by Answer) (after Account, used int64, sure bool) {
	after = a.receiveDebt(now, by.Sent, p, by.Debt)
	if full := by.Debt <= toUnits(by.Granted*by.Cost, a.unitsPerToken(p)); full && by.Granted > 0 {
		after.Resting, after.Rests = by.Granted*by.Cost, now+quota.Instant(Untold)
	}
	used = after.coveredRequests(now, p, by)
	if a.Sent != 0 && after.withoutReport().coveredRequests(now, p, by) > used {
		return a, 0, false
	}
	return after.GiveBack((by.Granted-used)*by.Cost - by.Paid), used, true
}

// coveredRequests returns how many of the waiting requests may use their tokens beside the
// unreported use. It is 0 if the bucket lacks more than it holds even without that use.
func (a Account) coveredRequests(now quota.Instant, p quota.Params, by Answer) int64 {
	unit := a.unitsPerToken(p)
	owed, full := a.debtAt(now, p), p.Burst*unit
	if owed > full {
		return 0
	}
	over := ceilDiv(max(owed+toUnits(a.Unknown, unit)-full, 0), unit)
	spare := (by.Granted-by.Wanted)*by.Cost - by.Paid // First use the tokens of requests that have gone.
	return max(by.Wanted-ceilDiv(max(over-spare, 0), by.Cost), 0)
}

// GiveBack sets n granted tokens that no request used against n tokens that the node would report.
// These may be in the report under way, whose answer must not cover tokens that are used later.
func (a Account) GiveBack(n int64) Account {
	a.Unknown -= min(n, a.Unknown)
	a.Reported = min(a.Reported, a.Unknown)
	return a
}

// receiveDebt takes a debt from the control plane, which was asked at sent. Answers to two calls
// may overtake each other, so the larger debt counts. Heard is never before the name of a report
// under way, which may be ahead of the clock, because its answer can be older than this answer.
func (a Account) receiveDebt(now, sent quota.Instant, p quota.Params, debt int64) Account {
	heard := max(a.Heard, now, a.Sent)
	if sent > a.Rests-quota.Instant(Untold) && debt < a.restingDebt(p) { // They have come back.
		a.Resting = 0
	}
	if a.Stale || a.Inherited {
		a.Debt, a.Stale, a.Inherited = 0, false, false
	}
	a.Debt = max(a.debtAt(heard, p), debt)
	a.Heard = heard
	return a
}

// Wait returns how long until the bucket holds n tokens in addition to all tokens that the node has
// not reported, as far as the node knows; 0 if it holds them now.
func (a Account) Wait(now quota.Instant, p quota.Params, n int64) quota.Span {
	spare := p.Burst*a.unitsPerToken(p) - toUnits(a.Unknown+n, a.unitsPerToken(p))
	return max(a.waitFor(a.Debt, a.Heard, spare, now, p), a.waitFor(a.restingDebt(p), a.Rests, spare, now, p))
}

// waitFor returns how long until a debt that is paid off since from is as low as spare.
func (a Account) waitFor(debt int64, from quota.Instant, spare int64, now quota.Instant, p quota.Params) quota.Span {
	unit := a.unitsPerToken(p)
	over := a.debtLeft(debt, from, now, p) - spare
	if over <= 0 {
		return 0
	}
	if unit == p.Den {
		return quota.Span(max(from-now, 0)) + quota.Span(ceilDiv(over, p.Num))
	}
	// Whole tokens are earned since then.
	tokens := p.Earned(quota.Span(max(now-from, 0))) + ceilDiv(over, unit)
	return max(1, quota.Span(from-now)+quota.Span(ceilDiv(toUnits(tokens, p.Den), p.Num)))
}

// Untold returns by how much the wait of Wait is too short, because the control plane does not know
// of all tokens that the node used. A bucket that was full before earns those tokens only from its
// next report on. In units other than the units of p, the part of a token that was earned since the
// last answer is lost. The node does not count tokens that are earned while an answer is on its
// way.
func (a Account) Untold(now quota.Instant, p quota.Params, slack int64) (late quota.Span) {
	if a.Unknown == 0 {
		return 0
	}
	rest, told := a, quota.Span(0)
	if a.Sent != 0 {
		told, rest = Deadline, a.withoutReport()
		rest.Sent, rest.Since = 0, now
	}
	if rest.Unknown > 0 {
		told += quota.Span(max(rest.Due(now, slack)-now, 0)) + Deadline
	}
	if a.unitsPerToken(p) == p.Den { // While more tokens are missing the bucket earns.
		told -= quota.Span(ceilDiv(a.debtAt(now, p), p.Num))
	}
	late = max(told, answerTakes)
	if since := quota.Span(now - a.earnsFrom(now, p)); a.unitsPerToken(p) != p.Den && since > 0 {
		late += since - quota.Span(ceilDiv(toUnits(p.Earned(since), p.Den), p.Num))
	}
	return late
}

// earnsFrom returns since when the debt at now is paid off.
func (a Account) earnsFrom(now quota.Instant, p quota.Params) quota.Instant {
	if a.debtLeft(a.restingDebt(p), a.Rests, now, p) > a.debtLeft(a.Debt, a.Heard, now, p) {
		return a.Rests
	}
	return a.Heard
}

// restingDebt returns the debt of the resting tokens.
func (a Account) restingDebt(p quota.Params) int64 { return toUnits(a.Resting, a.unitsPerToken(p)) }

// unitsPerToken returns how many units of the debt are a token.
func (a Account) unitsPerToken(p quota.Params) int64 {
	if a.Unit == 0 {
		return p.Den
	}
	return a.Unit
}

// debtAt returns the debt at now: the debt of the last answer, and at least the debt of the resting
// tokens.
func (a Account) debtAt(now quota.Instant, p quota.Params) int64 {
	return max(a.debtLeft(a.Debt, a.Heard, now, p), a.debtLeft(a.restingDebt(p), a.Rests, now, p))
}

// debtLeft returns the rest at now of a debt that is paid off since from. In units other than the
// units of p it earns whole tokens.
func (a Account) debtLeft(debt int64, from, now quota.Instant, p quota.Params) int64 {
	unit, since := a.unitsPerToken(p), max(now-from, 0)
	if unit == p.Den {
		return debtAfter(debt, since, p.Num)
	}
	return max(0, debt-toUnits(p.Earned(quota.Span(since)), unit))
}

// Remaining returns the number of whole tokens in the bucket at now, as far as the node knows: a
// hint.
func (a Account) Remaining(now quota.Instant, p quota.Params) int64 {
	unit := a.unitsPerToken(p)
	return max(0, (p.Burst*unit-a.debtAt(now, p)-toUnits(a.Unknown, unit))/unit)
}

// FullAfter returns the wait until the bucket is full, as far as the node knows.
func (a Account) FullAfter(now quota.Instant, p quota.Params) quota.Span {
	unit := a.unitsPerToken(p)
	owed := a.debtAt(now, p) + toUnits(a.Unknown, unit)
	if unit != p.Den {
		owed = toUnits(ceilDiv(owed, unit), p.Den)
	}
	return quota.Span(ceilDiv(owed, p.Num))
}

const (
	// Patience is how long a report waits for the end of its call, before any worker sends it again
	// as a whole. It is longer than a call lasts, so the end is missing only if the worker that
	// sent the report is gone. The control plane may then count it twice, and admits too little.
	Patience = 6 * quota.Second
	// repeatAfter is how soon a report is sent again whose call ended without an answer.
	repeatAfter = 250 * quota.Millisecond
)

// Due returns when to report: the less of the slack is used, the later. It is quota.Forever if
// there is nothing to report.
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

// Report records that all unknown uses are being reported at now. Sent names the report, Reported
// is its amount.
func (a Account) Report(now quota.Instant) Account {
	a.Reported, a.Sent = a.Unknown, max(now, a.Heard+1, a.Sent+1)
	return a
}

// Unanswered records that the call of the report under way has ended without an answer. The report
// is sent again soon, under a newer name.
func (a Account) Unanswered(now quota.Instant) Account {
	if a.Sent = now - quota.Instant(Patience-repeatAfter); a.Sent == 0 {
		a.Sent--
	}
	return a
}

// Answered reads the control plane's answer to the report named sent: the debt of the bucket,
// including the report. It ignores the answer to an earlier report than the report under way.
func (a Account) Answered(now, sent quota.Instant, p quota.Params, debt int64) Account {
	if sent == 0 || a.Sent != sent {
		return a
	}
	if a.Heard < a.Sent {
		a.Debt = 0 // No question was answered meanwhile, so this is the latest answer.
	}
	a = a.receiveDebt(now, sent, p, debt)
	a.Unknown -= min(a.Reported, a.Unknown)
	a.Reported, a.Sent, a.Since = 0, 0, now
	return a
}

// Convert converts the account to other figures, or another unit. Used tokens stay used. Only the
// control plane knows the debt in the new figures, so it decides until its next answer.
func (a Account) Convert(p, next quota.Params, unit int64) Account {
	tokens := ceilDiv(a.Debt, a.unitsPerToken(p))
	a.Unit, a.Stale = unit, a.Stale || a.Debt > 0
	a.Debt = toUnits(tokens, a.unitsPerToken(next))
	return a
}

// Idle returns the instant from which the account equals an absent account, if its uses are
// reported.
func (a Account) Idle(p quota.Params) quota.Instant {
	at := max(a.Heard, a.Last)
	idle := at + quota.Instant(a.FullAfter(at, p))
	if a.Unknown > 0 {
		idle += quota.Instant(ReportRarely + Patience)
	}
	return idle
}

// countReport is Grant for a report: the use counts even if the bucket does not hold it. The debt
// may exceed a whole burst, and is paid back before any token is left. It saturates far above every
// burst.
func (l Ledger) countReport(now quota.Instant, ask Ask) (Ledger, Grant) {
	l = l.bringTo(now, ask).withRoomFor(ask.Used, ask)
	l.Debt = min(l.Debt+toUnits(ask.Used, l.Params.Den), maxUnits)
	level := max(0, ask.Params.Burst-l.Params.TokensIn(l.Debt))
	return l, Grant{Debt: l.debtFor(ask), Level: level, Changed: true}
}

// debtFor returns the debt in the units of the node: the units of the largest figures where callers
// bring their own figures.
func (l Ledger) debtFor(ask Ask) int64 {
	if !ask.hasOwnFigures() || l.Params.Den == ask.Most.Den {
		return l.Debt
	}
	return toUnits(l.Params.TokensIn(l.Debt), ask.Most.Den)
}
