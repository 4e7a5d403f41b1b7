package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/spelling"
)

// Partition is one partition key of a policy. All requests with this key share it. With it the
// control plane finds a bucket without a request.
type Partition struct {
	secret  [16]byte
	encoded []byte
	// byTier means that each tier except the default tier has its own buckets.
	byTier      bool
	defaultTier string
	// steps is the number of limits that a policy has for each limit in its list: one, and one for
	// each class of a reserve.
	steps int
}

// Value is a request's value for one part of a partition key.
type Value struct {
	Text []byte
	// Absent means that the request does not have the part.
	Absent bool
	// Source is the place of a consumer's value. It is empty for other parts.
	Source policy.Source
}

// NewPartition makes the partition key of requests with these values under a policy. There is one
// value for each part of the key, in its order. The policy belongs to the set.
func NewPartition(secret [16]byte, set *policy.Set, p *policy.Policy, values []Value) Partition {
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
		b = putValue(append(b, oneValue), &secret, partText(part, &values[i], set.Routing))
	}
	one := Partition{secret: secret, encoded: b, steps: p.Steps()}
	if one.byTier = len(p.Tiers) > 0 && !p.ByConsumer(); one.byTier {
		one.defaultTier = set.Tiers[set.Identity.DefaultTier]
	}
	return one
}

// partText returns a value that people give for a part, in the spelling of values in requests.
func partText(part policy.Part, v *Value, routing spelling.Routing) []byte {
	switch part.Kind {
	case policy.PartConsumer:
		return spelledValue(v.Source.Kind, v.Source.Name, v.Text)
	case policy.PartHost:
		return spelling.AppendHost(nil, v.Text)
	case policy.PartMethod:
		return spelling.AppendMethod(nil, v.Text)
	case policy.PartPath:
		path, _ := spelling.AppendPath(nil, v.Text, routing)
		return path
	case policy.PartPolicyPath:
		if pattern, problem := policy.Pattern(string(v.Text), routing); problem == "" {
			return []byte(pattern)
		}
	}
	if _, is := part.Descriptor(); is {
		return v.Text
	}
	kind, _ := part.Kind.Source()
	return spelledValue(kind, part.Name, v.Text)
}

// Key returns the hash that bans use. It is the same for all tiers and limits.
func (p Partition) Key() keyhash.Key { return hashKeyed(&p.secret, p.encoded) }

// Share returns the number of the key below 100, for a policy that is enforced for a share of its
// keys.
func (p Partition) Share() int { return int(ShareOf(p.Key())) }

// Bucket returns the bucket of the n-th limit of a tier, which has these limits. A consumer has one
// bucket for all its tiers. A policy that is in shadow for the key has other buckets.
func (p Partition) Bucket(tier string, limits []policy.Limit, n int, shadow bool) keyhash.Key {
	b := append([]byte(nil), p.encoded...)
	if p.byTier && tier != p.defaultTier {
		b = putText(append(b, tierMark), []byte(tier))
	}
	first := hashKeyed(&p.secret, b)
	if shadow {
		b = append(b, shadowMark)
		first = beginWith(hashKeyed(&p.secret, b), first)
	}
	base := len(b)
	b = putLimit(b, &limits[n], stepOf(uint32(n), uint32(len(limits)), uint32(p.steps)))
	if len(b) == base {
		return first
	}
	return beginWith(hashKeyed(&p.secret, b), first)
}
