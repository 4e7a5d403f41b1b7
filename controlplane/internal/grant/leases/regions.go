package leases

import (
	"context"

	"github.com/weir-proxy/weir/controlplane/internal/grant/regions"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Regions decides which part of each policy this region may grant. *regions.Service implements it.
type Regions interface {
	// Part reports false while the part is not known: nothing may be granted then.
	Part(name string) (regions.Part, bool)
	// Want notes tokens that the region was asked for.
	Want(name string, tokens int64)
	// Nodes is how many nodes share the whole limits, of which own are this region's.
	Nodes(own int64) int64
	// Refresh reads the newest parts from the store.
	Refresh(ctx context.Context) error
}

// ErrPart: the region cannot grant anything, whatever the store says.
var ErrPart = errs.New(errs.StoreUnavailable, "it is not known which part of the limits this region may grant",
	"this region does not know its share of the limits: weir get regions says why")

// part returns the part of a policy that may be granted here: all of it without other regions.
func (s *Service) part(name string) (regions.Part, bool) {
	if s.config.Regions == nil {
		return regions.Part{Rate: regions.Whole, Burst: regions.Whole}, true
	}
	return s.config.Regions.Part(name)
}

func (s *Service) refreshPart(ctx context.Context) error {
	if s.config.Regions == nil {
		return nil
	}
	return s.config.Regions.Refresh(ctx)
}

// Nodes is how many nodes and doors share the limits, over all regions.
func (s *Service) Nodes(ctx context.Context) int64 { return s.allNodes(s.config.Nodes.Count(ctx)) }

// allNodes is how many nodes share the whole limits.
func (s *Service) allNodes(own int64) int64 {
	if s.config.Regions == nil {
		return own
	}
	return s.config.Regions.Nodes(own)
}

// epochBits is how many bits of a ledger's version count the epochs of parts: enough for five years
// of a change every ten seconds without a new policy set. Lua counts 53 bits exactly; the rest of
// them is enough for half a billion policy sets.
const epochBits = lease.EpochBits

// ledgerVersion numbers the figures of a ledger: they change with the policy set and with the
// region's part of it.
func ledgerVersion(version, epoch uint64) uint64 {
	return version<<epochBits | epoch&(1<<epochBits-1)
}

// wholeDebt converts the debt of an optimistic bucket to the whole limit, which is the one that
// nodes know: they see the level that the region's part has.
func (s *Service) wholeDebt(by effective, debt int64) int64 {
	if s.config.Regions == nil || by.policy.Mode != policy.ModeOptimistic {
		return debt
	}
	part, _ := s.part(by.policy.Name)
	owed, unit := part.Of(by.largest).Params.TokensIn(debt), by.largest.Params.Den
	lacks := by.limit.Params.Burst - part.Of(by.limit).Params.Burst
	return min(lacks+owed, 2*quota.MaxUnits/unit) * unit
}
