package match

import (
	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
)

// Result is what a policy set makes of a request before any bucket is looked at. Its slices are
// good until the next call of the Matcher that returned it.
type Result struct {
	// Access is whether the limits apply at all. Only an Open request has Hits.
	Access Access
	// Ban is what is banned about a Banned request. BanEnds is when that ends by itself, in Unix
	// milliseconds, 0 for never. BannedKey is the partition key of a KeyBan, as the ban names it;
	// zero of other bans.
	Ban       Ban
	BanEnds   int64
	BannedKey keyhash.Key
	// Bypassed: operators have switched off a policy that applies to the request.
	Bypassed bool
	// Hits are the limits that apply, in the document's order.
	Hits []Hit
	// Counted are limits of requests in flight that operators have lifted. They refuse nothing and
	// count the request, also if the Access is Off: it may last for longer than the order.
	Counted []Hit
	// Subjects are the caller as those policies know it that have penalties.
	Subjects []Subject
	// Own are the limits that count for this request in place of those of the document. Hit.Own
	// refers to them.
	Own []policy.Limit
	// Rank is the class of the request and the cohort of its caller, if a hit is of an
	// adaptive limit.
	Rank adaptive.Rank
	// Consumer is the key of the consumer that made the request, if a hit is not Certain.
	Consumer keyhash.Key
	// ExceptionsRevision is the wire.Consumers.ExceptionsRevision by which the limits were chosen.
	ExceptionsRevision uint64
}

// Access is whether a request is limited at all.
type Access uint8

const (
	// Open requests are limited by their hits.
	Open Access = iota
	// Exempt requests are never limited and never charged.
	Exempt
	// Banned requests are refused before any bucket.
	Banned
	// Off: operators have switched off everything.
	Off
)

// Ban is what is banned about a request.
type Ban uint8

const (
	// NoBan is that of a request that no ban refuses.
	NoBan Ban = iota
	// AddressBan: the address of the client.
	AddressBan
	// ConsumerBan: the consumer.
	ConsumerBan
	// KeyBan: the partition key by which a policy counts the request.
	KeyBan
	// PossibleBan: one of the consumers that the request names, which are more than can be looked
	// up.
	PossibleBan
)

// Hit is one limit that applies to a request.
type Hit struct {
	// Policy is the index of the policy in the policy set.
	Policy uint32
	// Limit is the index of the limit among all limits of the policy set.
	Limit uint32
	// Verdict is what is decided without the bucket. Key and Cost count only if it is Limited.
	Verdict Verdict
	// Shadow: the hit is decided and counted, and the request goes on whatever comes of it. Its
	// bucket is another than the enforced one.
	Shadow bool
	// Candidate: the limit is only watched, beside the enforced one. Shadow is true too.
	Candidate bool
	// Tier is the caller's tier, for Index.Tier, if the policy goes by tier; 0 if it does not.
	Tier uint8
	// Own is 1 + the place in Result.Own of the limit that counts in place of the document's; 0 if
	// the document's counts.
	Own uint32
	// Certainty is how well this node knows that the consumer has no other limit.
	Certainty Certainty
	// Late: something of the policy's limits is kept from the request's class.
	Late bool
	// Position is the index of the limit in its policy's list.
	Position uint8
	// Key is the bucket that counts the request.
	Key keyhash.Key
	// Cost is how many tokens the request takes.
	Cost int64
}

// Subject is the caller of a request as the penalties of one policy know it.
type Subject struct {
	// Policy is the index of the policy in the policy set, Limit that of one of its limits among
	// all limits.
	Policy, Limit uint32
	// Key is the partition key, or the hash of policy and consumer if its penalties hold under
	// every policy. Where something is kept from the request's class it is another: see Keys.
	Key keyhash.Key
	// Shadow: a penalty refuses nothing. Its key is ShadowOf the Key. Penalised: such a penalty is
	// in force, as the lookup has found.
	Shadow, Penalised bool
}

// PenaltyKey is the key by which the penalties of the caller are known.
func (s *Subject) PenaltyKey() keyhash.Key {
	if s.Shadow {
		return ShadowOf(s.Key)
	}
	return s.Key
}

// ShadowOf is the key by which what is in shadow of a Subject is known.
func ShadowOf(k keyhash.Key) keyhash.Key {
	k[0] ^= shadowMark
	return k
}

// classed is the key by which penalties know a caller in requests from which so many reserves are
// kept. Refusals of the less important requests so bring no penalty to the others.
func classed(k keyhash.Key, step int) keyhash.Key {
	k[1] ^= byte(step)
	return k
}

// Keys are the keys by which the penalties of a policy with so many reserves know the caller of a
// partition key or of a WideKey.
func Keys(k keyhash.Key, reserves int) (keys []keyhash.Key) {
	for step := range reserves + 1 {
		keys = append(keys, classed(k, step), ShadowOf(classed(k, step)))
	}
	return keys
}

// Verdict is what matching alone can decide about a hit.
type Verdict uint8

const (
	// Limited hits are decided by their bucket.
	Limited Verdict = iota
	// RefusedAbsent hits lack a part of the partition key, and the policy has `if_absent: deny`.
	RefusedAbsent
	// RefusedCost hits name no sensible cost, and the policy has `invalid: deny`.
	RefusedCost
	// Suspended hits are of a limit with a quota of 0.
	Suspended
	// RefusedSeveral hits have several different values for a part of the partition key, and the
	// policy set has `if_several: deny`.
	RefusedSeveral
)

// Certainty is how well this node knows which limit a consumer has.
type Certainty uint8

const (
	// Certain: the limit of the hit is the right one.
	Certain Certainty = iota
	// Recorded: a limit of the consumer's own is, or was, on record; the control plane knows
	// whether it still counts.
	Recorded
	// Guessed: nothing is known of the consumer here yet, and the policy's limit stands in.
	Guessed
	// GuessedTier: nor is it known whether the consumer was assigned another tier, whose limits it
	// then has.
	GuessedTier
)
