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

	// BanPolicy stands in place of a policy for requests that bans refuse. Few policy sets have a
	// policy of this number, in which case its own refusals are counted with them.
	BanPolicy = policy.MaxPolicies - 1
	// BanReason and what is banned, as match.Ban numbers it, is the Reason of such a refusal.
	BanReason = 128

	maxCount   = 1 << 40
	maxVersion = 1 << 53
)

// Decisions is the section about the requests since the worker's last report: how many it refused,
// a sample of the refused callers, and the heaviest callers.
type Decisions struct {
	// Node is that of the report. Read from a message, Node and the shown parts alias it.
	Node []byte
	// Version is the policy set to which policies, tiers, limits and shown parts refer.
	Version uint64
	// Counts are exact, but leave out policies and tiers beyond MaxCounts.
	Counts   []RefusedCount
	Refusals []Refusal
	// Callers are the heaviest callers, found by sampling.
	Callers []CallerCount
}

// RefusedCount is how many requests a policy refused to callers of a tier.
type RefusedCount struct {
	Policy uint32
	// Tier is 1 + its index in the policy set; 0: the policy does not depend on the tier.
	Tier    uint8
	Refused int64
}

// Identity describes the caller of a request, as far as a node may report it.
type Identity struct {
	// Consumer is the keyed hash of the consumer; zero if there is none or it is not reported.
	Consumer keyhash.Key
	// Shown are the parts of the request that may be shown: for each its index among those of the
	// policy set, its length, and at most policy.MaxShownText bytes of it.
	Shown []byte
}

// Clone returns a copy with memory of its own.
func (id *Identity) Clone() Identity {
	return Identity{Consumer: id.Consumer, Shown: append([]byte(nil), id.Shown...)}
}

// CallerCount is a bucket and what may be reported of its caller.
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
	// Cost and Left are tokens: what the request would have cost, and what the bucket held.
	Cost, Left int64
	// Retry is how long the caller had to wait; 0: no wait would have helped. Ago is how long ago
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

func (c *cursor) decisions() *Decisions {
	m := &Decisions{Version: uint64(c.within(0, maxVersion))}
	for n := c.within(0, MaxCounts); n > 0 && c.err == nil; n-- {
		m.Counts = append(m.Counts, RefusedCount{Policy: c.policy(), Tier: c.small(), Refused: c.within(0, maxCount)})
	}
	for n := c.within(0, MaxRefusals); n > 0 && c.err == nil; n-- {
		r := Refusal{CallerCount: c.caller()}
		r.Limit = uint32(c.within(0, policy.MaxSetLimits-1))
		r.Reason, r.Source = c.small(), c.small()
		r.Cost, r.Left = c.within(0, policy.MaxCost), c.within(0, quota.MaxUnits)
		r.Retry, r.Ago = quota.Span(c.within(0, int64(quota.MaxWindow))), quota.Span(c.within(0, int64(quota.Hour)))
		m.Refusals = append(m.Refusals, r)
	}
	for n := c.within(0, MaxCallers); n > 0 && c.err == nil; n-- {
		m.Callers = append(m.Callers, c.caller())
	}
	return m
}

// small reads a number below 256.
func (c *cursor) small() uint8 { return uint8(c.within(0, math.MaxUint8)) }

func (c *cursor) policy() uint32 { return uint32(c.within(0, policy.MaxPolicies-1)) }

func (c *cursor) caller() (who CallerCount) {
	who.Policy, who.Tier = c.policy(), c.small()
	copy(who.Bucket[:], c.bytes(16))
	copy(who.Consumer[:], c.bytes(16))
	who.Shown = c.shown()
	who.Count = c.within(0, maxCount)
	who.Over = c.within(0, who.Count)
	return who
}
