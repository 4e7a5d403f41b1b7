package wire

import (
	"encoding/binary"
)

const (
	consumersMagic  = "WRCN"
	questionMagic   = "WRCQ"
	consumersFormat = 1
)

// Bounds of the messages about consumers.
const (
	// MaxConsumers is how many consumers one message tells of.
	MaxConsumers = 1024
	// MaxQuestions is how many consumers one question asks about.
	MaxQuestions = 64
	// maxTier is the longest name of a tier.
	maxTier = 63
)

// Consumers tells which tiers the control plane has assigned to some consumers: in answer to a question, or because they have
// changed.
type Consumers struct {
	// Revision grows with each change of any consumer; the message says what was so at that one.
	Revision uint64
	// Complete: everything that has changed since the revision that the node had is here. Without, the node must ask again about
	// everyone it knows.
	Complete bool
	Items    []Consumer
}

// Consumer is one consumer by its match.ConsumerKey, with its tier, empty for none. Read from a message, Tier aliases it.
type Consumer struct {
	Key  [16]byte
	Tier []byte
}

// AppendConsumers appends the message to dst.
func AppendConsumers(dst []byte, m Consumers) []byte {
	dst = append(append(dst, consumersMagic...), consumersFormat)
	dst = binary.LittleEndian.AppendUint64(dst, m.Revision)
	dst = putUvarint(append(dst, boolByte(m.Complete)), int64(len(m.Items)))
	for _, it := range m.Items {
		dst = putUvarint(append(dst, it.Key[:]...), int64(len(it.Tier)))
		dst = append(dst, it.Tier...)
	}
	return dst
}

// IsConsumers says whether a message from the poll is about consumers rather than a snapshot.
func IsConsumers(b []byte) bool {
	return len(b) >= len(consumersMagic) && string(b[:len(consumersMagic)]) == consumersMagic
}

// DecodeConsumers reads a message into m, reusing m.Items. After an error nothing in m counts.
func DecodeConsumers(b []byte, m *Consumers) error {
	c := cursor{buf: b}
	c.header(consumersMagic, consumersFormat)
	m.Revision = c.u64()
	complete := c.u8()
	if m.Complete = complete == 1; complete > 1 {
		c.fail(ErrValue)
	}
	m.Items = m.Items[:0]
	for n := c.within(0, MaxConsumers); n > 0 && c.err == nil; n-- {
		var it Consumer
		copy(it.Key[:], c.bytes(16))
		it.Tier = c.text(maxTier)
		m.Items = append(m.Items, it)
	}
	return c.end()
}

// AppendQuestion appends a question about consumers to dst; a Consumers message answers it.
func AppendQuestion(dst []byte, keys [][16]byte) []byte {
	dst = putUvarint(append(append(dst, questionMagic...), consumersFormat), int64(len(keys)))
	for _, k := range keys {
		dst = append(dst, k[:]...)
	}
	return dst
}

// DecodeQuestion reads a question about 1 to MaxQuestions consumers.
func DecodeQuestion(b []byte) ([][16]byte, error) {
	c := cursor{buf: b}
	c.header(questionMagic, consumersFormat)
	n := c.within(1, MaxQuestions)
	var keys [][16]byte
	if c.err == nil {
		keys = make([][16]byte, n)
	}
	for i := range keys {
		copy(keys[i][:], c.bytes(16))
	}
	return keys, c.end()
}
