package leasing

import (
	"slices"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/wire"
)

// An answer about an optimistic bucket can depend on a report under way, of this worker or another
// worker: the answer may count that report already. Such an answer is held until the report is
// answered too. Its requests wait no longer for that than for any answer.

// heldAnswer is the part of an answer for the requests of one line, while it cannot be used yet.
type heldAnswer struct {
	call    *call
	items   []item
	answers []wire.LeaseAnswer
}

// holdAnswer keeps an answer for later, and reports whether it did. It keeps no answer without
// waiting requests.
func (c *Client) holdAnswer(s *lineAnswer) bool {
	if len(s.waiting) == 0 {
		return false
	}
	s.call.waits++
	c.held = append(c.held, heldAnswer{s.call, s.items, slices.Clone(s.answers)})
	return true
}

// isSure reports whether the answers about all buckets of a request can be used now. They are used
// together, because an answer that was taken in cannot be held.
func (c *Client) isSure(s *lineAnswer) bool {
	for nth := range s.items {
		if _, failed := s.unusable(nth); failed || !s.items[nth].need.Optimistic {
			continue
		}
		d := c.newDecided(s, nth)
		d.looks = true
		if c.store.Update(bucketstore.Optimistic, d.need.Bucket, s.now, d) == nil && !d.sure {
			return false
		}
	}
	return true
}

// decideOptimistic takes in the answer about an optimistic bucket. It reports false if the answer
// could not be stored or is not sure: then the answer must not be used.
func (c *Client) decideOptimistic(s *lineAnswer, nth int) (terms, bool) {
	d := c.newDecided(s, nth)
	err := c.store.Update(bucketstore.Optimistic, d.need.Bucket, s.now, d)
	if err == nil && d.sure {
		c.debts.payDebt(d.need.Bucket, d.by.Paid)
	}
	wait := max(s.answers[nth].NotBefore, d.wait)
	return terms{served: int(d.used), wait: wait, before: d.levelBefore}, err == nil && d.sure
}

// newDecided returns the change that takes in the answer about an optimistic bucket.
func (c *Client) newDecided(s *lineAnswer, nth int) *decided {
	it, a := &s.items[nth], &s.answers[nth]
	by := lease.Answer{
		Sent: s.call.sent, Debt: a.Debt, Cost: it.need.Cost, Granted: a.Waiting, Wanted: int64(s.served),
	}
	by.Paid = c.debts.payableFree(it.need.Bucket, max(by.Granted-by.Wanted, 0)*by.Cost, s.call)
	return &decided{
		need: &it.need, now: s.now, doubt: a.Doubt, slack: c.reports.slack(it.need.Params), by: by,
	}
}
