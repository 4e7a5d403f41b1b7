package enforcement

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/shared/wire"
)

// Ban bans a partition key by each of its hashes, and replaces earlier bans. It stores the bans of
// all hashes or none, and reports whether they are stored. The error is ErrTooMany, or ErrUnknown
// before the store has been reached, since other bans would be lost.
func (s *Service) Ban(ctx context.Context, b Ban, hashes []string, entry audit.Entry) (bool, error) {
	_, durable, err := s.changeDocument(ctx, false, func(d *Document, _ bool, stamp Stamp) (audit.Entry, error) {
		if !s.loaded {
			return entry, ErrUnknown
		}
		before := d.dropBans(hashes, stamp.Time)
		if len(d.Bans.List)+len(hashes) > wire.MaxBans {
			return entry, ErrTooMany
		}
		stamp.By = entry.By
		b.Since, b.By, b.Revision = stamp.Time, stamp.By, stamp.Revision
		for _, b.Key = range hashes {
			d.Bans.List = append(d.Bans.List, b)
		}
		b.Key = hashes[0]
		d.Bans.Stamp, entry.Before, entry.After, entry.Reason = stamp, auditBan(before), audit.Value(b), b.Reason
		return entry, nil
	})
	return durable, err
}

// Unban lifts the bans of a partition key by its hashes. It also lifts bans by other hashes that
// the same acts banned, as during a rollout. It returns these bans and reports whether the change
// is stored. The audit entry gets the resource of the ban, which may name another hash. The error
// is ErrNotBanned if no hash is banned, or ErrUnknown as in Ban.
func (s *Service) Unban(
	ctx context.Context, hashes []string, entry audit.Entry,
) (lifted []Ban, stored bool, err error) {
	_, stored, err = s.changeDocument(ctx, false, func(d *Document, _ bool, stamp Stamp) (audit.Entry, error) {
		if !s.loaded {
			return entry, ErrUnknown
		}
		if lifted = d.dropBans(d.Bans.withSameActs(hashes), stamp.Time); len(lifted) == 0 {
			return entry, ErrNotBanned
		}
		stamp.By = entry.By
		d.Bans.Stamp, entry.Before = stamp, auditBan(lifted)
		entry.Resource = "keys/" + lifted[0].Policy + "/" + lifted[0].Key
		for _, b := range lifted {
			d.Bans.Lifted = append(d.Bans.Lifted, Lifted{b.Key, stamp.Revision, stamp.Time})
		}
		d.Bans.Lifted = d.Bans.Lifted[max(0, len(d.Bans.Lifted)-wire.MaxBans):]
		return entry, nil
	})
	return lifted, stored, err
}

// withSameActs returns these hashes, and all hashes that the same acts banned.
func (b Bans) withSameActs(hashes []string) (all []string) {
	all = slices.Clone(hashes)
	for _, one := range b.List {
		if !slices.Contains(hashes, one.Key) {
			continue
		}
		for _, other := range b.List {
			if other.isOfAct(one) {
				all = append(all, other.Key)
			}
		}
	}
	return all
}

// dropBans removes a key's bans and liftings from the document, and all bans and liftings that have
// no effect any more. It returns the key's bans that were in force.
func (d *Document) dropBans(hashes []string, now time.Time) (held []Ban) {
	d.Bans.List = slices.DeleteFunc(d.Bans.List, func(b Ban) bool {
		isOfKey := slices.Contains(hashes, b.Key)
		if isOfKey && b.InForce(now) {
			held = append(held, b)
		}
		return isOfKey || !b.InForce(now)
	})
	d.Bans.Lifted = slices.DeleteFunc(d.Bans.Lifted, func(l Lifted) bool {
		return slices.Contains(hashes, l.Key) || !l.hasEffect(now)
	})
	return held
}

// isOfAct reports whether the same act made both bans: they differ only in the hash.
func (b Ban) isOfAct(other Ban) bool {
	return other.Policy == b.Policy && other.Revision == b.Revision && other.Since.Equal(b.Since)
}

// auditBan returns the first of a key's bans; if several acts made them, a list with the first ban
// of each act.
func auditBan(bans []Ban) []byte {
	switch acts := slices.CompactFunc(slices.Clone(bans), Ban.isOfAct); len(acts) {
	case 0:
		return nil
	case 1:
		return audit.Value(acts[0])
	default:
		return audit.Value(acts)
	}
}

// BansInForce returns all bans that have not ended, sorted by policy and time, and whether the
// store has them. The error is ErrUnknown before the store has been reached, also after an order.
func (s *Service) BansInForce() (bans []Ban, durable bool, err error) {
	s.mu.Lock()
	list, loaded, durable := s.held.Bans.List, s.loaded, !s.unsaved
	s.mu.Unlock()
	if !loaded {
		return nil, false, ErrUnknown
	}
	now := s.now()
	bans = slices.DeleteFunc(slices.Clone(list), func(b Ban) bool { return !b.InForce(now) })
	slices.SortStableFunc(bans, func(a, b Ban) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), a.Since.Compare(b.Since))
	})
	return bans, durable, nil
}

// Banned returns the ban of a partition key; nil if the key is not banned.
func (s *Service) Banned(key string) *Ban {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.held.Bans.List {
		if b.Key == key && b.InForce(s.now()) {
			return &b
		}
	}
	return nil
}
