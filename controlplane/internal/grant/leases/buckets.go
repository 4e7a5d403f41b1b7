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

// Attempts is the number of attempts of a store to change a bucket. An attempt fails only if the
// bucket was used during the attempt.
const Attempts = 1000

// ErrBusy means that a bucket was used during each attempt to change it.
var ErrBusy = errs.New(errs.StoreUnavailable, "the bucket was used at each attempt to change it", fmt.Sprintf(
	"the bucket was used at each of %d attempts to change it, and nothing has been changed in it: "+
		"try again, or ban the key first", Attempts))

// ErrStale means that another replica already uses newer figures.
var ErrStale = errs.New(errs.StoreUnavailable, "the policy set is being changed",
	"the policy set is being changed just now: try again")

// Buckets is the part of a store that operators read and change.
type Buckets interface {
	// Adjust changes a bucket as lease.Ledger.Adjust does, or as lease.WindowLedger.Adjust if the
	// ask has Windows, at the store's own time. It stores the audit entry together with the change,
	// unless the entry has no action. The zero Change only reads. The item names the bucket, by its
	// asks, and which of its ledgers. The error is ErrBusy, or the store did not answer.
	Adjust(ctx context.Context, it Item, c lease.Change, entry audit.Entry) (lease.Holding, error)
	// Holders returns the holders of a bucket's permits that have not ended, and the store's time.
	Holders(ctx context.Context, bucket keyhash.Key) (inflight.Ledger, quota.Instant, error)
}

// Key identifies one bucket for an operator.
type Key struct {
	By     *policies.Compiled
	Policy *policy.Policy
	// Limits are the limits of the policy.
	Limits []policy.Limit
	// Consumer may have limits of its own; nil for no consumer.
	Consumer *keyhash.Key
	// Limit is the bucket's limit, or a limit that used the bucket at another time, in a step of
	// the policy.
	Limit  policy.Limit
	Step   int
	Bucket keyhash.Key
	// Cost is the cost of the request in Holding.AdmitsAfter, in tokens.
	Cost int64
	// Twin is the ask for the ledger of the other nodes, if By is rolled out and its nodes have a
	// ledger of their own; nil otherwise.
	Twin *lease.Ask
}

// Adjust reads or changes a bucket, with the figures in force. The error is ErrStale while the
// figures are being replaced.
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
	if err != nil || !found { // The override with this limit has just ended.
		return lease.Holding{}, err
	}
	if _, known := s.partOf(k.Policy.Name); !known {
		return lease.Holding{}, ErrPart
	}
	by := effective{policy: k.Policy, limit: limit, ownRevision: ownRevision}
	by.bringFigures(0, 0) // A bucket in use keeps the figures of its last caller.
	ask := s.baseAsk(k.Bucket, by, k.By.Version.Number)
	ask.Nodes, ask.Deadline, ask.Cost = 1, lease.Deadline, k.Cost
	it := Item{Bucket: k.Bucket, Ask: ask, Twin: k.Twin, Draft: k.Twin != nil}
	held, err := s.config.Buckets.Adjust(ctx, it, c, entry)
	if err == nil && held.Stale {
		err = ErrStale
	}
	return held, err
}
