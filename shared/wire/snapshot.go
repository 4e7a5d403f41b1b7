package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	snapshotMagic  = "WRSN"
	snapshotHeader = headerSize + 8 + 8
)

// Snapshot is a policy set with its version and the deployment's secret for partition keys.
type Snapshot struct {
	// Version grows with every change of the policy set; 0 is the version of a standalone set.
	Version uint64
	// Secret is the key of the hash of partition keys. All nodes have the same secret, so they use
	// the same name for a bucket.
	Secret [16]byte
	Set    *policy.Set
	// Packed are further policies, after the policies of Set; nil for none. AppendSnapshot empties
	// it, so that its memory can be used again.
	Packed *Packed
}

// AppendSnapshot appends the message to dst: a header with version and checksum, then the policy
// set.
func AppendSnapshot(dst []byte, s Snapshot) []byte {
	start := len(dst)
	dst = appendHeader(dst, snapshotMagic)
	dst = binary.LittleEndian.AppendUint64(dst, s.Version)
	dst = binary.LittleEndian.AppendUint64(dst, 0) // the checksum, below
	dst = append(dst, s.Secret[:]...)
	dst = putSetParts(putSet(dst, s.Set, s.Packed), s.Set)
	binary.LittleEndian.PutUint64(dst[start+snapshotHeader-8:], checksum(dst[start+snapshotHeader:])^s.Version)
	return dst
}

// OpenSnapshot checks header and checksum and returns the version, the secret and a reader of the
// policy set, whose results alias b. It allocates nothing.
func OpenSnapshot(b []byte) (version uint64, secret [16]byte, set SetReader, err error) {
	if len(b) > MaxSnapshot {
		return 0, secret, set, ErrTooLarge
	}
	c := cursor{buf: b}
	c.readAnswered(snapshotMagic)
	version = c.u64()
	sum := c.u64()
	if c.err == nil && sum != checksum(b[snapshotHeader:])^version {
		c.failWith(ErrChecksum)
	}
	copy(secret[:], c.readBytes(16))
	return version, secret, SetReader{c: c}, c.err
}

func putSet(dst []byte, set *policy.Set, packed *Packed) []byte {
	dst = putUvarint(dst, int64(set.Identity.TrustedHops))
	dst = putUvarint(dst, int64(set.Identity.IPv6Prefix))
	dst = putSources(dst, set.Identity.Consumer)
	dst = putTexts(dst, set.Tiers)
	dst = putUvarint(dst, int64(set.Identity.DefaultTier))
	dst = putSources(dst, set.Identity.Tier)
	dst = append(dst, byte(set.Headers.Standard)|boolByte(set.Headers.Unmarked)<<1, byte(set.Headers.Legacy))
	dst = putAccess(dst, set)
	dst = putUvarint(dst, int64(len(set.Policies)+packed.encodedSize()))
	for i := range set.Policies {
		dst = putPolicy(dst, &set.Policies[i])
	}
	return packed.moveTo(dst)
}

func putSources(dst []byte, sources []policy.Source) []byte {
	dst = putUvarint(dst, int64(len(sources)))
	for _, s := range sources {
		dst = putText(append(dst, byte(s.Kind)), s.Name)
	}
	return dst
}

func putAccess(dst []byte, set *policy.Set) []byte {
	dst = putRanges(putRanges(dst, set.Banned), set.Exempt.ClientIPs)
	return putTexts(dst, set.Exempt.Paths, set.Exempt.Methods, set.Exempt.Consumers)
}

func putTexts(dst []byte, lists ...[]string) []byte {
	for _, list := range lists {
		dst = putUvarint(dst, int64(len(list)))
		for _, s := range list {
			dst = putText(dst, s)
		}
	}
	return dst
}

func putPolicy(dst []byte, p *policy.Policy) []byte {
	// The head and the runs of limits.
	dst = putText(dst, p.Name)
	dst = putSteps(append(dst, byte(p.IfAbsent), byte(p.Mode), byte(p.Enforced)), &p.OnFailure)
	dst = append(dst, byte(p.Counting.Algorithm), byte(p.Counting.Subwindows), boolByte(p.Counting.Calendar))
	dst = putUvarint(dst, int64(p.Counting.MaxWait))
	dst = append(dst, boolByte(len(p.Tiers) > 0))
	if len(p.Tiers) == 0 {
		dst = putLimits(dst, p.Limits)
	}
	for i := range p.Tiers {
		dst = putLimits(dst, p.LimitsOf(i))
	}
	dst = putLimits(dst, p.Candidate)
	// The cost and the response.
	dst = putUvarint(dst, p.Cost.Fixed)
	dst = putText(append(dst, byte(p.Cost.Source.Kind)), p.Cost.Source.Name)
	dst = putUvarint(dst, p.Cost.Max)
	dst = putUvarint(dst, p.Cost.Invalid)
	dst = append(dst, boolByte(p.Cost.DenyInvalid))
	dst = putText(putUvarint(dst, int64(p.Response.Status)), p.Response.Body)
	// The conditions and the partition.
	hosts := p.Match.Hosts
	if p.Match.IsOfCalls() {
		hosts = noHost
	}
	dst = putTexts(dst, hosts, p.Match.Methods, p.Match.Paths)
	dst = putHeaders(dst, p.Match.Headers)
	dst = putUvarint(dst, int64(len(p.Partition)))
	for _, part := range p.Partition {
		dst = putText(append(dst, byte(part.Kind)), part.Name)
	}
	return putPolicyParts(dst, p)
}

// noHost is the host of a policy for calls to the gRPC rate limit service. No request that an Envoy
// sees has it, since hosts are matched in lower case. So filters ignore the policy, and give the
// limits after it the same numbers as the control plane.
var noHost = []string{"RLS"}

func putHeaders(dst []byte, conditions []policy.HeaderMatch) []byte {
	dst = putUvarint(dst, int64(len(conditions)))
	for _, h := range conditions {
		dst = putText(putText(append(dst, byte(h.Op)), h.Name), h.Value)
	}
	return dst
}

func putLimits(dst []byte, limits []policy.Limit) []byte {
	dst = putUvarint(dst, int64(len(limits)))
	for _, l := range limits {
		dst = putLimit(dst, l)
	}
	return dst
}

func putLimit(dst []byte, l policy.Limit) []byte {
	if l.InFlight {
		l.Window = quota.Second // The real window is in a part of the policy.
	}
	return putUvarint(putUvarint(putUvarint(dst, l.Quota), int64(l.Window)), l.Burst())
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}
