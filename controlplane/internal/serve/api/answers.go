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
	// DiffAnswer says what changes from one version to another.
	DiffAnswer = gen.VersionDiff
	// CheckedAnswer says what a document would promise and change.
	CheckedAnswer = gen.CheckedPolicySet
	// RolloutSide is what the nodes of a rollout, or the others, have decided lately.
	RolloutSide = gen.RolloutSide
	// RolloutAnswer is how far a rollout is, RolloutStepAnswer what a step of one did.
	RolloutAnswer     = gen.Rollout
	RolloutStepAnswer = gen.RolloutStep
	// ConsumerAnswer is what is known of a consumer.
	ConsumerAnswer = gen.Consumer
	// ConsumersAnswer is a page of consumers, in no order, each by its key alone.
	ConsumersAnswer = gen.Consumers
	// EnforcementAnswer are the orders in force.
	EnforcementAnswer = gen.Enforcement
	// AuditAnswer is a page of changes, newest first.
	AuditAnswer = gen.AuditEntries
	// ConsumerInput is what a consumer is to have; ConsumerBatch and ConsumerItem the same of many.
	ConsumerInput = gen.ConsumerInput
	ConsumerBatch = gen.ConsumerBatch
	ConsumerItem  = gen.ConsumerItem
	// ConsumerMark is a ban or a bypass, ConsumerOverride a limit of a consumer's own.
	ConsumerMark     = gen.Mark
	ConsumerOverride = gen.Override
	// DecisionsAnswer is a page of refusals, newest first.
	DecisionsAnswer = gen.Decisions
	// StandingAnswer is what decides about a caller before any limit does.
	StandingAnswer = gen.Standing
	// PenaltiesAnswer is a page of penalties, those that began last first.
	PenaltiesAnswer = gen.Penalties
	// PenaltyAnswer is one of them; PardonInput asks for a pardon, which PardonedAnswer answers.
	PenaltyAnswer  = gen.Penalty
	PardonInput    = gen.Pardon
	PardonedAnswer = gen.Pardoned
	// TopAnswer are the heaviest callers.
	TopAnswer = gen.Top
	// SeriesAnswer is what was decided over time, ComparisonAnswer the last minutes against an hour
	// and a day ago.
	SeriesAnswer     = gen.SeriesAnswer
	ComparisonAnswer = gen.SeriesComparison
	// DistributionAnswer is how much the callers of a policy use.
	DistributionAnswer = gen.Distribution
	// KeyAnswer is a partition key with what its buckets hold, BucketAnswer one of those, and
	// HolderAnswer a node that holds permits of one.
	KeyAnswer    = gen.Key
	BucketAnswer = gen.Bucket
	HolderAnswer = gen.PermitHolder
	// BansAnswer are bans of partition keys.
	BansAnswer = gen.KeyBans
	// ExplainedAnswer is what a request would be answered, and why.
	ExplainedAnswer = gen.Explained
	// ExplainedPolicy is a policy that the request meets, MissedPolicy one that it does not.
	ExplainedPolicy = gen.ExplainedPolicy
	MissedPolicy    = gen.MissedPolicy
	// UsageAnswer is what a caller has left.
	UsageAnswer = gen.Usage
	// UsedLimit is a limit of it.
	UsedLimit = gen.UsedLimit
	// PoliciesAnswer is a page of the policies in force, PolicyInForce one of them.
	PoliciesAnswer = gen.Policies
	PolicyInForce  = gen.PolicyInForce
	// NodesAnswer is a page of nodes.
	NodesAnswer = gen.Nodes
	// RefusedNodeAnswer is an address whose calls as a node are refused.
	RefusedNodeAnswer = gen.RefusedNode
	// StateAnswer is that of a probe.
	StateAnswer = gen.State
	// NodeAnswer is one node.
	NodeAnswer = gen.Node
)

// What a StandingAnswer can be.
const (
	StandingOff     = gen.StandingWhatOff
	StandingShadow  = gen.StandingWhatShadow
	StandingBan     = gen.StandingWhatBan
	StandingBypass  = gen.StandingWhatBypass
	StandingPenalty = gen.StandingWhatPenalty
)
