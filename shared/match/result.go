package match

import (
	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
)

// Result is the match of a request before any bucket is used. Its slices are good until the next
// call of the Matcher that returned it.
type Result struct {
	// Access reports whether the limits apply at all. Only an Open request has Hits.
	Access Access
	// Ban is the kind of the ban of a Banned request. BanEnds is when the ban ends by itself, in
	// Unix milliseconds, 0 for never. BannedKey is the partition key of a KeyBan, as the ban names
	// it; zero for other bans.
	Ban       Ban
	BanEnds   int64
	BannedKey keyhash.Key
	// Bypassed means that operators have switched off a policy that applies to the request.
	Bypassed bool
	// Hits are the limits that apply, in the document's order.
	Hits []Hit
	// Counted are limits of requests in flight that operators have lifted. They refuse nothing and
	// count the request, also if the Access is Off: the request may last longer than the order.
	Counted []Hit
	// Subjects identify the caller for the policies that have penalties.
	Subjects []Subject
	// Own are the limits that replace limits of the document for this request. Hit.Own refers to
	// them.
	Own []policy.Limit
	// Rank is the class of the request and the cohort of its caller, if there is a hit of an
	// adaptive limit.
	Rank adaptive.Rank
	// Consumer is the key of the consumer that made the request, if a hit is not Certain.
	Consumer keyhash.Key
	// ExceptionsRevision is the wire.Consumers.ExceptionsRevision of the exceptions that chose the
	// limits.
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
	// Off means that operators have switched off everything.
	Off
)

// Ban is the part of a request that is banned.
type Ban uint8

const (
	// NoBan means that no ban refuses the request.
	NoBan Ban = iota
	// AddressBan is a ban of the client's address.
	AddressBan
	// ConsumerBan is a ban of the consumer.
	ConsumerBan
	// KeyBan is a ban of the partition key by which a policy counts the request.
	KeyBan
	// PossibleBan means that one of the request's consumers may be banned: it names too many to
	// look up.
	PossibleBan
)

// Hit is one limit that applies to a request.
type Hit struct {
	// Policy is the index of the policy in the policy set.
	Policy uint32
	// Limit is the index of the limit among all limits of the policy set.
	Limit uint32
	// Verdict is the decision before the bucket. Key and Cost are set only if it is Limited.
	Verdict Verdict
	// Shadow means that the hit is decided and counted but never refuses the request. It has its
	// own bucket.
	Shadow bool
	// Candidate means that the limit is only watched, beside the enforced limit. Shadow is true
	// too.
	Candidate bool
	// Tier is the caller's tier, for Index.Tier, if the policy depends on the tier; 0 if it does
	// not.
	Tier uint8
	// Own is 1 + the index in Result.Own of the limit that replaces the document's limit; 0 if the
	// document's limit counts.
	Own uint32
	// Certainty is how certain this node is that the consumer has no other limit.
	Certainty Certainty
	// Late means that a part of the policy's limits is reserved from the request's class.
	Late bool
	// Position is the index of the limit in its policy's list.
	Position uint8
	// Key is the bucket that counts the request.
	Key keyhash.Key
	// Cost is the number of tokens that the request takes.
	Cost int64
}

// Subject identifies the caller of a request for the penalties of one policy.
type Subject struct {
	// Policy is the index of the policy in the policy set, Limit the index of one of its limits
	// among all limits.
	Policy, Limit uint32
	// Key is the partition key, or the hash of policy and consumer if the penalties hold under
	// every policy. It differs for a class from which a part is reserved: see Keys.
	Key keyhash.Key
	// Shadow means that a penalty refuses nothing; its key is ShadowOf the Key. Penalised means
	// that such a penalty is in force, as the lookup has found.
	Shadow, Penalised bool
}

// PenaltyKey returns the key of the caller's penalties.
func (s *Subject) PenaltyKey() keyhash.Key {
	if s.Shadow {
		return ShadowOf(s.Key)
	}
	return s.Key
}

// ShadowOf returns the key of a Subject in shadow.
func ShadowOf(k keyhash.Key) keyhash.Key {
	k[0] ^= shadowMark
	return k
}

// keyForStep returns the key of a caller in penalties, for requests from which step reserves are
// kept. So refusals of the less important requests bring no penalty to the other requests.
func keyForStep(k keyhash.Key, step int) keyhash.Key {
	k[1] ^= byte(step)
	return k
}

// Keys returns the keys in the penalties of a policy with this number of reserves, for the caller
// of a partition key or of a WideKey.
func Keys(k keyhash.Key, reserves int) (keys []keyhash.Key) {
	for step := range reserves + 1 {
		keys = append(keys, keyForStep(k, step), ShadowOf(keyForStep(k, step)))
	}
	return keys
}

// Verdict is the decision about a hit by matching alone.
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

// Certainty is how certain this node is of a consumer's limit.
type Certainty uint8

const (
	// Certain means that the limit of the hit is the right limit.
	Certain Certainty = iota
	// Recorded means that the consumer has, or had, a limit of its own on record. The control plane
	// knows whether it still counts.
	Recorded
	// Guessed means that nothing is known of the consumer here yet, so the policy's limit is used.
	Guessed
	// GuessedTier means that it is also unknown whether the consumer was assigned another tier, and
	// so has the limits of that tier.
	GuessedTier
)
