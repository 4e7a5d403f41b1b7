package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
)

const penaltiesMagic = "WRPP"

// Bounds of the messages about penalties.
const (
	// MaxOffences is the largest number of offences in one report.
	MaxOffences = 128
	// MaxPenalties is the largest number of penalties in one message.
	MaxPenalties = 1024
	// MaxPenaltyLevel is the highest level.
	MaxPenaltyLevel = 64
	// maxMillis is later than every instant in Unix milliseconds that a message may have.
	maxMillis = 1 << 45
)

// Offences is the section about the penalties that the worker has begun or prolonged.
type Offences struct {
	// Node is the report's node. Read from a message, it aliases the message.
	Node  []byte
	Items []Offence
}

// Offence is a penalty that a node has begun. Read from a message, Policy and Shown alias it.
type Offence struct {
	// Key is the caller: a match.Subject's Key, or the result of match.ShadowOf for it.
	Key keyhash.Key
	// Known is the Penalties.Revision of the caller that the node had.
	Known uint64
	// Policy is the name of the policy that refused the caller.
	Policy []byte
	// Level and Until are a penalty.Record, Forgotten is when it is forgotten, in Unix
	// milliseconds.
	Level            uint8
	Until, Forgotten int64
	// Shadow means that the penalty refuses nothing. Prolonged means that the caller was already
	// under it.
	Shadow, Prolonged bool
	// Version is the policy set that the shown parts refer to.
	Version uint64
	Identity
}

func appendOffences(dst []byte, m *Offences) []byte {
	dst = putUvarint(dst, int64(len(m.Items)))
	for i := range m.Items {
		o := &m.Items[i]
		dst = putRaw(dst, o.Key[:])
		dst = putRaw(putUvarint(dst, int64(len(o.Policy))), o.Policy)
		flags := int64(boolByte(o.Shadow)) | int64(boolByte(o.Prolonged))<<1
		numbers := [...]int64{int64(o.Known), int64(o.Level), o.Until, o.Forgotten, flags, int64(o.Version)}
		for _, n := range numbers {
			dst = putUvarint(dst, n)
		}
		dst = putRaw(putUvarint(putRaw(dst, o.Consumer[:]), int64(len(o.Shown))), o.Shown)
	}
	return dst
}

func (c *cursor) readOffences() *Offences {
	m := &Offences{}
	for n := c.readWithin(1, MaxOffences); n > 0 && c.err == nil; n-- {
		var o Offence
		copy(o.Key[:], c.readBytes(keyhash.Size))
		o.Policy = c.readText(maxName)
		o.Known, o.Level = uint64(c.readWithin(0, maxVersion)), uint8(c.readWithin(1, MaxPenaltyLevel))
		o.Until = c.readWithin(1, maxMillis)
		o.Forgotten = c.readWithin(o.Until, maxMillis)
		flags := c.readWithin(0, 3)
		o.Shadow, o.Prolonged = flags&1 != 0, flags&2 != 0
		o.Version = uint64(c.readWithin(0, maxVersion))
		copy(o.Consumer[:], c.readBytes(keyhash.Size))
		o.Shown = c.readShown()
		if len(o.Policy) == 0 {
			c.failWith(ErrValue)
		}
		m.Items = append(m.Items, o)
	}
	return m
}

// readShown reads the shown parts of an Identity.
func (c *cursor) readShown() []byte {
	all := c.readText(MaxShown)
	for rest := all; len(rest) > 0; {
		if len(rest) < 2 || rest[0] >= policy.MaxShown || int(rest[1]) > min(len(rest)-2, policy.MaxShownText) {
			c.failWith(ErrValue)
			break
		}
		rest = rest[2+int(rest[1]):]
	}
	return all
}

// Penalties are changes of penalties, for nodes.
type Penalties struct {
	// Revision grows with each change; the message has all changes up to it that the node lacks.
	Revision uint64
	// Cleared is the revision at which all penalties were pardoned last, 0 for never. Earlier
	// penalties do not count any more.
	Cleared uint64
	Items   []Penalty
}

// Penalty is the penalty of one caller. A Level of 0 is a pardon.
type Penalty struct {
	Key   keyhash.Key
	Level uint8
	Until int64
}

// AppendPenalties appends the message to dst.
func AppendPenalties(dst []byte, m *Penalties) []byte {
	dst = appendHeader(dst, penaltiesMagic)
	dst = binary.LittleEndian.AppendUint64(dst, m.Revision)
	dst = binary.LittleEndian.AppendUint64(dst, m.Cleared)
	dst = putUvarint(dst, int64(len(m.Items)))
	for i := range m.Items {
		p := &m.Items[i]
		dst = putUvarint(append(append(dst, p.Key[:]...), p.Level), p.Until)
	}
	return dst
}

// IsPenalties reports whether a message from the poll is about penalties.
func IsPenalties(b []byte) bool {
	return text.HasPrefix(b, penaltiesMagic)
}

// DecodePenalties reads a message into m, reusing its slice. After an error m is not valid.
func DecodePenalties(b []byte, m *Penalties) error {
	c := cursor{buf: b}
	c.readAnswered(penaltiesMagic)
	m.Revision, m.Cleared, m.Items = c.u64(), c.u64(), m.Items[:0]
	if m.Revision > maxVersion || m.Cleared > m.Revision {
		c.failWith(ErrValue)
	}
	for n := c.readWithin(0, MaxPenalties); n > 0 && c.err == nil; n-- {
		var p Penalty
		copy(p.Key[:], c.readBytes(keyhash.Size))
		p.Level = c.u8()
		p.Until = c.readWithin(0, maxMillis)
		if p.Level > MaxPenaltyLevel {
			c.failWith(ErrValue)
		}
		m.Items = append(m.Items, p)
	}
	return c.endMessage()
}
