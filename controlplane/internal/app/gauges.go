package app

import (
	"cmp"
	"context"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/metrics"
	"github.com/weir-proxy/weir/controlplane/internal/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/shared/policy"
)

// gauges are what metrics read when they are asked for.
func (a *App) gauges(sets *policies.Service, registry *nodes.Registry) metrics.Gauges {
	return metrics.Gauges{
		Nodes: func() float64 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			return float64(registry.Count(ctx))
		},
		Version: func() float64 {
			if current, _ := sets.Current(); current != nil {
				return float64(current.Version.Number)
			}
			return 0
		},
		Census: func() metrics.Census {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			c := metrics.Census{Versions: map[uint64]int{}, States: map[string]int{}}
			force, _ := sets.InForce()
			for _, n := range registry.Active(ctx) {
				c.Versions[n.Applied]++
				c.States[cmp.Or(n.State, policy.StepGround.String())]++
				if wanted := force.For(n.ID); wanted != nil && !wanted.Version.Is(n.Applied, n.Mark) {
					c.Behind++
				}
			}
			return c
		},
		Ready: func() float64 {
			if a.hub.Ready() != nil {
				return 0
			}
			return 1
		},
		Enforcement: func() (orders map[string]int, bans int, unsaved bool) {
			counts, bans, durable := a.orders.Counts()
			orders = map[string]int{}
			for state, n := range counts {
				orders[string(state)] = n
			}
			return orders, bans, !durable
		},
		Regions: func() float64 {
			if a.regions != nil {
				if view := a.regions.View(); view.Trouble != "" || view.Age < 0 {
					return 0
				}
			}
			return 1
		},
		SaveAge: a.saveAge(),
		PollAge: func() float64 { return time.Since(time.Unix(0, a.polled.Load())).Seconds() },
		Expiring: func() map[string]float64 {
			left := map[string]float64{}
			for _, e := range a.tokens.Expiring() {
				left[e.Name] = time.Until(e.Expires).Seconds()
			}
			return left
		},
	}
}

// saveAge reads how long ago the store saved what it counts; nil for a store that need not.
func (a *App) saveAge() func() float64 {
	s, ok := a.store.(saver)
	if !ok {
		return nil
	}
	return func() float64 {
		ago, _ := s.Saved()
		return ago.Seconds()
	}
}
