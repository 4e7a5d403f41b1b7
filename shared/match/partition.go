package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
)

// Partition is one partition key of a policy: what requests that have it share. It is for those who look at buckets without a request.
type Partition struct {
	secret  [16]byte
	encoded []byte
	byTier  bool
}

// Value is what a request has for one part of a partition key. Source is where a consumer's value was found.
type Value struct {
	Text   []byte
	Absent bool
	Source policy.Source
}

// NewPartition is the partition key of a policy that requests with these values have, one for each part of it, in its order.
func NewPartition(secret [16]byte, p *policy.Policy, values []Value) Partition {
	b := putText([]byte{keyFormat}, []byte(p.Name))
	for i, part := range p.Partition {
		b = append(b, byte(part.Kind))
		if values[i].Absent {
			b = append(b, 0)
			continue
		}
		if part.Kind == policy.PartConsumer {
			b = putText(append(b, byte(values[i].Source.Kind)), []byte(values[i].Source.Name))
		}
		b = putText(append(b, 1), values[i].Text)
	}
	return Partition{secret: secret, encoded: b, byTier: len(p.Tiers) > 0}
}

// Key is what bans go by: the same for all tiers and limits.
func (p Partition) Key() keyhash.Key { return hashed(p.secret, p.encoded) }

// Share is the place of the key among a hundred, by which shares of the keys go.
func (p Partition) Share() int { return int(shareOf(p.Key())) }

// Bucket is the bucket of a limit, which is the n-th of its tier's; tier counts only for a policy whose limits go by tier. A policy
// that is watched for the key has other buckets.
func (p Partition) Bucket(tier string, n int, shadow bool) keyhash.Key {
	b := append([]byte(nil), p.encoded...)
	if p.byTier {
		b = putText(append(b, tierMark), []byte(tier))
	}
	if shadow {
		b = append(b, shadowMark)
	}
	for i := 1; i <= n; i++ {
		b = append(b, limitMark, byte(i))
	}
	return hashed(p.secret, b)
}

func putText(dst, text []byte) []byte {
	return append(putUvarint(dst, uint32(len(text))), text...)
}

func putUvarint(dst []byte, v uint32) []byte {
	for v >= 0x80 {
		dst = append(dst, byte(v)|0x80)
		v >>= 7
	}
	return append(dst, byte(v))
}
