package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Use is the change that spends tokens of an optimistic bucket, to be reported afterwards. Without
// Charge it changes nothing.
type Use struct {
	Need
	Now    quota.Instant
	Charge bool
	// Slack is the number of tokens that this node may use before it reports them.
	Slack int64

	Result quota.Result
	// Asks: the request is refused here, but the control plane should decide instead.
	Asks bool
	// Heard: the control plane has sent the bucket's level before.
	Heard bool
	// Remaining and Reset are hints for the client.
	Remaining int64
	Reset     quota.Span
	// Doubt: the bucket may lack tokens that were not used.
	Doubt bool
	// Due is when to report the spent tokens. It is set if Reports: this use made the report due,
	// or due sooner. Another worker may have noted an earlier instant.
	Due     quota.Instant
	Reports bool
}

// Apply implements bucketstore.Change.
func (u *Use) Apply(e *bucketstore.Entry) bool {
	p := fitAccount(e, &u.Need, u.Now)
	var t lease.Account
	t, u.Result = e.Account.Use(u.Now, p, u.Slack, u.Cost)
	spent := u.Charge && u.Result.Allowed && u.Cost > 0
	u.Reports = false
	if spent {
		before := e.Account.Due(u.Now, u.Slack)
		e.Account = t
		u.Due = t.Due(u.Now, u.Slack)
		u.Reports = u.Due < before || u.Due <= u.Now
	}
	if retry := u.Result.RetryAfter; retry > 0 && retry != quota.Never {
		u.Result.RetryAfter += e.Account.Untold(u.Now, p, u.Slack)
	}
	u.Heard, u.Doubt = e.Account.Heard != 0, e.Account.Doubt
	u.Asks = !u.Result.Allowed && e.Account.Asks(u.Now, p, u.Cost)
	u.Remaining, u.Reset = e.Account.Remaining(u.Now, p), e.Account.FullAfter(u.Now, p)
	return spent
}

// fitAccount changes an entry to the need's limit, and returns the parameters for the decision. A
// new entry that may have been evicted before starts with the most tokens that it may have had in
// use.
func fitAccount(e *bucketstore.Entry, n *Need, now quota.Instant) quota.Params {
	p, unit := n.Params, n.Most.Den
	switch {
	case e.New:
		e.Params, e.Account.Unit = p, unit
		if wait := quota.Span(e.Debtor - now); wait > 0 {
			if unit > 0 { // Any caller may have used it.
				e.Params = n.Most
			}
			p := e.Params
			e.Account.Debt, e.Account.Heard = p.UnitsFor(min(p.Earned(wait), p.Burst-1)+1), now
			e.Account.Inherited = true
		}
	case e.Account.Unit != unit, unit == 0 && e.Params != p:
		e.Account = e.Account.Convert(e.Params, p, unit)
		e.Params = p
	case e.Params.SlowerThan(p):
		e.Params = p
	}
	// Until the next answer the bucket earns by the fastest figures that a caller brought.
	return quota.Params{Num: e.Params.Num, Den: e.Params.Den, Burst: p.Burst}
}

// startReport is the change that starts a report if a report is due.
type startReport struct {
	need *Need
	now  quota.Instant
	// upTo: reports that are due up to this instant start now.
	upTo  quota.Instant
	slack int64

	// due is when the next report is due.
	due quota.Instant
	// used is the number of tokens to report, and sent the name of the report; 0: nothing is due.
	used int64
	sent quota.Instant
}

// Apply implements bucketstore.Change.
func (s *startReport) Apply(e *bucketstore.Entry) bool {
	s.used = 0
	fitAccount(e, s.need, s.now)
	s.due = e.Account.Due(s.now, s.slack)
	if s.due > s.upTo || s.due > s.now && e.Account.Sent != 0 {
		return false
	}
	e.Account = e.Account.Report(s.now)
	s.used, s.sent = e.Account.Reported, e.Account.Sent
	return true
}

// applyReport is the change that takes in the answer to a report.
type applyReport struct {
	need *Need
	now  quota.Instant
	// sent is the report's name.
	sent  quota.Instant
	slack int64
	// debt is the number of tokens that the bucket lacks.
	debt int64
	// doubt: the bucket may lack tokens that were not used.
	doubt bool

	// due is when the next report is due.
	due quota.Instant
}

// Apply implements bucketstore.Change.
func (a *applyReport) Apply(e *bucketstore.Entry) bool {
	p := fitAccount(e, a.need, a.now)
	current := a.sent == e.Account.Sent
	e.Account = e.Account.Answered(a.now, a.sent, p, a.debt)
	if current { // The ledger goes on by the figures of the report, and so does the account.
		e.Params, e.Account.Doubt = a.need.Params, a.doubt
	}
	a.due = e.Account.Due(a.now, a.slack)
	return true
}

// reportAgain is the change that schedules an unanswered report again.
type reportAgain struct {
	need *Need
	now  quota.Instant
	// sent is the report's name.
	sent quota.Instant

	// due is when the report is sent again; 0: another report is under way.
	due quota.Instant
}

// Apply implements bucketstore.Change.
func (r *reportAgain) Apply(e *bucketstore.Entry) bool {
	fitAccount(e, r.need, r.now)
	if r.due = 0; e.Account.Sent != r.sent {
		return false
	}
	e.Account = e.Account.Unanswered(r.now)
	r.due = e.Account.Due(r.now, 0)
	return true
}

// decided is the change that takes in the control plane's answer for requests that wait at an
// optimistic bucket.
type decided struct {
	need  *Need
	now   quota.Instant
	by    lease.Answer
	slack int64
	// doubt: the bucket may lack tokens that were not used.
	doubt bool
	// looks: only find out whether the answer is sure, and change nothing.
	looks bool

	// used is the number of requests that may pass. The answer can be used only if sure.
	used  int64
	sure  bool
	level int64
	// wait is how long until the bucket has the cost of another request, as far as the node knows.
	wait   quota.Span
	fullAt quota.Instant
}

// Apply implements bucketstore.Change.
func (d *decided) Apply(e *bucketstore.Entry) bool {
	p := fitAccount(e, d.need, d.now)
	var account lease.Account
	if account, d.used, d.sure = e.Account.Decided(d.now, p, d.by); !d.sure || d.looks {
		return false
	}
	e.Account = account
	if d.doubt || d.by.Granted == 0 { // Others do not tell.
		e.Account.Doubt = d.doubt
	}
	if d.by.Granted > 0 {
		e.Params = d.need.Params
	}
	d.level, d.wait = account.Remaining(d.now, p), account.Wait(d.now, p, d.by.Cost)
	if d.wait > 0 {
		d.wait += account.Untold(d.now, p, d.slack)
	}
	d.fullAt = d.now + quota.Instant(account.FullAfter(d.now, p))
	return true
}

// levelBefore returns the bucket's level and the instant at which it is full. They are the same for
// all requests of an answer: the lowest level.
func (d *decided) levelBefore(int64) (level int64, fullAt quota.Instant) { return d.level, d.fullAt }

// giveBackReported is the change that gives back granted tokens that were not used. The node then
// reports fewer tokens, by their number.
type giveBackReported struct {
	now  quota.Instant
	need *Need
}

// Apply implements bucketstore.Change.
func (g *giveBackReported) Apply(e *bucketstore.Entry) bool {
	fitAccount(e, g.need, g.now)
	e.Account = e.Account.GiveBack(g.need.Cost)
	return true
}
