package app

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/every"
	"github.com/weir-proxy/weir/controlplane/internal/store"
)

// meetEvery is the period at which a control plane looks for another deployment in its store.
const meetEvery = time.Minute

// shared is a store that several deployments may use by mistake.
type shared interface {
	Deployment(ctx context.Context, marks []string) (another bool, err error)
}

// neighbour notes whether another deployment uses the same keys of the store.
type neighbour struct{ there atomic.Bool }

// Warning returns the warning about the other deployment; empty if there is none.
func (n *neighbour) Warning() string {
	if !n.there.Load() {
		return ""
	}
	return "another deployment uses this Redis with the same keys: it accepts none of the tokens of this " +
		"control plane; give one deployment a prefix in its Redis URL"
}

// findNeighbour notes whether another deployment uses the store. A deployment is known by the
// tokens that it accepts: all of its control planes have a token in common.
func (a *App) findNeighbour(ctx context.Context, st store.Store) {
	s, ok := st.(shared)
	marks := a.tokens.Marks()
	if !ok || len(marks) == 0 {
		return
	}
	timed, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	another, err := s.Deployment(timed, marks)
	if err != nil {
		return // The next look finds it.
	}
	if a.neighbour.there.Swap(another) != another && another {
		a.log.Error(a.neighbour.Warning())
	}
}

// meetOthers looks for another deployment until ctx ends.
func (a *App) meetOthers(ctx context.Context) {
	every.Period(ctx, meetEvery, func(ctx context.Context) { a.findNeighbour(ctx, a.store) })
}
