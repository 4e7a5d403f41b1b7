package enforcement

import (
	"context"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/shared/wire"
)

// Ban bans a partition key, replacing its earlier ban, and returns the ban and whether it is
// stored. The error is ErrTooMany, or ErrUnknown before the store has been reached, since other
// bans would be lost.
func (s *Service) Ban(ctx context.Context, b Ban, entry audit.Entry) (Ban, bool, error) {
	_, durable, err := s.change(ctx, false, func(d *Document, _ bool, stamp Stamp) (audit.Entry, error) {
		if !s.loaded {
			return entry, ErrUnknown
		}
		before := s.dropBan(d, b.Key, stamp.Time)
		if len(d.Bans.List) >= wire.MaxBans {
			return entry, ErrTooMany
		}
		stamp.By = entry.By
		b.Since, b.By, b.Revision = stamp.Time, stamp.By, stamp.Revision
		d.Bans.Stamp, d.Bans.List = stamp, append(d.Bans.List, b)
		entry.Before = auditBan(before)
		entry.After = audit.Value(b)
		entry.Reason = b.Reason
		return entry, nil
	})
	return b, durable, err
}

// Unban lifts the ban of a partition key, and reports whether that is stored. The error is
// ErrNotBanned, or ErrUnknown as in Ban.
func (s *Service) Unban(ctx context.Context, key string, entry audit.Entry) (bool, error) {
	_, durable, err := s.change(ctx, false, func(d *Document, _ bool, stamp Stamp) (audit.Entry, error) {
		if !s.loaded {
			return entry, ErrUnknown
		}
		before := s.dropBan(d, key, stamp.Time)
		if before == nil {
			return entry, ErrNotBanned
		}
		stamp.By = entry.By
		d.Bans.Stamp, entry.Before = stamp, auditBan(before)
		d.Bans.Lifted = append(d.Bans.Lifted, Lifted{key, stamp.Revision, stamp.Time})
		d.Bans.Lifted = d.Bans.Lifted[max(0, len(d.Bans.Lifted)-wire.MaxBans):]
		return entry, nil
	})
	return durable, err
}

// dropBan removes a key's ban and its lifting from the document, and all bans and liftings that no
// longer matter. It returns the key's ban if it was in force.
func (s *Service) dropBan(d *Document, key string, now time.Time) (held *Ban) {
	d.Bans.List = slices.DeleteFunc(d.Bans.List, func(b Ban) bool {
		if b.Key == key && b.InForce(now) {
			held = &b
		}
		return b.Key == key || !b.InForce(now)
	})
	d.Bans.Lifted = slices.DeleteFunc(d.Bans.Lifted, func(l Lifted) bool {
		return l.Key == key || !l.matters(now)
	})
	return held
}

func auditBan(b *Ban) []byte {
	if b == nil {
		return nil
	}
	return audit.Value(b)
}

// Banned returns the ban of a partition key, nil if there is none.
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
