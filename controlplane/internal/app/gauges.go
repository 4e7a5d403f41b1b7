package app

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/push"
	"github.com/weir-proxy/weir/controlplane/internal/grant/regions"
	"github.com/weir-proxy/weir/controlplane/internal/observe/metrics"
	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/policy"
)

// gaugeTimeout bounds how long a gauge may ask the store.
const gaugeTimeout = time.Second

// newGauges returns the functions that metrics call when they are read.
func (a *App) newGauges(on api.Config) metrics.Gauges {
	sets, registry := on.Policies, on.Nodes
	return metrics.Gauges{
		Nodes:       func() float64 { return countNodes(registry) },
		Refused:     func() float64 { return float64(registry.RefusedNow()) },
		Unmet:       func() float64 { return countUnmet(sets, on.Series, on.Enforcement, on.Now()) },
		Version:     func() float64 { return currentVersion(sets) },
		Census:      func() metrics.Census { return takeCensus(sets, registry, a.hub) },
		Ready:       func() float64 { return indicator(a.hub.Ready() == nil) },
		Enforcement: a.countOrders,
		Penalties:   a.penalties.Counts,
		Fullest:     on.Series.Fullest,
		Regions:     func() float64 { return indicator(a.regions == nil || sharesMove(a.regions.View())) },
		SaveAge:     a.saveAge(),
		Full:        a.fullGauge(),
		Files:       a.filesInForce(),
		PollAge:     func() float64 { return time.Since(time.Unix(0, a.polled.Load())).Seconds() },
		Expiring:    a.secondsToExpiry,
		Distance:    readSeconds(on.Distance),
		WrongFiles: func() map[string]float64 {
			ones := map[string]float64{}
			for name := range on.WrongFiles() {
				ones[name] = 1
			}
			return ones
		},
		ClockAhead: a.clockAhead(),
		Shared:     a.sharedStore(),
	}
}

// sharedStore returns the gauge for another deployment in the store; nil for a store that no other
// deployment can use.
func (a *App) sharedStore() func() float64 {
	if _, ok := a.store.(shared); !ok {
		return nil
	}
	return func() float64 { return indicator(a.neighbour.Warning() != "") }
}

// clockAhead returns the gauge for this machine's clock; nil if the store uses this machine's
// clock.
func (a *App) clockAhead() func() float64 {
	if _, ok := a.store.(shared); !ok {
		return nil
	}
	return func() float64 {
		if ahead, known := a.clock.Ahead(); known {
			return ahead.Seconds()
		}
		return math.NaN()
	}
}

// readSeconds returns a function that reads a duration in seconds; nil for nil.
func readSeconds(read func() time.Duration) func() float64 {
	if read == nil {
		return nil
	}
	return func() float64 { return read().Seconds() }
}

// indicator returns 1 if a thing is so, and 0 if not.
func indicator(so bool) float64 {
	if so {
		return 1
	}
	return 0
}

func countNodes(registry *nodes.Registry) float64 {
	ctx, cancel := context.WithTimeout(context.Background(), gaugeTimeout)
	defer cancel()
	envoys, _ := registry.Fleet(ctx)
	return float64(envoys)
}

// currentVersion returns the number of the policy set in force, 0 before the first.
func currentVersion(sets *policies.Service) float64 {
	current, _ := sets.Current()
	if current == nil {
		return 0
	}
	return float64(current.Version.Number)
}

// countUnmet counts the policies that no request meets. It does not count policies that are off.
func countUnmet(
	sets *policies.Service, history *series.Service, orders *enforcement.Service, now time.Time,
) float64 {
	current, _ := sets.Current()
	if current == nil {
		return 0
	}
	held, _, _ := orders.Held() // Unknown orders count as no orders.
	unmet, _ := history.Unmet(namesInForce(current.Set.Policies, held.Orders, now), current.Version.Time)
	return float64(len(unmet))
}

// namesInForce returns the names of the policies that neither the set nor an order has off.
func namesInForce(all []policy.Policy, orders enforcement.Orders, now time.Time) (names []string) {
	ordered := map[string]enforcement.Order{}
	for _, o := range orders.List {
		if o.Tier == "" && o.InForce(now) {
			ordered[o.Policy] = o
		}
	}
	for i := range all {
		o, is := ordered[all[i].Name]
		if !is {
			o, is = ordered[""]
		}
		off := all[i].Enforced == policy.EnforcedOff
		if is {
			off = o.State == enforcement.Off && o.Percent == 100
		}
		if !off {
			names = append(names, all[i].Name)
		}
	}
	return names
}

// takeCensus counts the active nodes by version, by step of the failure ladder, and the nodes that
// are behind.
func takeCensus(sets *policies.Service, registry *nodes.Registry, hub *push.Hub) metrics.Census {
	ctx, cancel := context.WithTimeout(context.Background(), gaugeTimeout)
	defer cancel()
	c := metrics.Census{Versions: map[uint64]int{}, States: map[string]int{}}
	active, _ := sets.Active()
	for _, n := range registry.Active(ctx) {
		c.Versions[n.Applied]++
		c.States[cmp.Or(n.State, policy.StepGround.String())]++
		if wanted := active.For(n.ID); wanted != nil && !hub.Has(&wanted.Version, n.Applied, n.Mark) {
			c.Behind++
		}
	}
	return c
}

// sharesMove reports whether shares can move between the regions.
func sharesMove(view regions.View) bool { return view.Trouble == "" && view.Age >= 0 }

// countOrders counts the overrides by state, and the bans. unsaved is true if the store does not
// have them.
func (a *App) countOrders() (overrides map[string]int, bans int, unsaved bool) {
	counts, bans, durable := a.enforcement.Counts()
	overrides = map[string]int{}
	for state, n := range counts {
		overrides[string(state)] = n
	}
	return overrides, bans, !durable
}

// secondsToExpiry returns for each name the seconds until its last token expires.
func (a *App) secondsToExpiry() map[string]float64 {
	left := map[string]float64{}
	for _, e := range a.tokens.Expiring() {
		left[e.Name] = time.Until(e.Expires).Seconds()
	}
	return left
}

// saveAge returns the gauge for the age of the store's last save; nil for a store that does not
// save.
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

// fullGauge returns the gauge for how often the store had no room for a bucket; nil for a store
// that always has room.
func (a *App) fullGauge() func() float64 {
	s, ok := a.store.(saver)
	if !ok {
		return nil
	}
	return func() float64 { return float64(s.Refused()) }
}

// filesInForce reads whether the policy set of the files is in force; nil without files.
func (a *App) filesInForce() func() float64 {
	if a.files == nil {
		return nil
	}
	return func() float64 { return indicator(a.files.InForce()) }
}
