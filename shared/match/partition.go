package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/spelling"
)

// Partition is one partition key of a policy: what the requests that have it share. With it the
// control plane finds a bucket without a request.
type Partition struct {
	secret  [16]byte
	encoded []byte
	byTier  bool
	// steps is how many limits a policy has for each of a list: one, and one for each class of a
	// reserve.
	steps int
}

// Value is what a request has for one part of a partition key.
type Value struct {
	Text []byte
	// Absent: the request does not have the part.
	Absent bool
	// Source is where a consumer's value was found. Other parts have none.
	Source policy.Source
}

// NewPartition makes the partition key that requests with these values have under a policy. There
// is one value for each part of the key, in its order.
func NewPartition(secret [16]byte, p *policy.Policy, values []Value) Partition {
	b := putText([]byte{keyFormat}, []byte(p.Name))
	for i, part := range p.Partition {
		b = append(b, byte(part.Kind))
		if values[i].Absent {
			b = append(b, absentValue)
			continue
		}
		if part.Kind == policy.PartConsumer {
			b = putText(append(b, byte(values[i].Source.Kind)), []byte(values[i].Source.Name))
		}
		b = putValue(append(b, oneValue), &secret, partText(part, &values[i]))
	}
	return Partition{secret: secret, encoded: b, byTier: len(p.Tiers) > 0, steps: p.Steps()}
}

// partText is a value that people give for a part, in the spelling that requests are given.
func partText(part policy.Part, v *Value) []byte {
	switch part.Kind {
	case policy.PartConsumer:
		return spelled(v.Source.Kind, v.Source.Name, v.Text)
	case policy.PartHost:
		return spelling.AppendHost(nil, v.Text)
	case policy.PartPath:
		path, _ := spelling.AppendPath(nil, v.Text, false)
		return path
	case policy.PartPolicyPath:
		if pattern, problem := policy.Pattern(string(v.Text)); problem == "" {
			return []byte(pattern)
		}
	}
	if _, is := part.Descriptor(); is {
		return v.Text
	}
	kind, _ := part.Kind.Source()
	return spelled(kind, part.Name, v.Text)
}

// Key is the hash that bans go by. It is the same for all tiers and limits.
func (p Partition) Key() keyhash.Key { return hashed(&p.secret, p.encoded) }

// Share is where the key stands among a hundred, by which a policy is enforced for a share.
func (p Partition) Share() int { return int(shareOf(p.Key())) }

// Bucket is the bucket of the n-th limit of a tier. The tier counts only if the policy's limits go
// by tier. A policy that is in shadow for the key has other buckets.
func (p Partition) Bucket(tier string, n int, shadow bool) keyhash.Key {
	k := hashed(&p.secret, p.encode(tier, n, shadow))
	if n > 0 && p.steps > 1 {
		k = beginWith(k, hashed(&p.secret, p.encode(tier, 0, shadow)))
	}
	return k
}

// InFlight is the bucket of the n-th limit of a tier, of so many, that is of requests in flight. It
// stays where the list around it changes.
func (p Partition) InFlight(tier string, n, of int, shadow bool) keyhash.Key {
	if n < of/p.steps {
		n = 0
	}
	return hashed(&p.secret, append(p.encode(tier, n, shadow), inFlightMark))
}

func (p Partition) encode(tier string, n int, shadow bool) []byte {
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
	return b
}
