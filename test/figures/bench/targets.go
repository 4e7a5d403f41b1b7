package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/test/figures"
)

// target is a promise that Weir makes itself: mostly a ratio of two figures of the same round.
type target struct {
	Name     string         `json:"name"`
	AtMost   float64        `json:"at_most"`
	Measured figures.Spread `json:"measured"`
	Met      bool           `json:"met"`
	// Flaw says why the figure means nothing in some round; such a target is not met.
	Flaw string `json:"flaw,omitempty"`
	// Floor is the cause if a sound figure misses the target.
	Floor string `json:"floor,omitempty"`
}

// promise is a target before it is measured.
type promise struct {
	name   string
	atMost float64
	needs  []string
	figure func(round) float64
	// flaw says why the figure would mean nothing, if it would.
	flaw  func(round) string
	floor string
	// parts are the summands of the figure, if it is a sum. They need further contestants.
	parts      []summand
	partsNeeds []string
}

// summand is a part of a figure.
type summand struct {
	name  string
	value func(round) float64
}

// withFloor returns the promise with the cause for which it may be missed.
func (p promise) withFloor(floor string) promise {
	p.floor = floor
	return p
}

// inTheWay returns the cause for which the rounds missed a promise.
func (p promise) inTheWay(rounds []round) string {
	if len(p.parts) == 0 || !rounds[0].has(p.partsNeeds) {
		return p.floor
	}
	parts := make([]string, len(p.parts))
	for i, one := range p.parts {
		parts[i] = fmt.Sprintf("%.2g %s", figures.Over(rounds, one.value).Median, one.name)
	}
	return "consists of " + strings.Join(parts, ", ")
}

// added returns the processor time for each request over that without a filter, in microseconds, of
// all processes.
func (r round) added(id string, s scene) float64 { return r.addedOver(id, "none", s) }

func (r round) addedOver(id, none string, s scene) float64 {
	return r[string(s)+"/"+id].cost() - r[string(s)+"/"+none].cost()
}

// addedToEnvoy returns the same of Envoy alone.
func (r round) addedToEnvoy(id string) float64 {
	return r["direct/"+id].EnvoyCPU - r["direct/none"].EnvoyCPU
}

// at returns the open loop of a contestant at a rate.
func (r round) at(id string, rate float64) (p paced, ok bool) {
	for _, p := range r[id].Open {
		if p.Rate == rate {
			return p, true
		}
	}
	return p, false
}

// addedAt returns the processor time that a contestant adds to a request on the curve; not ok if it
// or Envoy without a limit has not reached the rate.
func (r round) addedAt(id string, rate float64) (added float64, ok bool) {
	none, ok1 := r.at("curve/none", rate)
	p, ok2 := r.at("curve/"+id, rate)
	return p.cost() - none.cost(), ok1 && ok2 && none.reached() && p.reached()
}

const tooNoisy = "too noisy: in some round the filter to compare with cost nothing"

// compare returns a promise about the ratio of two costs.
func compare(name string, atMost float64, needs []string, of, base func(round) float64) promise {
	return promise{
		name: name, atMost: atMost, needs: needs,
		figure: func(r round) float64 { return of(r) / base(r) },
		flaw: func(r round) string {
			if of(r) <= 0 || base(r) <= 0 {
				return tooNoisy
			}
			return ""
		},
	}
}

// filter compares the costs that two filters add to Envoy's work.
func filter(name, id, base string, atMost float64) promise {
	return compare(name, atMost, []string{"direct/none", "direct/" + id, "direct/" + base},
		func(r round) float64 { return r.addedToEnvoy(id) }, func(r round) float64 { return r.addedToEnvoy(base) })
}

// beside compares the costs that two contestants of a scene add in the closed loop.
func beside(name string, s scene, id, base string, atMost float64) promise {
	in := string(s) + "/"
	p := compare(name, atMost, []string{in + "none", in + id, in + base},
		func(r round) float64 { return r.added(id, s) }, func(r round) float64 { return r.added(base, s) })
	// share returns a cost as a share of the cost that the other contestant adds.
	share := func(name string, cost func(round) float64) summand {
		return summand{name, func(r round) float64 { return cost(r) / r.added(base, s) }}
	}
	p.partsNeeds = []string{in + "empty", in + "local"}
	p.parts = []summand{
		share("to enter any Wasm filter", func(r round) float64 { return r.added("empty", s) }),
		share("to decide by a bucket of this Envoy", func(r round) float64 {
			return r[in+"local"].EnvoyCPU - r[in+"empty"].EnvoyCPU
		}),
		share("for what else the mode does in Envoy, its calls among it", func(r round) float64 {
			return r[in+id].EnvoyCPU - r[in+"local"].EnvoyCPU
		}),
		share("in the control plane and Redis", func(r round) float64 { return r[in+id].OtherCPU }),
	}
	return p
}

