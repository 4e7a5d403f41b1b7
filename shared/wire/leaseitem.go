package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// ItemKind is the kind of a LeaseItem. It decides which of the item's fields count. See itemParts.
type ItemKind uint8

const (
	// KindAsk asks for tokens for waiting requests, and for tokens to keep. See lease.Ask.
	KindAsk ItemKind = iota
	// KindReport counts used tokens of an optimistic limit. See lease.Account.
	KindReport
	// KindSettle changes a reservation to the cost of its request. Sent again it changes nothing.
	KindSettle
	// KindReturn gives leased tokens back, or reports that they were used. See lease.Back.
	KindReturn
	// KindClaim claims permits for requests in flight. See inflight.Claim.
	KindClaim

	kindCount
)

// LeaseItem is about one bucket.
type LeaseItem struct {
	Kind ItemKind
	// Bucket is the keyed hash of policy and partition key: the control plane never sees the key
	// itself.
	Bucket keyhash.Key
	// Limit is the index of the limit among all limits of the policy set, in the document's order.
	Limit uint32
	// Waiting is the number of waiting requests of Cost tokens each, Keep the number of tokens to
	// keep. In a claim they are the permits beyond Hold that the node needs and would like to have.
	// In a settlement Cost is the reserved cost.
	Waiting, Cost, Keep int64
	// Used are tokens that requests have used.
	Used int64
	// Joined means that this item and the next belong to one request, which needs all or none of
	// them. Each item of such a group has one waiting request. Either all answers have Waiting 1,
	// or all have Waiting 0; then NotBefore is 0 for buckets that had the tokens.
	Joined bool
	// Soon means that the node uses tokens for waiting requests within lease.Soon, or not at all.
	Soon bool
	// ExceptionsRevision is the revision of Consumers up to which the node knows that the bucket
	// has this limit.
	ExceptionsRevision uint64
	// Position, if not 0, means that the Consumer may have a limit of its own with this
	// policy.Limit.Root, which the control plane must look up. Position - 1 is the index of the
	// limit that the node knows. TierGuessed means that the node does not know the consumer's tier
	// either, and has used the default tier.
	Consumer keyhash.Key
	Position uint8
	Root     quota.Span
	// Quota and Burst, if they are not 0, are the caller's own figures. The control plane cuts them
	// to the largest that the limit allows.
	Quota, Burst int64
	// Seq grows with each claim of the node for the bucket. The node has Hold permits of it now,
	// and had Lent permits at last.
	Seq        uint64
	Hold, Lent int64
	// Reserved, if not 0, names the reservations of the waiting requests: the first has the number
	// 1. A settlement is for the reservation with the number Nth, whose request has cost Actual. A
	// return has a name of its own, so that the control plane counts it once.
	Reserved    uint64
	Nth, Actual int64
	// Returned is the number of leased tokens of a Term that no request will use; Used is the
	// number of used tokens.
	Term     lease.Term
	Returned int64
}

// TierGuessed is the Position of an item whose consumer may have been assigned another tier.
const TierGuessed = policy.MaxLimits + 1

// Looks reports whether the item asks for nothing: the bucket is only looked at.
func (it *LeaseItem) Looks() bool { return it.Kind == KindAsk && it.Waiting+it.Keep == 0 }

// The parts of an item, which follow its kind in this order; partJoined and partSoon have no bytes.
const (
	partJoined = 1 << iota
	partSoon
	partOwn      // Quota and Burst
	partConsumer // Position, Consumer and Root
	partName     // Reserved
	partTokens   // Waiting and Keep
	partCost     // Cost
	partUsed     // Used
	partSettled  // Nth and Actual
	partReturned // Term, Returned and Used
	partClaim    // Seq, Hold and Lent
)

// itemParts has the parts that an item of each kind has, and the parts that it may have. It has no
// other parts.
var itemParts = [kindCount]struct{ has, may int64 }{
	KindAsk:    {partTokens | partCost, partJoined | partSoon | partOwn | partConsumer | partName},
	KindReport: {partCost | partUsed, partOwn | partConsumer},
	KindSettle: {partName | partCost | partSettled, partOwn | partConsumer},
	KindReturn: {partName | partReturned, partOwn | partConsumer},
	KindClaim:  {partTokens | partClaim, 0},
}

