package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Spoken is the reply for a node that reads formats up to the given one; 0 is a node that names
// none. It changes m.
func (m LeaseReply) Spoken(format uint64) LeaseReply {
	for i := range m.Items {
		a := &m.Items[i]
		if format < FullFormat {
			a.FullAfter = 0
		}
		if format < NeverFormat && a.NotBefore == quota.Never {
			a.NotBefore = oldNever
		}
		if format < TermFormat {
			a.Term = 0
		}
	}
	return m
}

// replyFormat is the lowest format in which answers can be written.
func replyFormat(items []LeaseAnswer) byte {
	format := byte(leaseFormat)
	for i := range items {
		switch {
		case items[i].Term > 0:
			return TermFormat
		case items[i].For > 0:
			format = permitsFormat
		case items[i].FullAfter > 0:
			format = max(format, FullFormat)
		}
	}
	return format
}

// AppendLeaseReply appends the message to dst, in the lowest format that can say it.
func AppendLeaseReply(dst []byte, m LeaseReply) []byte {
	format := replyFormat(m.Items)
	dst = append(append(dst, leaseReplyMagic...), format)
	dst = binary.LittleEndian.AppendUint64(dst, m.Seq)
	dst = putUvarint(dst, m.Nodes)
	dst = putUvarint(dst, int64(len(m.Items)))
	for _, it := range m.Items {
		state := byte(it.State)
		if it.Doubt {
			state |= stateDoubt
		}
		dst = append(dst, state)
		dst = putUvarint(dst, it.Waiting)
		dst = putUvarint(dst, it.Keep)
		dst = putUvarint(dst, int64(it.NotBefore))
		dst = putUvarint(putUvarint(putUvarint(dst, it.Level), it.Debt), int64(it.Delay))
		if format >= FullFormat {
			dst = putUvarint(dst, int64(it.FullAfter))
		}
		if format >= permitsFormat {
			dst = putUvarint(dst, int64(it.For))
		}
		if format >= TermFormat {
			dst = putUvarint(dst, int64(it.Term))
		}
	}
	return dst
}

// DecodeLeaseReply reads a message of any format into m, reusing m.Items.
func DecodeLeaseReply(b []byte, m *LeaseReply) error {
	c := cursor{buf: b}
	format := byte(leaseFormat)
	if len(b) > len(leaseReplyMagic) {
		if f := b[len(leaseReplyMagic)]; f == FullFormat || f == permitsFormat || f == TermFormat {
			format = f
		}
	}
	c.header(leaseReplyMagic, format)
	m.Seq, m.Nodes = c.u64(), c.within(1, MaxNodes)
	n := c.within(0, MaxItems)
	m.Items = m.Items[:0]
	for range n {
		if c.err != nil {
			break
		}
		first := c.u8()
		state := ItemState(first &^ stateDoubt)
		if state > ItemSuspended {
			c.fail(ErrValue)
		}
		m.Items = append(m.Items, LeaseAnswer{
			State:     state,
			Doubt:     first&stateDoubt != 0,
			Waiting:   c.within(0, maxWaiting),
			Keep:      c.within(0, maxTokens),
			NotBefore: quota.Span(c.uvarint()),
			Level:     c.within(0, maxTokens),
			Debt:      c.within(0, 2*maxTokens),
			Delay:     quota.Span(c.within(0, maxDelay)),
		})
		last := &m.Items[len(m.Items)-1]
		if format >= FullFormat {
			last.FullAfter = quota.Span(c.within(0, int64(MaxFullAfter)))
		}
		if format >= permitsFormat {
			last.For = quota.Span(c.within(0, maxFor))
		}
		if format >= TermFormat {
			last.Term = lease.Term(c.within(0, maxTerm))
		}
	}
	return c.end()
}
