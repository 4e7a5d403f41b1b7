package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// AppendLeaseReply appends the message to dst.
func AppendLeaseReply(dst []byte, m LeaseReply) []byte {
	dst = binary.LittleEndian.AppendUint64(appendHeader(dst, leaseReplyMagic), m.Seq)
	dst = putUvarint(putUvarint(dst, m.Nodes), int64(len(m.Items)))
	for i := range m.Items {
		it := &m.Items[i]
		state := byte(it.State)
		if it.Doubt {
			state |= stateDoubt
		}
		dst = append(dst, state)
		for _, n := range [...]int64{
			it.Waiting, it.Keep, int64(it.NotBefore), it.Level, it.Debt, int64(it.Delay), int64(it.FullAfter),
			int64(it.For), int64(it.Term),
		} {
			dst = putUvarint(dst, n)
		}
	}
	return dst
}

// DecodeLeaseReply reads a message into m, reusing m.Items.
func DecodeLeaseReply(b []byte, m *LeaseReply) error {
	c := cursor{buf: b}
	c.readAnswered(leaseReplyMagic)
	m.Seq, m.Nodes = c.u64(), c.readWithin(1, MaxNodes)
	m.Items = m.Items[:0]
	for n := c.readWithin(0, MaxItems); n > 0 && c.err == nil; n-- {
		first := c.u8()
		state := ItemState(first &^ stateDoubt)
		if state > ItemSuspended {
			c.failWith(ErrValue)
		}
		m.Items = append(m.Items, LeaseAnswer{
			State:     state,
			Doubt:     first&stateDoubt != 0,
			Waiting:   c.readWithin(0, maxWaiting),
			Keep:      c.readWithin(0, maxTokens),
			NotBefore: quota.Span(c.readUvarint()),
			Level:     c.readWithin(0, maxTokens),
			Debt:      c.readWithin(0, 2*maxTokens),
			Delay:     quota.Span(c.readWithin(0, maxDelay)),
			FullAfter: quota.Span(c.readWithin(0, int64(MaxFullAfter))),
			For:       quota.Span(c.readWithin(0, maxFor)),
			Term:      lease.Term(c.readWithin(0, maxTerm)),
		})
	}
	return c.endMessage()
}