// partFlags returns the optional parts that the item has.
func (it *LeaseItem) partFlags() (flags int64) {
	for bit, set := range [...]bool{it.Joined, it.Soon, it.Quota > 0, it.Position > 0, it.Reserved > 0} {
		if set {
			flags |= 1 << bit
		}
	}
	return flags
}

func putItem(dst []byte, it *LeaseItem) []byte {
	// The flags say which optional parts follow.
	flags, has := it.partFlags(), int64(0)
	if it.Kind < kindCount {
		has = itemParts[it.Kind].has
		flags &^= has
	}
	parts := flags | has
	dst = append(append(dst, byte(it.Kind)), it.Bucket[:]...)
	dst = putUvarint(putUvarint(putUvarint(dst, flags), int64(it.Limit)), int64(it.ExceptionsRevision))
	// The parts, in the order of their bits.
	if parts&partOwn != 0 {
		dst = putUvarint(putUvarint(dst, it.Quota), it.Burst)
	}
	if parts&partConsumer != 0 {
		dst = putUvarint(append(append(dst, it.Position), it.Consumer[:]...), int64(it.Root))
	}
	if parts&partName != 0 {
		dst = binary.LittleEndian.AppendUint64(dst, it.Reserved)
	}
	if parts&partTokens != 0 {
		dst = putUvarint(putUvarint(dst, it.Waiting), it.Keep)
	}
	if parts&partCost != 0 {
		dst = putUvarint(dst, it.Cost)
	}
	if parts&partUsed != 0 {
		dst = putUvarint(dst, it.Used)
	}
	if parts&partSettled != 0 {
		dst = putUvarint(putUvarint(dst, it.Nth), it.Actual)
	}
	if parts&partReturned != 0 {
		dst = putUvarint(putUvarint(putUvarint(dst, int64(it.Term)), it.Returned), it.Used)
	}
	if parts&partClaim != 0 {
		dst = putUvarint(putUvarint(putUvarint(dst, int64(it.Seq)), it.Hold), it.Lent)
	}
	return dst
}

func (c *cursor) readItem(it *LeaseItem) {
	// The kind and the flags, which say which parts follow.
	it.Kind = ItemKind(c.u8())
	copy(it.Bucket[:], c.readBytes(16))
	flags := c.readUvarint()
	it.Limit = uint32(c.readWithin(0, 1<<20))
	it.ExceptionsRevision = uint64(c.readUvarint())
	if it.Kind >= kindCount || flags&^itemParts[it.Kind].may != 0 {
		c.failWith(ErrValue)
		return
	}
	it.Joined, it.Soon = flags&partJoined != 0, flags&partSoon != 0
	parts := flags | itemParts[it.Kind].has
	// The parts, in the order of their bits.
	if parts&partOwn != 0 {
		it.Quota, it.Burst = c.readWithin(1, maxTokens), c.readWithin(1, maxTokens)
	}
	if parts&partConsumer != 0 {
		it.Position = uint8(c.readWithin(1, TierGuessed))
		copy(it.Consumer[:], c.readBytes(16))
		it.Root = quota.Span(c.readWithin(0, maxRoot))
	}
	if parts&partName != 0 {
		if it.Reserved = c.u64(); it.Reserved == 0 {
			c.failWith(ErrValue)
		}
	}
	if parts&partTokens != 0 {
		it.Waiting, it.Keep = c.readWithin(0, maxWaiting), c.readWithin(0, maxTokens)
	}
	if parts&partCost != 0 {
		it.Cost = c.readWithin(1, maxTokens)
	}
	if parts&partUsed != 0 {
		it.Used = c.readWithin(1, maxTokens)
	}
	if parts&partSettled != 0 {
		it.Nth, it.Actual = c.readWithin(1, maxWaiting), c.readWithin(0, policy.MaxCost)
	}
	if parts&partReturned != 0 {
		it.Term, it.Returned = lease.Term(c.readWithin(1, maxTerm)), c.readWithin(0, maxTokens)
		it.Used = c.readWithin(0, maxTokens)
	}
	if parts&partClaim != 0 {
		it.Seq, it.Hold = uint64(c.readWithin(1, maxSeq)), c.readWithin(0, maxHold)
		it.Lent = c.readWithin(0, it.Hold)
	}
}
