package leasing

import (
	"slices"

	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/wire"
)

// What an answer about an optimistic bucket lets through can hang on a report that is under way,
// of this worker or another one: the answer may count it already. Such an answer is held until the
// report is answered too. Its requests wait no longer for that than for an answer.

// heldAnswer is what a call brought for the requests of one line, and cannot be used yet.
type heldAnswer struct {
	call    *call
	items   []item
	answers []wire.LeaseAnswer
}

// hold keeps an answer, and reports whether it does: not one that no request waits for.
func (c *Client) hold(s *lineAnswer) bool {
	if len(s.waiting) == 0 {
		return false
	}
	s.call.waits++
	c.held = append(c.held, heldAnswer{s.call, s.items, slices.Clone(s.answers)})
	return true
}

// isSure reports whether the answers about all buckets of a request can be used now. They are used
// together, because one that is taken in cannot be held.
func (c *Client) isSure(s *lineAnswer) bool {
	for nth := range s.items {
		if _, failed := s.unusable(nth); failed || !s.items[nth].need.Optimistic {
			continue
		}
		d := c.decided(s, nth)
		d.looks = true
		if c.store.Update(bucketstore.Optimistic, d.need.Bucket, s.now, d) == nil && !d.sure {
			return false
		}
	}
	return true
}

// decide takes in the answer about an optimistic bucket. It reports false if the answer cannot be
// noted, or is not sure: then it must not be used.
func (c *Client) decide(s *lineAnswer, nth int) (terms, bool) {
	d := c.decided(s, nth)
	err := c.store.Update(bucketstore.Optimistic, d.need.Bucket, s.now, d)
	if err == nil && d.sure {
		c.debts.pay(d.need.Bucket, d.by.Paid)
	}
	wait := max(s.answers[nth].NotBefore, d.wait)
	return terms{served: int(d.used), wait: wait, before: d.before}, err == nil && d.sure
}

// decided is the change that takes in the answer about an optimistic bucket.
func (c *Client) decided(s *lineAnswer, nth int) *decided {
	it, a := &s.items[nth], &s.answers[nth]
	by := lease.Answer{
		Sent: s.call.sent, Debt: a.Debt, Cost: it.need.Cost, Granted: a.Waiting, Wanted: int64(s.served),
	}
	by.Paid = c.debts.paying(it.need.Bucket, max(by.Granted-by.Wanted, 0)*by.Cost, s.call)
	return &decided{
		need: &it.need, now: s.now, doubt: a.Doubt, slack: c.reports.slack(it.need.Params), by: by,
	}
}
