package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	leaseRequestMagic = "WRLQ"
	leaseReplyMagic   = "WRLR"
)

// LeaseRequest asks for tokens of up to MaxItems buckets.
type LeaseRequest struct {
	// Node names the Envoy; Boot is random for each process of it.
	Node string
	Boot uint64
	// Seq grows by one with each request of a worker; the reply repeats it.
	Seq uint64
	// Version is the policy set that Limit of the items refers to.
	Version uint64
	Items   []LeaseItem
}

// LeaseItem asks for one bucket.
type LeaseItem struct {
	// Bucket is the keyed hash of policy and partition key: the control plane never sees the key
	// itself.
	Bucket keyhash.Key
	// Limit is the index of the limit among all limits of the policy set, in the document's order.
	Limit uint32
	// Waiting requests of Cost tokens each, and tokens to Keep. See lease.Ask.
	Waiting, Cost, Keep int64
	// Used are tokens of an optimistic limit that were used already; such an item asks for no
	// tokens. See lease.Account.
	Used int64
	// Joined: this item and the next belong to one request, which needs all or none of them. Each
	// item of such a group has one waiting request. Either all answers have Waiting 1, or none has;
	// then NotBefore is 0 for buckets that had the tokens.
	Joined bool
	// Soon: the node uses what waiting requests are granted within lease.Soon, or not at all.
	Soon bool
	// ExceptionsRevision is that of Consumers up to which the node knows that the bucket has this
	// limit.
	ExceptionsRevision uint64
	// Position, if not 0, means that the Consumer may have a limit of its own, which the control
	// plane must look up: the one with this policy.Limit.Root. Position - 1 is the index of the one
	// that the node knows. TierGuessed: it does not know the consumer's tier either, and has taken
	// it for the default one.
	Consumer keyhash.Key
	Position uint8
	Root     quota.Span
	// Quota and Burst, if they are not 0, are the caller's own figures. The control plane cuts them
	// to the most that the limit allows, whatever a node says.
	Quota, Burst int64
	// Seq, if not 0, makes the item a claim of permits for requests in flight; it grows with each
	// claim that the node makes of the bucket. Waiting, of Cost 1, and Keep are then permits that
	// the node needs and would like to have beyond the Hold that it holds, of which Lent last. See
	// inflight.Claim. A claim belongs to no group.
	Seq        uint64
	Hold, Lent int64
	// Reserved, if not 0, names what the waiting requests are granted as reservations: the first is
	// its number 1. With Nth, the item asks for nothing and settles the reservation of that number,
	// which was of Cost: its request has cost Actual. An item that was answered may be sent again
	// and changes nothing.
	Reserved    uint64
	Nth, Actual int64
	// Term, if not 0, makes the item say what has become of leased tokens of that term: Returned
	// are those that no request will use, and Used those that some have. See lease.Back. Reserved
	// is then the item's own name: the control plane takes it once.
	Term     lease.Term
	Returned int64
}

// TierGuessed is the Position of an item whose consumer may have been assigned another tier.
const TierGuessed = policy.MaxLimits + 1

// The flags of an item say which parts follow its figures, in this order; flagJoined and flagSoon
// have none.
const (
	flagJoined = 1 << iota
	flagSoon
	flagUsed
	flagOwn
	flagConsumer
	flagClaim
	flagReserves
	flagSettles
	flagReturns

	flagsKnown = flagReturns<<1 - 1
)

// ItemState is the outcome for one bucket.
type ItemState uint8

// ItemGranted carries a grant, which may be empty. ItemUnknown: the request's version or limit is
// not known or has been replaced; the node should fetch the newest snapshot. ItemUnavailable: the
// part of the store with the bucket has not answered for NotBefore, although others do; the failure
// ladder decides about this bucket only. Nodes that do not know this state treat the whole reply as
// a failure. ItemSuspended: the quota is 0, whatever the node takes it for; NotBefore is
// quota.Never.
const (
	ItemGranted ItemState = iota
	ItemUnknown
	ItemUnavailable
	ItemSuspended
)

