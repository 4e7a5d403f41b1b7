package simulate

import (
	"slices"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// settling is a reservation whose request has cost something else, which is known at an instant.
type settling struct {
	at      quota.Instant
	bucket  *bucket
	windows quota.Windows
	taken   quota.Reservation
	actual  int64
}

// reserves returns what a hit reserves, no more than the bucket holds. It is the hit itself where
// its cost is known before.
func (d *decider) reserves(h match.Hit) match.Hit {
	if d.set.Policies[h.Policy].Commit.By != policy.CommitNever {
		limit, _ := d.limitOf(h)
		h.Cost = min(h.Cost, limit.Params.Burst)
	}
	return h
}

// later notes what a request, which was charged at its time, will be found to have cost.
func (d *decider) later(h match.Hit, r *record) {
	c := &d.set.Policies[h.Policy].Commit
	b := d.buckets[h.Key]
	if c.By == policy.CommitNever || h.Cost == 0 || b == nil {
		return
	}
	actual := r.cost(c)
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

// settle settles what is known at an instant.
func (d *decider) settle(now quota.Instant) {
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

// cost is what the log says that the request has cost; below 0 it is what was reserved.
func (r *record) cost(c *policy.Commit) int64 {
	switch c.By {
	case policy.CommitStatus:
		if r.status > 0 {
			return c.ByStatus(r.status)
		}
	case policy.CommitGRPCStatus:
		if n, ok := policy.ParseCost([]byte(r.answered["grpc_status"]), 999); ok {
			return c.ByStatus(int(n))
		}
	case policy.CommitHeader, policy.CommitTrailer, policy.CommitMetadata:
		if n, ok := policy.ParseActual([]byte(r.answered[c.Name])); ok {
			return n
		}
	case policy.CommitDuration:
		if r.lasted > 0 {
			return c.ByDuration(r.lasted)
		}
	}
	return c.Missing
}
