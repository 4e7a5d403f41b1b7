package leases

import (
	"context"
	"errors"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
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
	Adjust(ctx context.Context, bucket keyhash.Key, ask lease.Ask, c lease.Change, entry audit.Entry) (lease.Holding, error)
}

// Key is one bucket as an operator means it: that of the limit with the number Place among those that a Person, nil for nobody, has of
// a policy whose own ones are Limits.
type Key struct {
	By     *policies.Compiled
	Policy *policy.Policy
	Limits []policy.Limit
	Person *keyhash.Key
	Place  int
	Bucket keyhash.Key
}

// Adjust looks at a bucket, or changes it, by the figures that are in force. ErrStale: they are being replaced.
func (s *Service) Adjust(ctx context.Context, k Key, c lease.Change, entry audit.Entry) (lease.Holding, error) {
	held, err := s.adjust(ctx, k, c, entry, false)
	if errors.Is(err, ErrStale) && s.refreshPeople(ctx) == nil {
		held, err = s.adjust(ctx, k, c, entry, true)
	}
	return held, err
}

func (s *Service) adjust(ctx context.Context, k Key, c lease.Change, entry audit.Entry, late bool) (lease.Holding, error) {
	limits, turn, err := s.Own(ctx, k.Policy, k.Person, k.Limits, late)
	if err != nil || k.Place >= len(limits) { // The override that had it has just ended.
		return lease.Holding{}, err
	}
	whole, bucket := limits[k.Place], k.Bucket
	part, known := s.part(k.Policy.Name)
	if !known {
		return lease.Holding{}, errPart
	}
	limit := part.Of(whole)
	ask := lease.Ask{
		Params: limit.Params, Windows: limit.WindowsOf(bucket), Version: figures(k.By.Version.Number, part.Epoch) + turn, Nodes: 1, Deadline: lease.Deadline,
	}
	if limit.Params != whole.Params {
		ask.Hold = lease.TTL(whole.Params)
	}
	held, err := s.config.Buckets.Adjust(ctx, bucket, ask, c, entry)
	if err == nil && held.Stale {
		err = ErrStale
	}
	return held, err
}

// ErrStale: another replica knows of newer figures already.
var ErrStale = errors.New("the policy set is being changed")
