package match

import (
	"encoding/binary"

	"github.com/dchest/siphash"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/spelling"
	"github.com/weir-proxy/weir/shared/text"
)

// A key is the keyed hash of an encoding that opens with its format. A new encoding gets a new
// number, and with it new buckets.
const (
	// keyFormat opens the encoding of a bucket's key.
	keyFormat = 1
	// consumerFormat opens that of a consumer's key, so that the two never coincide.
	consumerFormat = 2
	// penaltyFormat opens that of a consumer for penalties that hold under every policy.
	penaltyFormat = 3
)

// How the encoding of a value begins. Each text that follows comes with its length.
const (
	absentValue   = 0
	oneValue      = 1
	severalValues = 2
)

// What may follow the parts of a bucket's key. No part begins with these.
const (
	// shadowMark sets the bucket of a policy in shadow apart from the enforced one.
	shadowMark = 0xff
	// limitMark, a step and a root set apart the limits of a policy, but for the one with the root
	// 0 among those that the document names.
	limitMark = 0xfe
	// tierMark and a name set apart the tiers.
	tierMark = 0xfd
	// candidateMark sets apart the candidates.
	candidateMark = 0xfc
	// inFlightMark sets the requests in flight apart from what quotas count.
	inFlightMark = 0xfb
)

// ConsumerKey is the keyed hash by which the control plane and the nodes know a consumer. It is
// made of where the consumer's value was found and of the value itself; messages carry nothing
// else of it.
func ConsumerKey(secret [16]byte, s policy.Source, value string) keyhash.Key {
	b := putText([]byte{consumerFormat, byte(s.Kind)}, []byte(s.Name))
	return hashed(&secret, putValue(append(b, oneValue), &secret, spelled(s.Kind, s.Name, []byte(value))))
}

// spelled is a value that people give for a source, in the spelling that requests are given.
func spelled(kind policy.SourceKind, name string, value []byte) []byte {
	switch {
	case kind == policy.SourceHeader && name == authorization:
		return spelling.AppendCredentials(nil, value)
	case kind == policy.SourceHeader:
		return text.Trim(value)
	case kind == policy.SourceCookie:
		return spelling.AppendCookie(nil, value)
	case kind == policy.SourceJWT:
		return spelling.AppendClaim(nil, value)
	}
	return value
}

// longText is up to how many bytes a text stands in an encoding itself, and not its hash, which is
// made once for all the keys that have it.
const longText = 64

// putValue encodes a value, or its hash if it is long. The length tells which.
//
//go:noinline
func putValue(dst []byte, secret *[16]byte, value []byte) []byte {
	if len(value) <= longText {
		return putText(dst, value)
	}
	digest := hashed(secret, value)
	return putDigest(dst, len(value), &digest)
}

// putLimit encodes which limit of a policy a key is of, and of which of its steps. It adds nothing
// for the limit whose root is 0.
//
//go:noinline
func putLimit(key []byte, l *policy.Limit, step uint32) []byte {
	if l.Root != 0 || step > 0 {
		key = binary.AppendUvarint(append(key, limitMark, byte(step)), uint64(l.Root))
	}
	if l.InFlight {
		key = append(key, inFlightMark)
	}
	return key
}

func putDigest(dst []byte, length int, digest *keyhash.Key) []byte {
	return append(putNumber(dst, length), digest[:]...)
}

//go:noinline
func putNumber(dst []byte, n int) []byte { return binary.AppendUvarint(dst, uint64(n)) }

// hashed is the key of an encoding.
//
//go:noinline
func hashed(secret *[16]byte, encoded []byte) keyhash.Key {
	k0, k1 := binary.LittleEndian.Uint64(secret[:8]), binary.LittleEndian.Uint64(secret[8:])
	low, high := siphash.Hash128(k0, k1, encoded)
	var k keyhash.Key
	binary.LittleEndian.PutUint64(k[:8], low)
	binary.LittleEndian.PutUint64(k[8:], high)
	return k
}

// ShareOf places a partition key among a hundred. A policy that is enforced for a share of its
// keys goes by this. The zero key, of requests without one, is the first.
func ShareOf(k keyhash.Key) uint32 { return (uint32(k[14]) | uint32(k[15])<<8) % 100 }

// putText encodes a text and its length.
//
//go:noinline
func putText(dst, text []byte) []byte {
	return append(putNumber(dst, len(text)), text...)
}
