package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
)

// putSettlement writes what names or settles a reservation: 0 for an item that does neither, else
// one more than the number of the one that is settled, and the name.
func putSettlement(dst []byte, it *LeaseItem) []byte {
	if it.Reserved == 0 {
		return putUvarint(dst, 0)
	}
	dst = binary.LittleEndian.AppendUint64(putUvarint(dst, it.Nth+1), it.Reserved)
	if it.Nth > 0 {
		dst = putUvarint(dst, it.Actual)
	}
	return dst
}

// settlement reads what putSettlement has written.
func (c *cursor) settlement(it *LeaseItem) {
	nth := c.within(0, maxWaiting+1)
	if nth == 0 {
		return
	}
	it.Reserved, it.Nth = c.u64(), nth-1
	if it.Nth > 0 {
		it.Actual = c.within(0, policy.MaxCost)
	}
	if it.Reserved == 0 || it.Seq > 0 || it.Nth > 0 && (it.Waiting > 0 || it.Keep > 0 || it.Used > 0 || it.Joined) {
		c.fail(ErrValue)
	}
}

// putReturn writes the term of leased tokens and how many are returned: 0 for any other item.
func putReturn(dst []byte, it *LeaseItem) []byte {
	if dst = putUvarint(dst, int64(it.Term)); it.Term != 0 {
		dst = putUvarint(dst, it.Returned)
	}
	return dst
}

// returned reads what putReturn has written.
func (c *cursor) returned(it *LeaseItem) {
	if it.Term = lease.Term(c.within(0, maxTerm)); it.Term == 0 {
		return
	}
	it.Returned = c.within(0, maxTokens)
	if it.Reserved == 0 || it.Nth > 0 || it.Waiting > 0 || it.Keep > 0 || it.Joined {
		c.fail(ErrValue)
	}
}
