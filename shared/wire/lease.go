package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/lease"
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
	// Version is the policy set that the items' Limit refers to.
	Version uint64
	Items   []LeaseItem
}

// ItemState is the result for one bucket.
type ItemState uint8

// ItemGranted has a grant, which may be empty. ItemUnknown means that the request's version or
// limit is not known or has been replaced; the node should fetch the newest snapshot.
// ItemUnavailable means that the part of the store with the bucket has not answered for NotBefore,
// although other parts do; then the failure ladder decides about this bucket only. Nodes that do
// not know this state treat the whole reply as a failure. ItemSuspended means that the quota is 0,
// even if the node knows another quota; NotBefore is quota.Never.
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
	// Nodes is the number of nodes that share the buckets, for the local share when the control
	// plane is away.
	Nodes int64
	Items []LeaseAnswer
}

// LeaseAnswer is the result for one bucket; see lease.Grant.
type LeaseAnswer struct {
	State         ItemState
	Waiting, Keep int64
	// NotBefore is quota.Never where no wait helps.
	NotBefore quota.Span
	Level     int64
	// Debt is the units missing from a full bucket of an optimistic limit, including the report. It
	// is more than a full bucket if too much was used.
	Debt int64
	// Delay is, for a leaky bucket, the time by which the first of the granted waiting requests
	// must be delayed. Each further request waits longer by the time that its cost takes to drain.
	// At most maxDelay.
	Delay quota.Span
	// FullAfter is how long a bucket of a window algorithm takes until it is full.
	FullAfter quota.Span
	// For, if not 0, is how long the Keep permits in the answer to a claim last; Level is the
	// number of free permits. A claim with For 0 in its answer got no permits, and the node keeps
	// its old permits. See inflight.Answer.
	For quota.Span
	// Term is the term of the granted tokens. Doubt means that the bucket may lack tokens that were
	// not used. See lease.Grant.
	Term  lease.Term
	Doubt bool
}

// MaxFullAfter is the longest time until a bucket is full that an answer can contain. It is longer
// than any window takes: twice its length, and the leases. A bucket with a large debt may take
// longer.
const MaxFullAfter = 3 * quota.MaxWindow

// Bounds of the numbers in lease messages.
const (
	maxWaiting = 1 << 20
	maxTokens  = quota.MaxUnits
	// MaxNodes is the most nodes that can share a bucket.
	MaxNodes = 1 << 20
	maxDelay = int64(quota.Hour)
	maxHold  = 1 << 20
	// maxSeq is the largest number that the arithmetic of every store holds exactly.
	maxSeq  = 1 << 53
	maxFor  = int64(quota.Hour)
	maxTerm = 1<<32 - 1
)

// AppendLeaseRequest appends the message to dst.
func AppendLeaseRequest(dst []byte, m LeaseRequest) []byte {
	dst = putText(appendHeader(dst, leaseRequestMagic), m.Node)
	dst = binary.LittleEndian.AppendUint64(dst, m.Boot)
	dst = binary.LittleEndian.AppendUint64(dst, m.Seq)
	dst = binary.LittleEndian.AppendUint64(dst, m.Version)
	dst = putUvarint(dst, int64(len(m.Items)))
	for i := range m.Items {
		dst = putItem(dst, &m.Items[i])
	}
	return dst
}

// DecodeLeaseRequest reads a message. It refuses more than MaxItems items, a node id longer than
// MaxNodeID, numbers out of range, and an item that is joined to no ask.
func DecodeLeaseRequest(b []byte) (LeaseRequest, error) {
	c := cursor{buf: b}
	c.readAsked(leaseRequestMagic)
	m := LeaseRequest{Node: string(c.readText(MaxNodeID)), Boot: c.u64(), Seq: c.u64(), Version: c.u64()}
	n := c.readWithin(0, MaxItems)
	if c.err == nil {
		m.Items = make([]LeaseItem, n)
	}
	joined := false // The item before and this item belong to one request.
	for i := range m.Items {
		c.readItem(&m.Items[i])
		if joined && m.Items[i].Kind != KindAsk {
			c.failWith(ErrValue)
		}
		joined = m.Items[i].Joined
	}
	if joined {
		c.failWith(ErrValue)
	}
	if err := c.endMessage(); err != nil {
		return LeaseRequest{}, err
	}
	return m, nil
}
