package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/text"
)

const (
	consumersMagic = "WRCN"
	questionMagic  = "WRCQ"
)

// Bounds of the messages about consumers.
const (
	// MaxConsumers is the largest number of consumers in one message.
	MaxConsumers = 4096
	// MaxQuestions is the largest number of consumers in one question.
	MaxQuestions = 64
	// maxTier is the length of the longest name of a tier.
	maxTier = 63
)

// Consumers is the control plane's data about some consumers: the answer to a question, or a set of
// changes.
type Consumers struct {
	// Revision grows with each change of any consumer. The message has the state at that revision.
	Revision uint64
	// ExceptionsRevision grows with each change of a consumer that has, or had, more than a tier.
	ExceptionsRevision uint64
	// HasExceptions means that some consumers have more than a tier. Otherwise no consumer needs a
	// look-up for that.
	HasExceptions bool
	// Complete means that the message has every change since the node's revision. Otherwise the
	// node must ask again about all consumers that it knows, and Items are the consumers that it
	// must know at once.
	Complete bool
	Items    []Consumer
}

// Consumer is one consumer, identified by its match.ConsumerKey, with its tier and its exceptions
// in the form of AppendExceptions; each may be empty. Read from a message, both alias the message.
type Consumer struct {
	Key        keyhash.Key
	Tier       []byte
	Exceptions []byte
}

// AppendConsumers appends the message to dst.
func AppendConsumers(dst []byte, m Consumers) []byte {
	dst = binary.LittleEndian.AppendUint64(appendHeader(dst, consumersMagic), m.Revision)
	dst = append(putUvarint(dst, int64(m.ExceptionsRevision)), boolByte(m.HasExceptions))
	dst = putUvarint(append(dst, boolByte(m.Complete)), int64(len(m.Items)))
	for _, it := range m.Items {
		dst = putUvarint(append(dst, it.Key[:]...), int64(len(it.Tier)))
		dst = append(dst, it.Tier...)
		dst = append(putUvarint(dst, int64(len(it.Exceptions))), it.Exceptions...)
	}
	return dst
}

// IsConsumers reports whether a message from the poll is about consumers and not a snapshot.
func IsConsumers(b []byte) bool {
	return text.HasPrefix(b, consumersMagic)
}

// DecodeConsumers reads a message into m, reusing m.Items. After an error m is not valid.
func DecodeConsumers(b []byte, m *Consumers) error {
	c := cursor{buf: b}
	*m = Consumers{Items: m.Items[:0]}
	c.readAnswered(consumersMagic)
	m.Revision, m.ExceptionsRevision = c.u64(), uint64(c.readUvarint())
	m.HasExceptions, m.Complete = c.readFlag(), c.readFlag()
	for n := c.readWithin(0, MaxConsumers); n > 0 && c.err == nil; n-- {
		var it Consumer
		copy(it.Key[:], c.readBytes(16))
		it.Tier = c.readText(maxTier)
		it.Exceptions = c.readText(MaxExceptions)
		m.Items = append(m.Items, it)
	}
	return c.endMessage()
}

func (c *cursor) readFlag() bool {
	b := c.u8()
	if b > 1 {
		c.failWith(ErrValue)
	}
	return b == 1
}

// AppendQuestion appends a question about consumers to dst; a Consumers message answers it.
func AppendQuestion(dst []byte, keys []keyhash.Key) []byte {
	dst = putUvarint(appendHeader(dst, questionMagic), int64(len(keys)))
	for _, k := range keys {
		dst = append(dst, k[:]...)
	}
	return dst
}

// DecodeQuestion reads a question about 1 to MaxQuestions consumers.
func DecodeQuestion(b []byte) ([]keyhash.Key, error) {
	c := cursor{buf: b}
	c.readAsked(questionMagic)
	n := c.readWithin(1, MaxQuestions)
	var keys []keyhash.Key
	if c.err == nil {
		keys = make([]keyhash.Key, n)
	}
	for i := range keys {
		copy(keys[i][:], c.readBytes(16))
	}
	return keys, c.endMessage()
}
