package leases

import (
	"context"
	"errors"

	"github.com/weir-proxy/weir/controlplane/internal/regions"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Regions tells which part of each policy this region may grant. *regions.Service is one.
type Regions interface {
	// Part reports false while it is not known: nothing may be granted then.
	Part(name string) (regions.Part, bool)
	// Want notes tokens that the region was asked for.
	Want(name string, tokens int64)
	// Nodes is how many nodes share the whole limits, of which own are this region's.
	Nodes(own int64) int64
	// Refresh makes Part tell the newest.
	Refresh(ctx context.Context) error
}

var errPart = errors.New("it is not known which part of the limits this region may grant")

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

// allNodes is how many nodes share the whole limits.
func (s *Service) allNodes(own int64) int64 {
	if s.config.Regions == nil {
		return own
	}
	return s.config.Regions.Nodes(own)
}

// epochBits is how much of a ledger's version the epochs of parts have: for five years of a change every ten seconds without a new
// policy set. What is left of 53 bits, which Lua counts exactly, is for half a billion policy sets.
const epochBits = lease.EpochBits

// figures numbers the figures that a ledger is counted in: they change with the policy set and with the region's part of it.
func figures(version, epoch uint64) uint64 { return version<<epochBits | epoch&(1<<epochBits-1) }

// wholeDebt is the debt of an optimistic bucket as the nodes count it, who know the whole limit: they are to see the level that
// the region's part has.
func (s *Service) wholeDebt(it wire.LeaseItem, by terms, debt int64) int64 {
	p, whole, _, ok := s.resolve(it, by, by.current)
	if !ok || s.config.Regions == nil || p.Mode != policy.ModeOptimistic {
		return debt
	}
	part, _ := s.part(p.Name)
	has := part.Of(whole).Params
	owed := (debt + has.Den - 1) / has.Den
	return min(whole.Params.Burst-has.Burst+owed, 2*quota.MaxUnits/whole.Params.Den) * whole.Params.Den
}
