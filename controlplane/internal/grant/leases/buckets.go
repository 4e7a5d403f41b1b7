package leases

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Attempts is how often a store tries to change a bucket that is used meanwhile. Each attempt fails
// only if the bucket was used during it.
const Attempts = 1000

// ErrBusy: a bucket was used at each attempt to change it.
var ErrBusy = errs.New(errs.StoreUnavailable, "the bucket was used at each attempt to change it", fmt.Sprintf(
	"the bucket was used at each of %d attempts to change it, and nothing has been changed in it: "+
		"try again, or ban the key first", Attempts))

// ErrStale: another replica knows newer figures already.
var ErrStale = errs.New(errs.StoreUnavailable, "the policy set is being changed",
	"the policy set is being changed just now: try again")

// Buckets is the part of a store that operators look at and change.
type Buckets interface {
	// Adjust changes a bucket as lease.Ledger.Adjust does, or lease.WindowLedger.Adjust if the ask
	// has Windows, at the store's own time, and keeps the entry together with the change. The zero
	// Change looks: nothing is kept. The item names the bucket, by its asks, and which ledger of it
	// is meant. An entry without an action is not kept. The error is ErrBusy, or the store could
	// not be asked.
	Adjust(ctx context.Context, it Item, c lease.Change, entry audit.Entry) (lease.Holding, error)
	// Holders returns who holds permits of a bucket, and the store's time. Ended ones are left out.
	Holders(ctx context.Context, bucket keyhash.Key) (inflight.Ledger, quota.Instant, error)
}

// Key is one bucket as an operator names it.
type Key struct {
	By     *policies.Compiled
	Policy *policy.Policy
	// Limits are the policy's own.
	Limits []policy.Limit
	// Consumer may have limits of its own; nil for none.
	Consumer *keyhash.Key
	// Limit is the bucket's, or one that has had the bucket at another time, in a step of the
	// policy.
	Limit  policy.Limit
	Step   int
	Bucket keyhash.Key
	// Cost is that of the request that Holding.AdmitsAfter is about.
	Cost int64
	// Twin, if not nil, is the ask for the ledger by which the other nodes are decided: By is
	// rolled out, and nodes that have it are decided by a ledger of its own.
	Twin *lease.Ask
}

// Adjust looks at a bucket, or changes it, by the figures that are in force. The error is ErrStale
// while they are being replaced.
func (s *Service) Adjust(ctx context.Context, k Key, c lease.Change, entry audit.Entry) (lease.Holding, error) {
	held, err := s.adjust(ctx, k, c, entry, false)
	if errors.Is(err, ErrStale) && s.refreshOverrides(ctx) == nil {
		held, err = s.adjust(ctx, k, c, entry, true)
	}
	return held, err
}

func (s *Service) adjust(
	ctx context.Context, k Key, c lease.Change, entry audit.Entry, late bool,
) (lease.Holding, error) {
	limits, ownRevision, err := s.Own(ctx, k.By.Set, k.Policy, k.Consumer, k.Limits, late)
	limit, found := k.Policy.Find(limits, &k.Limit, k.Step)
	if err != nil || !found { // The override that had the limit has just ended.
		return lease.Holding{}, err
	}
	if _, known := s.part(k.Policy.Name); !known {
		return lease.Holding{}, ErrPart
	}
	by := effective{policy: k.Policy, limit: limit, ownRevision: ownRevision}
	by.bring(0, 0) // A bucket in use is looked at by the figures of its last caller.
	ask := s.baseAsk(k.Bucket, by, k.By.Version.Number)
	ask.Nodes, ask.Deadline, ask.Cost = 1, lease.Deadline, k.Cost
	it := Item{Bucket: k.Bucket, Ask: ask, Twin: k.Twin, Draft: k.Twin != nil}
	held, err := s.config.Buckets.Adjust(ctx, it, c, entry)
	if err == nil && held.Stale {
		err = ErrStale
	}
	return held, err
}
