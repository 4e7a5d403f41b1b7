package api

import "github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"

// The answers, as clients in this repository know them. api/openapi.yaml describes them.
type (
	// PutAnswer is the answer to every change of the policy set, of one policy, and to a rollback.
	PutAnswer = gen.Changed
	// VersionsAnswer is a page of versions, newest first; Next leads to the following page and is
	// empty on the last.
	VersionsAnswer = gen.Versions
	// VersionAnswer is a version with its document as it was written.
	VersionAnswer = gen.VersionWithDocument
	// DiffAnswer lists the changes between two versions.
	DiffAnswer = gen.VersionDiff
	// CheckedAnswer has the promises and the changes of a document.
	CheckedAnswer = gen.CheckedPolicySet
	// RolloutSide has the recent decisions of the rollout's nodes, or of the other nodes.
	RolloutSide = gen.RolloutSide
	// RolloutAnswer is the state of a rollout, RolloutStepAnswer the result of a step.
	RolloutAnswer     = gen.Rollout
	RolloutStepAnswer = gen.RolloutStep
	// ConsumerAnswer is the record of a consumer.
	ConsumerAnswer = gen.Consumer
	// ConsumersAnswer is a page of consumers, in no order, each by its key alone.
	ConsumersAnswer = gen.Consumers
	// EnforcementAnswer has the orders in force.
	EnforcementAnswer = gen.Enforcement
	// AuditAnswer is a page of changes, newest first.
	AuditAnswer = gen.AuditEntries
	// ConsumerInput is the wanted record of a consumer. ConsumerBatch has many, each a
	// ConsumerItem.
	ConsumerInput = gen.ConsumerInput
	ConsumerBatch = gen.ConsumerBatch
	ConsumerItem  = gen.ConsumerItem
	// ConsumerMark is a ban or a bypass, ConsumerOverride a limit of a consumer's own.
	ConsumerMark     = gen.Mark
	ConsumerOverride = gen.Override
	// DecisionsAnswer is a page of refusals, newest first.
	DecisionsAnswer = gen.Decisions
	// StandingAnswer is an order, ban, bypass or penalty: it decides about a caller before any
	// limit does.
	StandingAnswer = gen.Standing
	// PenaltiesAnswer is a page of penalties, newest first.
	PenaltiesAnswer = gen.Penalties
	// PenaltyAnswer is a penalty. PardonInput asks for a pardon, and PardonedAnswer is its answer.
	PenaltyAnswer  = gen.Penalty
	PardonInput    = gen.Pardon
	PardonedAnswer = gen.Pardoned
	// TopAnswer are the heaviest callers.
	TopAnswer = gen.Top
	// SeriesAnswer has the decisions over time. ComparisonAnswer compares the last minutes with the
	// same minutes an hour and a day ago.
	SeriesAnswer     = gen.SeriesAnswer
	ComparisonAnswer = gen.SeriesComparison
	// DistributionAnswer is the use of a policy by its callers.
	DistributionAnswer = gen.Distribution
	// KeyAnswer is a partition key with its buckets, BucketAnswer is a bucket, and HolderAnswer is
	// a node that holds permits of a bucket.
	KeyAnswer    = gen.Key
	BucketAnswer = gen.Bucket
	HolderAnswer = gen.PermitHolder
	// BansAnswer are bans of partition keys.
	BansAnswer = gen.KeyBans
	// ExplainedAnswer is the answer that a request would get, and why.
	ExplainedAnswer = gen.Explained
	// ExplainedPolicy is a policy that the request meets, MissedPolicy a policy that it does not
	// meet.
	ExplainedPolicy = gen.ExplainedPolicy
	MissedPolicy    = gen.MissedPolicy
	// UsageAnswer is the remaining quota of a caller.
	UsageAnswer = gen.Usage
	// UsedLimit is a limit in a UsageAnswer.
	UsedLimit = gen.UsedLimit
	// PoliciesAnswer is a page of the policies in force, PolicyInForce one of them.
	PoliciesAnswer = gen.Policies
	PolicyInForce  = gen.PolicyInForce
	// NodesAnswer is a page of nodes.
	NodesAnswer = gen.Nodes
	// RefusedNodeAnswer is an address whose calls as a node are refused.
	RefusedNodeAnswer = gen.RefusedNode
	// StateAnswer is the answer of a probe.
	StateAnswer = gen.State
	// NodeAnswer is one node.
	NodeAnswer = gen.Node
)

// The kinds of a StandingAnswer.
const (
	StandingOff     = gen.StandingWhatOff
	StandingShadow  = gen.StandingWhatShadow
	StandingBan     = gen.StandingWhatBan
	StandingBypass  = gen.StandingWhatBypass
	StandingPenalty = gen.StandingWhatPenalty
)
