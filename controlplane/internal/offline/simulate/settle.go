package simulate

import (
	"slices"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// settling is a reservation and the real cost of its request, which is known from a certain time.
type settling struct {
	at      quota.Instant
	bucket  *bucket
	windows quota.Windows
	taken   quota.Reservation
	actual  int64
}

// withReservation returns the hit with the tokens that it reserves, at most the bucket's level. If
// the cost is known before the response, the hit does not change.
func (d *decider) withReservation(h match.Hit) match.Hit {
	if d.set.Policies[h.Policy].Commit.By != policy.CommitNever {
		limit, _ := d.limitOf(h)
		h.Cost = min(h.Cost, limit.Params.Burst)
	}
	return h
}

// scheduleSettling schedules the settlement of a request that was charged.
func (d *decider) scheduleSettling(h match.Hit, r *record) {
	c := &d.set.Policies[h.Policy].Commit
	b := d.buckets[h.Key]
	if c.By == policy.CommitNever || h.Cost == 0 || b == nil {
		return
	}
	actual, known := r.loggedCost(c)
	switch incomplete, left := r.isIncomplete(); {
	case incomplete && (!known || c.By == policy.CommitDuration):
		actual = d.unfinishedCost(h, r, left)
	case !known:
		actual = c.Missing
	}
	if actual < 0 || actual == h.Cost {
		return
	}
	_, largest := d.limitOf(h)
	one := settling{
		at: r.at + quota.Instant(r.lasted), bucket: b, actual: actual,
		taken: quota.Reservation{From: r.at, At: r.at, Tokens: h.Cost},
	}
	if largest.Algorithm.Windowed() {
		one.windows = largest.WindowsOf(h.Key)
	}
	at, _ := slices.BinarySearchFunc(d.due, one.at+1, func(s settling, at quota.Instant) int { return int(s.at - at) })
	d.due = slices.Insert(d.due, at, one)
}

// settleDue settles all reservations whose real cost is known at a time.
func (d *decider) settleDue(now quota.Instant) {
	n := 0
	for n < len(d.due) && d.due[n].at <= now {
		one := &d.due[n]
		n++
		b := one.bucket
		if one.windows.Quota > 0 {
			one.windows.Advance(&b.history, one.at)
			one.windows.Settle(&b.history, one.taken, one.actual)
			b.full = one.at + quota.Instant(one.windows.ResetAfter(&b.history, one.at))
			continue
		}
		b.tokens, _ = b.params.Settle(b.tokens, one.at, one.taken, one.actual)
		b.full = one.at + quota.Instant(b.params.Owed(b.tokens, one.at))
	}
	d.due = slices.Delete(d.due, 0, n)
}

// loggedCost returns the cost of the request that the log shows. known is false if the log does not
// show it.
func (r *record) loggedCost(c *policy.Commit) (cost int64, known bool) {
	switch c.By {
	case policy.CommitStatus:
		return c.ByStatus(r.status), r.status > 0
	case policy.CommitGRPCStatus:
		status, known := policy.ParseStatus([]byte(r.answered["grpc_status"]))
		return c.ByStatus(status), known
	case policy.CommitHeader, policy.CommitTrailer, policy.CommitMetadata:
		return policy.ParseActual([]byte(r.answered[c.Name]))
	case policy.CommitDuration:
		return c.ByDuration(r.lasted), r.lasted > 0
	}
	return 0, false
}

// isIncomplete reports whether the log shows that the response was incomplete. left is true if the
// client left, or if the request timed out.
func (r *record) isIncomplete() (incomplete, left bool) {
	for _, flag := range r.flags {
		switch flag {
		case "DC", "DPE", "DR", "UT", "SI", "UMSDR", "DT":
			return true, true
		case "UH", "LR", "UR", "UF", "UC", "UO", "URX", "UPE":
			incomplete = true
		}
	}
	return incomplete, false
}

// unfinishedCost returns the cost of a request whose response was incomplete; below 0 if the
// request costs the tokens that it reserved.
func (d *decider) unfinishedCost(h match.Hit, r *record, left bool) int64 {
	p, took := &d.set.Policies[h.Policy], quota.Span(-1)
	if r.lasted > 0 {
		took = r.lasted
	}
	limit, _ := d.limitOf(h)
	how := p.Commit.IfUnfinished(p.Cost.Source.Kind)
	most := how.Most(p.Cost.Max, p.Cost.Invalid, limit.Params.Burst)
	return p.Commit.ByUnfinished(how, h.Cost, most, took, left)
}