// stateDoubt is set beside the state of an answer with Doubt.
const stateDoubt = 0x80

// LeaseReply answers a LeaseRequest item by item, in the same order.
type LeaseReply struct {
	Seq uint64
	// Nodes is how many nodes share the buckets, for the local share when the control plane is
	// away.
	Nodes int64
	Items []LeaseAnswer
}

// LeaseAnswer is the outcome for one bucket; see lease.Grant.
type LeaseAnswer struct {
	State         ItemState
	Waiting, Keep int64
	// NotBefore is quota.Never where no wait helps.
	NotBefore quota.Span
	Level     int64
	// Debt is the units missing from a full bucket of an optimistic limit, including the report. It
	// is more than the bucket holds if too much was used.
	Debt int64
	// Delay is, for a leaky bucket, how long the first of the granted waiting requests must be held
	// back; each further one waits longer by the time that its cost takes to drain. At most
	// maxDelay.
	Delay quota.Span
	// FullAfter is how long a bucket of a window algorithm takes until it is full.
	FullAfter quota.Span
	// For, if not 0, is how long the Keep permits last that answer a claim; Level is how many are
	// free. A claim with For 0 in its answer has got none, and keeps what it had. See
	// inflight.Answer.
	For quota.Span
	// Term is that of the tokens that were granted, and Doubt says that the bucket may lack tokens
	// that were not used. See lease.Grant.
	Term  lease.Term
	Doubt bool
}

// MaxFullAfter is the longest time until a bucket is full that an answer can say. It is above what
// any window takes: twice its length, and the leases. A bucket that owes much may take longer.
const MaxFullAfter = 3 * quota.MaxWindow

// Bounds of the numbers in lease messages.
const (
	maxWaiting = 1 << 20
	maxTokens  = quota.MaxUnits
	// MaxNodes is the most nodes that can share a bucket.
	MaxNodes = 1 << 20
	maxDelay = int64(quota.Hour)
	maxHold  = 1 << 20
	// maxSeq is what the arithmetic of every store holds exactly.
	maxSeq  = 1 << 53
	maxFor  = int64(quota.Hour)
	maxTerm = 1<<32 - 1
)

// AppendLeaseRequest appends the message to dst.
func AppendLeaseRequest(dst []byte, m LeaseRequest) []byte {
	dst = putText(header(dst, leaseRequestMagic), m.Node)
	dst = binary.LittleEndian.AppendUint64(dst, m.Boot)
	dst = binary.LittleEndian.AppendUint64(dst, m.Seq)
	dst = binary.LittleEndian.AppendUint64(dst, m.Version)
	dst = putUvarint(dst, int64(len(m.Items)))
	for i := range m.Items {
		dst = putItem(dst, &m.Items[i])
	}
	return dst
}

// The flags of an item.
func (it *LeaseItem) flags() (flags int64) {
	for bit, set := range [...]bool{
		it.Joined, it.Soon, it.Used > 0, it.Quota > 0, it.Position > 0, it.Seq > 0, it.Reserved > 0, it.Nth > 0,
		it.Term != 0,
	} {
		if set {
			flags |= 1 << bit
		}
	}
	return flags
}

func putItem(dst []byte, it *LeaseItem) []byte {
	flags := it.flags()
	dst = append(dst, it.Bucket[:]...)
	for _, n := range [...]int64{
		flags, int64(it.Limit), it.Waiting, it.Cost, it.Keep, int64(it.ExceptionsRevision),
	} {
		dst = putUvarint(dst, n)
	}
	if flags&flagUsed != 0 {
		dst = putUvarint(dst, it.Used)
	}
	if flags&flagOwn != 0 {
		dst = putUvarint(putUvarint(dst, it.Quota), it.Burst)
	}
	if flags&flagConsumer != 0 {
		dst = putUvarint(append(append(dst, it.Position), it.Consumer[:]...), int64(it.Root))
	}
	if flags&flagClaim != 0 {
		dst = putUvarint(putUvarint(putUvarint(dst, int64(it.Seq)), it.Hold), it.Lent)
	}
	if flags&flagReserves != 0 {
		dst = binary.LittleEndian.AppendUint64(dst, it.Reserved)
	}
	if flags&flagSettles != 0 {
		dst = putUvarint(putUvarint(dst, it.Nth), it.Actual)
	}
	if flags&flagReturns != 0 {
		dst = putUvarint(putUvarint(dst, int64(it.Term)), it.Returned)
	}
	return dst
}

