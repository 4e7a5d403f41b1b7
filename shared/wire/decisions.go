package wire

import (
	"math"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Bounds of the section about decisions.
const (
	MaxRefusals = 32
	MaxCallers  = 64
	MaxCounts   = 256

	// MaxShown is the longest encoding of the shown parts of a request; see Identity.
	MaxShown = policy.MaxShown * (2 + policy.MaxShownText)

	// BanPolicy replaces the policy number for requests that bans refuse. Few policy sets have a
	// policy with this number; in such a set its own refusals are counted with the bans.
	BanPolicy = policy.MaxPolicies - 1
	// The Reason of such a refusal is BanReason plus the match.Ban.
	BanReason = 128

	maxCount   = 1 << 40
	maxVersion = 1 << 53
)

// Decisions is the section about the requests since the worker's last report: the number of refused
// requests, a sample of the refused callers, and the heaviest callers.
type Decisions struct {
	// Node is the report's node. Read from a message, Node and the shown parts alias the message.
	Node []byte
	// Version is the policy set that policies, tiers, limits and shown parts refer to.
	Version uint64
	// Counts are exact, but leave out policies and tiers beyond MaxCounts.
	Counts   []RefusedCount
	Refusals []Refusal
	// Callers are the heaviest callers, found by sampling.
	Callers []CallerCount
}

// RefusedCount is the number of requests that a policy refused to callers of a tier.
type RefusedCount struct {
	Policy uint32
	// Tier is 1 + its index in the policy set; 0 if the policy does not depend on the tier.
	Tier    uint8
	Refused int64
}

// Identity describes the caller of a request, as far as a node may report it.
type Identity struct {
	// Consumer is the keyed hash of the consumer; zero if there is none or it is not reported.
	Consumer keyhash.Key
	// Shown are the parts of the request that may be shown: for each its index in the policy set's
	// list, its length, and at most policy.MaxShownText bytes of its value.
	Shown []byte
}

// Clone returns a copy with memory of its own.
func (id *Identity) Clone() Identity {
	return Identity{Consumer: id.Consumer, Shown: append([]byte(nil), id.Shown...)}
}

// CallerCount is a bucket and the data about its caller that may be reported.
type CallerCount struct {
	Policy uint32
	Tier   uint8
	// Bucket is the keyed hash of policy and partition key.
	Bucket keyhash.Key
	Identity
	// Count is the number of requests; up to Over of them may belong to another caller.
	Count, Over int64
}

// Refusal is a caller that a policy refused, with the first refusal.
type Refusal struct {
	CallerCount
	// Limit is as in a LeaseItem. Reason is a policy.Reason and Source a policy.DecisionSource.
	Limit          uint32
	Reason, Source uint8
	// Cost and Left are tokens: the cost of the request, and the tokens left in the bucket.
	Cost, Left int64
	// Retry is how long the caller had to wait; 0 if no wait would have helped. Ago is how long ago
	// the refusal was.
	Retry, Ago quota.Span
}

// appendDecisions appends the section to dst. Every field is a number or a run of bytes, which
// keeps the filter small.
func appendDecisions(dst []byte, m *Decisions) []byte {
	dst = putUvarint(putUvarint(dst, int64(m.Version)), int64(len(m.Counts)))
	for i := range m.Counts {
		c := &m.Counts[i]
		dst = putUvarint(putUvarint(putUvarint(dst, int64(c.Policy)), int64(c.Tier)), c.Refused)
	}
	dst = putUvarint(dst, int64(len(m.Refusals)))
	for i := range m.Refusals {
		r := &m.Refusals[i]
		dst = putCaller(dst, &r.CallerCount)
		numbers := [...]int64{
			int64(r.Limit), int64(r.Reason), int64(r.Source), r.Cost, r.Left, int64(r.Retry), int64(r.Ago),
		}
		for _, n := range numbers {
			dst = putUvarint(dst, n)
		}
	}
	dst = putUvarint(dst, int64(len(m.Callers)))
	for i := range m.Callers {
		dst = putCaller(dst, &m.Callers[i])
	}
	return dst
}

func putCaller(dst []byte, c *CallerCount) []byte {
	dst = putUvarint(putUvarint(dst, int64(c.Policy)), int64(c.Tier))
	dst = putRaw(putRaw(dst, c.Bucket[:]), c.Consumer[:])
	dst = putRaw(putUvarint(dst, int64(len(c.Shown))), c.Shown)
	return putUvarint(putUvarint(dst, c.Count), c.Over)
}

// putRaw appends bytes. It is not inlined, for the size of the filter.
//
//go:noinline
func putRaw(dst, b []byte) []byte { return append(dst, b...) }

func (c *cursor) readDecisions() *Decisions {
	m := &Decisions{Version: uint64(c.readWithin(0, maxVersion))}
	for n := c.readWithin(0, MaxCounts); n > 0 && c.err == nil; n-- {
		count := RefusedCount{Policy: c.readPolicy(), Tier: c.readSmall(), Refused: c.readWithin(0, maxCount)}
		m.Counts = append(m.Counts, count)
	}
	for n := c.readWithin(0, MaxRefusals); n > 0 && c.err == nil; n-- {
		r := Refusal{CallerCount: c.readCaller()}
		r.Limit = uint32(c.readWithin(0, policy.MaxSetLimits-1))
		r.Reason, r.Source = c.readSmall(), c.readSmall()
		r.Cost, r.Left = c.readWithin(0, policy.MaxCost), c.readWithin(0, quota.MaxUnits)
		r.Retry = quota.Span(c.readWithin(0, int64(quota.MaxWindow)))
		r.Ago = quota.Span(c.readWithin(0, int64(quota.Hour)))
		m.Refusals = append(m.Refusals, r)
	}
	for n := c.readWithin(0, MaxCallers); n > 0 && c.err == nil; n-- {
		m.Callers = append(m.Callers, c.readCaller())
	}
	return m
}

// readSmall reads a number below 256.
func (c *cursor) readSmall() uint8 { return uint8(c.readWithin(0, math.MaxUint8)) }

func (c *cursor) readPolicy() uint32 { return uint32(c.readWithin(0, policy.MaxPolicies-1)) }

func (c *cursor) readCaller() (who CallerCount) {
	who.Policy, who.Tier = c.readPolicy(), c.readSmall()
	copy(who.Bucket[:], c.readBytes(16))
	copy(who.Consumer[:], c.readBytes(16))
	who.Shown = c.readShown()
	who.Count = c.readWithin(0, maxCount)
	who.Over = c.readWithin(0, who.Count)
	return who
}
