package localstore

import (
	"context"
	"slices"
	"sync"

	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
)

// refusals are the reports of nodes. They are only in memory, because no decision depends on them.
type refusals struct {
	mu   sync.Mutex
	last uint64
	list []decisions.Decision // the newest is last
}

// AppendDecisions implements decisions.Store.
func (s *Store) AppendDecisions(_ context.Context, list []decisions.Decision) error {
	r := &s.refusals
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range list {
		r.last++
		d.ID = decisions.ID(r.last)
		r.list = append(r.list, d)
	}
	if over := len(r.list) - decisions.Kept; over > 0 {
		r.list = slices.Delete(r.list, 0, over)
	}
	return nil
}

// Decisions implements decisions.Store.
func (s *Store) Decisions(_ context.Context, before string, limit int) (page []decisions.Decision, err error) {
	if before != "" {
		if _, err := decisions.Number(before); err != nil {
			return nil, err
		}
	}
	r := &s.refusals
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.list) - 1; i >= 0 && len(page) < limit; i-- {
		if before == "" || r.list[i].ID < before {
			page = append(page, r.list[i])
		}
	}
	return page, nil
}