// DecodeLeaseRequest reads a message. It refuses more than MaxItems items, a node id longer than
// MaxNodeID, and numbers out of range.
func DecodeLeaseRequest(b []byte) (LeaseRequest, error) {
	c := cursor{buf: b}
	c.asked(leaseRequestMagic)
	m := LeaseRequest{Node: string(c.text(MaxNodeID)), Boot: c.u64(), Seq: c.u64(), Version: c.u64()}
	n := c.within(0, MaxItems)
	if c.err == nil {
		m.Items = make([]LeaseItem, n)
	}
	for i := range m.Items {
		c.item(&m.Items[i])
		if m.Items[i].Joined && i == len(m.Items)-1 {
			c.fail(ErrValue)
		}
	}
	if err := c.end(); err != nil {
		return LeaseRequest{}, err
	}
	return m, nil
}

func (c *cursor) item(it *LeaseItem) {
	copy(it.Bucket[:], c.bytes(16))
	flags := c.within(0, flagsKnown)
	it.Joined, it.Soon = flags&flagJoined != 0, flags&flagSoon != 0
	it.Limit = uint32(c.within(0, 1<<20))
	it.Waiting = c.within(0, maxWaiting)
	it.Cost = c.within(1, maxTokens)
	it.Keep = c.within(0, maxTokens)
	it.ExceptionsRevision = uint64(c.uvarint())
	if flags&flagUsed != 0 {
		it.Used = c.within(1, maxTokens)
	}
	if flags&flagOwn != 0 {
		it.Quota, it.Burst = c.within(1, maxTokens), c.within(1, maxTokens)
	}
	if flags&flagConsumer != 0 {
		it.Position = uint8(c.within(1, TierGuessed))
		copy(it.Consumer[:], c.bytes(16))
		it.Root = quota.Span(c.within(0, maxRoot))
	}
	if flags&flagClaim != 0 {
		c.claim(it)
	}
	if flags&flagReserves != 0 {
		if it.Reserved = c.u64(); it.Reserved == 0 || it.Seq > 0 {
			c.fail(ErrValue)
		}
	}
	if flags&flagSettles != 0 {
		c.settlement(it)
	}
	if flags&flagReturns != 0 {
		c.returned(it)
	}
}

// claim reads a claim of permits, which wants nothing else.
func (c *cursor) claim(it *LeaseItem) {
	it.Seq = uint64(c.within(1, maxSeq))
	it.Hold = c.within(0, maxHold)
	it.Lent = c.within(0, it.Hold)
	if it.Joined || it.Cost != 1 || it.Used > 0 || it.Position > 0 || it.Quota > 0 {
		c.fail(ErrValue)
	}
}

// settlement reads which reservation is settled, and its cost.
func (c *cursor) settlement(it *LeaseItem) {
	it.Nth, it.Actual = c.within(1, maxWaiting), c.within(0, policy.MaxCost)
	if it.Reserved == 0 || it.Waiting > 0 || it.Keep > 0 || it.Used > 0 || it.Joined {
		c.fail(ErrValue)
	}
}

// returned reads the term of leased tokens, and how many of them are returned.
func (c *cursor) returned(it *LeaseItem) {
	it.Term, it.Returned = lease.Term(c.within(1, maxTerm)), c.within(0, maxTokens)
	if it.Reserved == 0 || it.Nth > 0 || it.Waiting > 0 || it.Keep > 0 || it.Joined {
		c.fail(ErrValue)
	}
}
