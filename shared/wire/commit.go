package wire

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// putCommit writes how the final cost of a policy's requests is found. The cost of a response
// without a cost is written as one more; 0 means the reserved cost.
func putCommit(dst []byte, c *policy.Commit) []byte {
	dst = putText(append(dst, byte(c.By)), c.Name)
	dst = putUvarint(putUvarint(dst, int64(c.Unit)), c.Missing+1)
	dst = putUvarint(dst, int64(len(c.Statuses)))
	for _, one := range c.Statuses {
		dst = putUvarint(putUvarint(putUvarint(dst, int64(one.First)), int64(one.Last)), one.Cost)
	}
	return dst
}

// putUnfinished writes the cost of requests whose responses are not whole, and the least that is
// reserved.
func putUnfinished(dst []byte, c *policy.Commit) []byte {
	return putUvarint(putUvarint(append(dst, byte(c.Unfinished)), c.UnfinishedCost), c.Least)
}

// readUnfinished reads the result of putUnfinished into the commit of the policy, which must have
// one to read into.
func (r *SetReader) readUnfinished(into *policy.Commit) {
	if into == nil {
		r.c.failWith(ErrValue)
		return
	}
	into.Unfinished = policy.Unfinished(r.readOneOf(0, uint8(policy.UnfinishedElapsed)))
	if into.Unfinished == policy.UnfinishedElapsed && into.By != policy.CommitDuration {
		r.c.failWith(ErrValue) // Nothing says what a time costs.
	}
	into.UnfinishedCost, into.Least = r.c.readWithin(0, policy.MaxCost), r.c.readWithin(0, policy.MaxCost)
}

// readCommit reads the result of putCommit.
func (r *SetReader) readCommit() *policy.Commit {
	c := &r.c
	out := &policy.Commit{By: policy.CommitBy(r.readOneOf(uint8(policy.CommitStatus), uint8(policy.CommitTrailer)))}
	out.Name = string(c.readText(policy.MaxText))
	least := int64(0)
	if out.By == policy.CommitDuration {
		least = 1 // The duration is divided by it.
	}
	out.Unit = quota.Span(c.readWithin(least, int64(quota.Hour)))
	out.Missing = c.readWithin(0, policy.MaxCost+1) - 1
	for n := c.readWithin(0, policy.MaxStatuses); n > 0 && c.err == nil; n-- {
		one := policy.StatusCost{First: uint16(c.readWithin(0, policy.MaxStatus))}
		one.Last = uint16(c.readWithin(int64(one.First), policy.MaxStatus))
		one.Cost = c.readWithin(0, policy.MaxCost)
		out.Statuses = append(out.Statuses, one)
	}
	return out
}
