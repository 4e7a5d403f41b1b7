package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/policy"
)

const (
	enforcementMagic  = "WREN"
	enforcementFormat = 1
)

// Bounds of the message about enforcement.
const (
	// MaxOrders is how many orders count at a time, MaxBans how many keys may be banned.
	MaxOrders = 64
	MaxBans   = 1024
	maxName   = 63
)

// Enforcement is what operators have ordered beside the policy set: all of it as of Revision.
type Enforcement struct {
	Revision uint64
	Orders   []Order
	// Bans are by key, ascending, each once.
	Bans []Ban
}

// Order is a kill switch: what counts instead of the document's own word for some policies. Read from a message, its texts alias
// the message.
type Order struct {
	// State is policy.EnforcedAll, policy.EnforcedShadow or policy.EnforcedOff.
	State policy.Enforced
	// Percent is the share of the partition keys that it is about, 1 to 100.
	Percent uint8
	// Expires is the Unix time in milliseconds at which it ends; 0: when it is taken back.
	Expires int64
	// Policy and Tier are the names of those that it is about; empty: all.
	Policy, Tier []byte
}

// Ban says that requests of a partition key are refused. Expires is as an Order's.
type Ban struct {
	Key     [16]byte
	Expires int64
}

// AppendEnforcement appends the message to dst.
func AppendEnforcement(dst []byte, m *Enforcement) []byte {
	dst = append(append(dst, enforcementMagic...), enforcementFormat)
	dst = binary.LittleEndian.AppendUint64(dst, m.Revision)
	dst = putUvarint(dst, int64(len(m.Orders)))
	for i := range m.Orders {
		o := &m.Orders[i]
		dst = putUvarint(append(dst, byte(o.State), o.Percent), o.Expires)
		dst = append(putUvarint(dst, int64(len(o.Policy))), o.Policy...)
		dst = append(putUvarint(dst, int64(len(o.Tier))), o.Tier...)
	}
	dst = putUvarint(dst, int64(len(m.Bans)))
	for i := range m.Bans {
		dst = putUvarint(append(dst, m.Bans[i].Key[:]...), m.Bans[i].Expires)
	}
	return dst
}

// IsEnforcement says whether a message from the poll is about enforcement rather than a snapshot.
func IsEnforcement(b []byte) bool {
	return len(b) >= len(enforcementMagic) && string(b[:len(enforcementMagic)]) == enforcementMagic
}

// DecodeEnforcement reads a message into m, reusing its slices. After an error nothing in m counts.
func DecodeEnforcement(b []byte, m *Enforcement) error {
	c := cursor{buf: b}
	c.header(enforcementMagic, enforcementFormat)
	m.Revision = c.u64()
	m.Orders, m.Bans = m.Orders[:0], m.Bans[:0]
	for n := c.within(0, MaxOrders); n > 0 && c.err == nil; n-- {
		o := Order{State: policy.Enforced(c.u8()), Percent: c.u8(), Expires: c.uvarint()}
		o.Policy = c.text(maxName)
		o.Tier = c.text(maxTier)
		known := o.State == policy.EnforcedAll || o.State == policy.EnforcedShadow || o.State == policy.EnforcedOff
		if !known || o.Percent < 1 || o.Percent > 100 {
			c.fail(ErrValue)
		}
		m.Orders = append(m.Orders, o)
	}
	for n := c.within(0, MaxBans); n > 0 && c.err == nil; n-- {
		var ban Ban
		copy(ban.Key[:], c.bytes(16))
		ban.Expires = c.uvarint()
		if last := len(m.Bans) - 1; last >= 0 && string(m.Bans[last].Key[:]) >= string(ban.Key[:]) {
			c.fail(ErrValue)
		}
		m.Bans = append(m.Bans, ban)
	}
	return c.end()
}
