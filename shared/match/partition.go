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
	// byTier: the tiers have buckets of their own, but for the default one.
	byTier      bool
	defaultTier string
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
// is one value for each part of the key, in its order. The policy is one of the set.
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

// partText is a value that people give for a part, in the spelling that requests are given.
func partText(part policy.Part, v *Value, routing spelling.Routing) []byte {
	switch part.Kind {
	case policy.PartConsumer:
		return spelled(v.Source.Kind, v.Source.Name, v.Text)
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
	return spelled(kind, part.Name, v.Text)
}

// Key is the hash that bans go by. It is the same for all tiers and limits.
func (p Partition) Key() keyhash.Key { return hashed(&p.secret, p.encoded) }

// Share is where the key stands among a hundred, by which a policy is enforced for a share.
func (p Partition) Share() int { return int(ShareOf(p.Key())) }

// Bucket is the bucket of the n-th limit of a tier, which has these limits. A consumer has one for
// all tiers that it may have. A policy that is in shadow for the key has other buckets.
func (p Partition) Bucket(tier string, limits []policy.Limit, n int, shadow bool) keyhash.Key {
	b := append([]byte(nil), p.encoded...)
	if p.byTier && tier != p.defaultTier {
		b = putText(append(b, tierMark), []byte(tier))
	}
	first := hashed(&p.secret, b)
	if shadow {
		b = append(b, shadowMark)
		first = beginWith(hashed(&p.secret, b), first)
	}
	base := len(b)
	b = putLimit(b, &limits[n], stepOf(uint32(n), uint32(len(limits)), uint32(p.steps)))
	if len(b) == base {
		return first
	}
	return beginWith(hashed(&p.secret, b), first)
}
