package policy

import (
	"strconv"

	"github.com/weir-proxy/weir/shared/quota"
)

// Unfinished is the cost of a request whose response was not whole: its client has gone, it timed
// out, or the upstream broke off. Its number travels in snapshots: never renumber.
type Unfinished uint8

// UnfinishedDefault is what a policy has that does not say; see Commit.IfUnfinished. Reserved is
// what the request had taken, Number is Commit.UnfinishedCost, and Elapsed the time that it took.
// If the client has gone or the request timed out, Max is the most that a reservation can be, and
// Missing no less than what is reserved where a request does not say; in other cases what it had
// taken.
const (
	UnfinishedDefault Unfinished = iota
	UnfinishedReserved
	UnfinishedMax
	UnfinishedNumber
	UnfinishedElapsed
	UnfinishedMissing
)

// String returns its name in the policy language; empty for a number and for unknown values.
func (u Unfinished) String() string {
	return [...]string{"", "reserved", "max", "", "elapsed", ""}[u]
}

// IfUnfinished returns the rule for a policy whose reservation is in a source of this kind. With a
// duration the cost is the time that the request took. Clients choose the budget in a header, and
// can leave at any time. So a client that leaves pays no less than the reservation of a request
// without a budget.
func (c *Commit) IfUnfinished(source SourceKind) Unfinished {
	switch {
	case c.Unfinished != UnfinishedDefault:
		return c.Unfinished
	case c.By == CommitDuration:
		return UnfinishedElapsed
	case source == SourceHeader && c.Least == 0:
		return UnfinishedMissing
	}
	return UnfinishedReserved
}

// Most returns the figure of Max and of Missing. most and missing are figures of a reservation,
// burst is the burst of the limit: a request has never taken more than the burst.
func (u Unfinished) Most(most, missing, burst int64) int64 {
	if u == UnfinishedMissing {
		return min(missing, burst)
	}
	return most
}

// ByUnfinished returns the cost of a request whose response was not whole, below 0 for the tokens
// that it has reserved. most is Unfinished.Most. took is below 0 if the request never went on. left
// means that its client has gone, or that it timed out. If an upstream or another filter ended the
// request, the client is not responsible, so the request does not cost the most.
func (c *Commit) ByUnfinished(how Unfinished, reserved, most int64, took quota.Span, left bool) int64 {
	switch {
	case how == UnfinishedNumber:
		return c.UnfinishedCost
	case how == UnfinishedElapsed && took >= 0:
		return c.ByDuration(took)
	case (how == UnfinishedMax || how == UnfinishedMissing) && left && most > reserved:
		return most
	}
	return MissingReserved
}

// readUnfinished reads the cost of a request whose response is not whole.
func (r *reader) readUnfinished(path string, n Node, c *Commit) {
	switch {
	case n.Kind != String:
		c.Unfinished = UnfinishedNumber
		r.readInteger(path, n, 0, MaxCost, &c.UnfinishedCost)
	case n.Text == "reserved":
		c.Unfinished = UnfinishedReserved
	case n.Text == "max":
		c.Unfinished = UnfinishedMax
	case n.Text == "elapsed":
		c.Unfinished = UnfinishedElapsed
	default:
		r.failAt(path, "must be reserved, max, elapsed, or a whole number from 0 on, not "+shorten(n.Text))
	}
}

// unfinishedFits refuses a rule for which the policy has no figure.
func (r *reader) unfinishedFits(path string, cost *Cost, c *Commit) {
	switch {
	case c.Unfinished == UnfinishedElapsed && c.By != CommitDuration && c.By != CommitNever:
		r.failAt(path+".unfinished", "elapsed is for commit: {duration: …}, which defines the cost of a time")
	case c.Unfinished == UnfinishedMax && cost.Max == 0:
		r.failAt(path+".unfinished", "max is for a reservation that requests say, which has a max; write a number")
	case c.Least > cost.Max:
		r.failAt(path+".reserve.min", "must be at most max")
	}
}

// unfinishedNotes returns notes for operators about responses that are not whole, and by how much
// such a request can exceed the bound.
func (p *Policy) unfinishedNotes() []string {
	const request = "a request that ends without a whole response costs "
	const remedy = "; say cost.unfinished, which may be max, or a min of the reservation"
	source, own := p.Cost.Source, p.Commit.Unfinished == UnfinishedDefault && p.Commit.Least == 0
	beyond := func(least int64) string {
		return ", so each that a client leaves can cost up to " + numText(max(p.Cost.Max-least, 0)) +
			" more than it pays, if the upstream holds it to no more than max"
	}
	switch u := p.Commit.IfUnfinished(source.Kind); {
	case u == UnfinishedElapsed:
		return []string{request + "the time that it took"}
	case u == UnfinishedNumber && source.Name != "" && p.Commit.UnfinishedCost < p.Cost.Max:
		return []string{"warning: " + request + numText(p.Commit.UnfinishedCost) + beyond(p.Commit.UnfinishedCost) +
			"; say unfinished: max to be sure"}
	case u == UnfinishedNumber:
		return []string{request + numText(p.Commit.UnfinishedCost)}
	case u == UnfinishedMax:
		return []string{request + "its reservation, and " + numText(p.Cost.Max) +
			", the most that may be reserved, if its client has gone or it timed out"}
	case u == UnfinishedMissing:
		return []string{"warning: clients choose the reservation, by the header " + source.Name + "; " + request +
			"that reservation, and no less than " + numText(p.Cost.Invalid) + beyond(p.Cost.Invalid) + remedy}
	case own && source.Kind == SourceJWT:
		return []string{"warning: " + request + "the number in its claim " + source.Name + beyond(1) + remedy}
	case source.Name != "":
		return []string{request + "its reservation" + beyond(max(p.Commit.Least, 1))}
	}
	return []string{request + "its reservation"}
}

func numText(n int64) string { return strconv.FormatInt(n, 10) }
