package leases

import (
	"context"
	"errors"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
)

// ErrBusy: a bucket was used at each attempt to change it.
var ErrBusy = errors.New("the bucket was used at each attempt to change it")

// Buckets is the part of a store that operators look at and change.
type Buckets interface {
	// Adjust changes a bucket as lease.Ledger.Adjust does, or lease.WindowLedger.Adjust if the ask has Windows, at the store's own
	// time, and keeps the entry together with the change. The zero Change looks: nothing is kept. ErrBusy, or the store could not be
	// asked.
	Adjust(ctx context.Context, bucket [16]byte, ask lease.Ask, c lease.Change, entry audit.Entry) (lease.Holding, error)
}

// With says where single buckets are looked at and changed, and returns the service. It is to be called before any Adjust.
func (s *Service) With(buckets Buckets) *Service {
	s.buckets = buckets
	return s
}

// Adjust looks at a bucket of a policy's limit, or changes it, by the figures that a policy set says.
func (s *Service) Adjust(ctx context.Context, by *policies.Compiled, p *policy.Policy, whole policy.Limit, bucket [16]byte, c lease.Change, entry audit.Entry) (lease.Holding, error) {
	part, known := s.part(p.Name)
	if !known {
		return lease.Holding{}, errPart
	}
	limit := part.Of(whole)
	ask := lease.Ask{
		Params: limit.Params, Windows: limit.WindowsOf(bucket), Version: figures(by.Version.Number, part.Epoch), Nodes: 1, Deadline: lease.Deadline,
	}
	if limit.Params != whole.Params {
		ask.Hold = lease.TTL(whole.Params)
	}
	held, err := s.buckets.Adjust(ctx, bucket, ask, c, entry)
	if err == nil && held.Stale {
		err = ErrStale
	}
	return held, err
}

// ErrStale: another replica has a newer policy set already.
var ErrStale = errors.New("the policy set is being changed")