// nativeBeside compares the costs that a mode on the native host and Envoy's ratelimit filter add.
func nativeBeside(name string, s scene, mode string, atMost float64) promise {
	id := mode + nativeSuffix
	p := beside("native host, "+name+": added / ratelimit's", s, id, "ratelimit", atMost)
	in := string(s) + "/"
	p.partsNeeds = []string{in + "local" + nativeSuffix}
	share := func(name string, cost func(round) float64) summand {
		return summand{name, func(r round) float64 { return cost(r) / r.added("ratelimit", s) }}
	}
	p.parts = []summand{
		share("to decide by a bucket of this Envoy", func(r round) float64 { return r.added("local"+nativeSuffix, s) }),
		share("for what else the mode does in Envoy, its calls among it", func(r round) float64 {
			return r[in+id].EnvoyCPU - r[in+"local"+nativeSuffix].EnvoyCPU
		}),
		share("in the control plane and Redis", func(r round) float64 { return r[in+id].OtherCPU }),
	}
	return p
}

// behind compares the costs of the two services that Envoy's ratelimit filter can ask.
func behind(name string, s scene, atMost float64) promise {
	in := string(s) + "/"
	return compare(name, atMost, []string{in + "none", in + "rls", in + "ratelimit"},
		func(r round) float64 { return r.added("rls", s) }, func(r round) float64 { return r.added("ratelimit", s) })
}

// onCurve compares a contestant, leased, with Envoy's ratelimit filter at one rate.
func onCurve(name, id string, rate, atMost float64) promise {
	of := func(id string) func(round) float64 {
		return func(r round) float64 {
			added, _ := r.addedAt(id, rate)
			return added
		}
	}
	p := compare(fmt.Sprintf("%s, 100 000 cold keys, %.0f requests a second: added / ratelimit's", name, rate), atMost,
		[]string{"curve/none", "curve/" + id, "curve/ratelimit"}, of(id), of("ratelimit"))
	noisy := p.flaw
	p.flaw = func(r round) string {
		_, ok1 := r.addedAt(id, rate)
		_, ok2 := r.addedAt("ratelimit", rate)
		if !ok1 || !ok2 {
			return "in some round one of them did not reach that rate"
		}
		return noisy(r)
	}
	return p
}

// latency compares a percentile of the open loops of two contestants of a scene.
func latency(name string, s scene, id, base string, atMost float64, percentile func(paced) float64) promise {
	of, other := string(s)+"/"+id, string(s)+"/"+base
	return promise{
		name: name, atMost: atMost, needs: []string{other, of},
		figure: func(r round) float64 { return percentile(r.opened(of)) / percentile(r.opened(other)) },
		flaw: func(r round) string {
			if r.opened(of).Rate != r.opened(other).Rate {
				return "in some round only at a lower load"
			}
			return ""
		},
	}
}

// atRest is a promise about an Envoy without requests, which uses some of a processor without any
// filter, too.
func atRest(name, id string, atMost float64) promise {
	idle := func(id string) func(round) float64 { return func(r round) float64 { return r["idle/"+id].IdleEnvoy } }
	return promise{
		name: name, atMost: atMost, needs: []string{"idle/" + id}, figure: idle(id), flaw: flawless,
		partsNeeds: []string{"idle/none"},
		parts: []summand{
			{"of Envoy itself", idle("none")},
			{"of the filter", func(r round) float64 { return r["idle/"+id].IdleEnvoy - r["idle/none"].IdleEnvoy }},
		},
	}
}

// opened returns the first open loop of a contestant.
func (r round) opened(id string) paced { return r[id].first() }

// first returns the first open loop; zero without an open loop.
func (f reading) first() paced {
	if len(f.Open) == 0 {
		return paced{}
	}
	return f.Open[0]
}

func p50(p paced) float64 { return p.P50 }
func p99(p paced) float64 { return p.P99 }

// ladderShare returns the largest share of requests that the failure ladder decided in an open loop
// whose rate was reached, in percent.
func ladderShare(r round) (most float64) {
	for _, f := range r {
		for _, p := range f.Open {
			if p.reached() {
				most = max(most, 100*p.Ladder)
			}
		}
	}
	return most
}

// has reports whether all these contestants are in the round.
func (r round) has(ids []string) bool {
	return !slices.ContainsFunc(ids, func(id string) bool { _, ok := r[id]; return !ok })
}

func flawless(round) string { return "" }

// judge measures every promise whose contestants were all there.
func judge(rounds []round) (targets []target) {
	for _, p := range promises() {
		if !rounds[0].has(p.needs) {
			continue
		}
		t := target{Name: p.name, AtMost: p.atMost, Measured: figures.Over(rounds, p.figure)}
		for _, r := range rounds {
			t.Flaw = max(t.Flaw, p.flaw(r))
		}
		t.Met = t.Flaw == "" && t.Measured.Median <= p.atMost
		if !t.Met && t.Flaw == "" {
			t.Floor = p.inTheWay(rounds)
		}
		targets = append(targets, t)
	}
	return targets
}
