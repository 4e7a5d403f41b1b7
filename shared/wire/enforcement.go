package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
)

const enforcementMagic = "WREN"

// Bounds of the message about enforcement.
const (
	// MaxOrders bounds the orders in force, MaxBans the banned keys, MaxFreed the changed buckets
	// in one message.
	MaxOrders = 64
	MaxBans   = 1024
	MaxFreed  = 256
	maxName   = 63
)

// Enforcement is all orders and bans of operators at Revision.
type Enforcement struct {
	Revision uint64
	Orders   []Order
	// Bans are sorted by key, each key once.
	Bans []Ban
	// Freed are the buckets that operators changed lately. Nodes must forget their data about them,
	// except the tokens that they hold.
	Freed []Freed
}

// Order is an enforcement order: it replaces the enforcement of the document for some policies.
// Read from a message, its texts alias the message.
type Order struct {
	// State is policy.EnforcedAll, policy.EnforcedShadow or policy.EnforcedOff.
	State policy.Enforced
	// Percent is the share of the partition keys that it applies to, 1 to 100.
	Percent uint8
	// Expires is the Unix time in milliseconds at which it ends; 0 if it has no end.
	Expires int64
	// Policy and Tier are the names of the policy and the tier that it applies to; empty for all.
	Policy, Tier []byte
}

// Ban refuses all requests of a partition key. Expires is as in Order.
type Ban struct {
	Key     keyhash.Key
	Expires int64
}

// Freed is a changed bucket. Revision is the revision of the change: a node at this revision has
// handled it. Full means that the bucket is full now, and that each node's own part of it is full.
type Freed struct {
	Bucket   keyhash.Key
	Revision uint64
	Full     bool
}

// AppendEnforcement appends the message to dst.
func AppendEnforcement(dst []byte, m *Enforcement) []byte {
	dst = appendHeader(dst, enforcementMagic)
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
	dst = putUvarint(dst, int64(len(m.Freed)))
	for i := range m.Freed {
		f := &m.Freed[i]
		dst = append(binary.LittleEndian.AppendUint64(append(dst, f.Bucket[:]...), f.Revision), boolByte(f.Full))
	}
	return dst
}

// IsEnforcement reports whether a message from the poll is about enforcement and not a snapshot.
func IsEnforcement(b []byte) bool {
	return text.HasPrefix(b, enforcementMagic)
}

// DecodeEnforcement reads a message into m, reusing its slices. After an error m is not valid.
func DecodeEnforcement(b []byte, m *Enforcement) error {
	c := cursor{buf: b}
	c.readAnswered(enforcementMagic)
	m.Revision = c.u64()
	m.Orders, m.Bans, m.Freed = m.Orders[:0], m.Bans[:0], m.Freed[:0]
	// The orders.
	for n := c.readWithin(0, MaxOrders); n > 0 && c.err == nil; n-- {
		o := Order{State: policy.Enforced(c.u8()), Percent: c.u8(), Expires: c.readUvarint()}
		o.Policy = c.readText(maxName)
		o.Tier = c.readText(maxTier)
		known := o.State == policy.EnforcedAll || o.State == policy.EnforcedShadow || o.State == policy.EnforcedOff
		if !known || o.Percent < 1 || o.Percent > 100 {
			c.failWith(ErrValue)
		}
		m.Orders = append(m.Orders, o)
	}
	// The bans, in rising order.
	for n := c.readWithin(0, MaxBans); n > 0 && c.err == nil; n-- {
		var ban Ban
		copy(ban.Key[:], c.readBytes(16))
		ban.Expires = c.readUvarint()
		if last := len(m.Bans) - 1; last >= 0 && string(m.Bans[last].Key[:]) >= string(ban.Key[:]) {
			c.failWith(ErrValue)
		}
		m.Bans = append(m.Bans, ban)
	}
	// The changed buckets.
	for n := c.readWithin(0, MaxFreed); n > 0 && c.err == nil; n-- {
		var freed Freed
		copy(freed.Bucket[:], c.readBytes(16))
		freed.Revision = c.u64()
		full := c.u8()
		freed.Full = full == 1
		if full > 1 {
			c.failWith(ErrValue)
		}
		m.Freed = append(m.Freed, freed)
	}
	return c.endMessage()
}
