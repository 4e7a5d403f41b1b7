package leases

import (
	"context"

	"github.com/weir-proxy/weir/controlplane/internal/grant/regions"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Regions decides the part of each policy that this region may grant. *regions.Service implements
// it.
type Regions interface {
	// Part returns false while the part is not known: then nothing may be granted.
	Part(name string) (regions.Part, bool)
	// Want counts tokens that the region was asked for.
	Want(name string, tokens int64)
	// Nodes returns the number of nodes that share the whole limits; own is the number of this
	// region's nodes.
	Nodes(own int64) int64
	// Refresh reads the newest parts from the store.
	Refresh(ctx context.Context) error
}

// ErrPart means that the region cannot grant anything, even if the store answers.
var ErrPart = errs.New(errs.StoreUnavailable, "this region does not know its part of the limits",
	"this region does not know its share of the limits: weir get regions says why")

// partOf returns the part of a policy that this region may grant; all of it without other regions.
func (s *Service) partOf(name string) (regions.Part, bool) {
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

// Nodes returns the number of nodes and doors that share the limits, in all regions.
func (s *Service) Nodes(ctx context.Context) int64 { return s.allNodes(s.config.Nodes.Count(ctx)) }

// allNodes returns the number of nodes that share the whole limits.
func (s *Service) allNodes(own int64) int64 {
	if s.config.Regions == nil {
		return own
	}
	return s.config.Regions.Nodes(own)
}

// epochBits is the number of bits of a ledger's version that count the epochs of parts: enough for
// a change every ten seconds for five years without a new policy set. Lua counts exactly up to 53
// bits; the other bits are enough for half a billion policy sets.
const epochBits = lease.EpochBits

// ledgerVersion returns the version of a ledger's figures: it changes with the policy set and with
// the region's part.
func ledgerVersion(version, epoch uint64) uint64 {
	return version<<epochBits | epoch&(1<<epochBits-1)
}

// wholeDebt converts the debt of an optimistic bucket to the whole limit, which nodes use. Nodes
// then see the level of the region's part.
func (s *Service) wholeDebt(by effective, debt int64) int64 {
	if s.config.Regions == nil || by.policy.Mode != policy.ModeOptimistic {
		return debt
	}
	part, _ := s.partOf(by.policy.Name)
	owed, unit := part.Of(by.largest).Params.TokensIn(debt), by.largest.Params.Den
	lacks := by.limit.Params.Burst - part.Of(by.limit).Params.Burst
	return min(lacks+owed, 2*quota.MaxUnits/unit) * unit
}
