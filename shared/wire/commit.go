package wire

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// putCommit writes what a policy's requests have cost once they are answered. What counts where the
// response does not say is one more than the cost; 0 is what was reserved.
func putCommit(dst []byte, c *policy.Commit) []byte {
	dst = putText(append(dst, byte(c.By)), c.Name)
	dst = putUvarint(putUvarint(dst, int64(c.Unit)), c.Missing+1)
	dst = putUvarint(dst, int64(len(c.Statuses)))
	for _, one := range c.Statuses {
		dst = putUvarint(putUvarint(putUvarint(dst, int64(one.First)), int64(one.Last)), one.Cost)
	}
	return dst
}

// putUnfinished writes what requests cost whose responses are not whole, and the least that is
// reserved.
func putUnfinished(dst []byte, c *policy.Commit) []byte {
	return putUvarint(putUvarint(append(dst, byte(c.Unfinished)), c.UnfinishedCost), c.Least)
}

// unfinished reads what putUnfinished has written into the commit of the policy, which must have
// one.
func (r *SetReader) unfinished(into *policy.Commit) {
	if into == nil {
		r.c.fail(ErrValue)
		return
	}
	into.Unfinished = policy.Unfinished(r.oneOf(0, uint8(policy.UnfinishedElapsed)))
	if into.Unfinished == policy.UnfinishedElapsed && into.By != policy.CommitDuration {
		r.c.fail(ErrValue) // Nothing says what a time costs.
	}
	into.UnfinishedCost, into.Least = r.c.within(0, policy.MaxCost), r.c.within(0, policy.MaxCost)
}

// commit reads what putCommit has written.
func (r *SetReader) commit() *policy.Commit {
	c := &r.c
	out := &policy.Commit{By: policy.CommitBy(r.oneOf(uint8(policy.CommitStatus), uint8(policy.CommitTrailer)))}
	out.Name = string(c.text(policy.MaxText))
	least := int64(0)
	if out.By == policy.CommitDuration {
		least = 1 // The duration is divided by it.
	}
	out.Unit = quota.Span(c.within(least, int64(quota.Hour)))
	out.Missing = c.within(0, policy.MaxCost+1) - 1
	for n := c.within(0, policy.MaxStatuses); n > 0 && c.err == nil; n-- {
		one := policy.StatusCost{First: uint16(c.within(0, 999))}
		one.Last = uint16(c.within(int64(one.First), 999))
		one.Cost = c.within(0, policy.MaxCost)
		out.Statuses = append(out.Statuses, one)
	}
	return out
}
