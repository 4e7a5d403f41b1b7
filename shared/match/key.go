package match

import (
	"encoding/binary"

	"github.com/dchest/siphash"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/spelling"
	"github.com/weir-proxy/weir/shared/text"
)

// A key is the keyed hash of an encoding that begins with its format. A new encoding gets a new
// format number, and so new buckets.
const (
	// keyFormat begins the encoding of a bucket's key.
	keyFormat = 1
	// consumerFormat begins the encoding of a consumer's key, so that the two are never equal.
	consumerFormat = 2
	// penaltyFormat begins the encoding of a consumer for penalties that hold under every policy.
	penaltyFormat = 3
)

// The first byte of the encoding of a value. Each text after it has its length before it.
const (
	absentValue   = 0
	oneValue      = 1
	severalValues = 2
)

// Marks after the parts of a bucket's key. No part begins with these.
const (
	// shadowMark distinguishes the bucket of a policy in shadow from the enforced bucket.
	shadowMark = 0xff
	// limitMark, a step and a root distinguish the limits of a policy, except the limit with root 0
	// in the document's list.
	limitMark = 0xfe
	// tierMark and a name distinguish the tiers.
	tierMark = 0xfd
	// candidateMark marks the candidates.
	candidateMark = 0xfc
	// inFlightMark distinguishes requests in flight from the use of a quota.
	inFlightMark = 0xfb
)

// ConsumerKey returns the keyed hash that identifies a consumer for the control plane and the
// nodes. It is made from the source of the consumer's value and from the value itself. Messages
// have nothing else of the consumer.
func ConsumerKey(secret [16]byte, s policy.Source, value string) keyhash.Key {
	b := putText([]byte{consumerFormat, byte(s.Kind)}, []byte(s.Name))
	return hashKeyed(&secret, putValue(append(b, oneValue), &secret, spelledValue(s.Kind, s.Name, []byte(value))))
}

// spelledValue returns a value that people give for a source, in the spelling of values in
// requests.
func spelledValue(kind policy.SourceKind, name string, value []byte) []byte {
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

// longText is the longest text that an encoding contains itself. A longer text is encoded as its
// hash, which is made once for all keys with this text.
const longText = 64

// putValue encodes a value, or its hash if it is long. The length distinguishes the two.
//
//go:noinline
func putValue(dst []byte, secret *[16]byte, value []byte) []byte {
	if len(value) <= longText {
		return putText(dst, value)
	}
	digest := hashKeyed(secret, value)
	return putDigest(dst, len(value), &digest)
}

// putLimit encodes the limit of a policy that a key belongs to, and its step. It adds nothing for
// the limit whose root is 0.
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

// hashKeyed returns the key of an encoding.
//
//go:noinline
func hashKeyed(secret *[16]byte, encoded []byte) keyhash.Key {
	k0, k1 := binary.LittleEndian.Uint64(secret[:8]), binary.LittleEndian.Uint64(secret[8:])
	low, high := siphash.Hash128(k0, k1, encoded)
	var k keyhash.Key
	binary.LittleEndian.PutUint64(k[:8], low)
	binary.LittleEndian.PutUint64(k[8:], high)
	return k
}

// ShareOf maps a partition key to a number below 100. A policy that is enforced for a share of its
// keys uses this number. The zero key, of requests without a key, is 0.
func ShareOf(k keyhash.Key) uint32 { return (uint32(k[14]) | uint32(k[15])<<8) % 100 }

// putText encodes a text and its length.
//
//go:noinline
func putText(dst, text []byte) []byte {
	return append(putNumber(dst, len(text)), text...)
}
