package main

import (
	"slices"

	"github.com/weir-proxy/weir/test/bench/gauge"
)

// target is a promise that Weir makes itself: a ratio of two figures of the same round.
type target struct {
	Name     string       `json:"name"`
	AtMost   float64      `json:"at_most"`
	Measured gauge.Spread `json:"measured"`
	Met      bool         `json:"met"`
	// Flaw says why the ratio means nothing in some round; such a target is not met.
	Flaw string `json:"flaw,omitempty"`
}

// promise is a target before it is measured.
type promise struct {
	name   string
	atMost float64
	needs  []string
	ratio  func(round) float64
	// flaw says why the ratio would mean nothing, if it would.
	flaw func(round) string
}

// added is the processor time for each request over that without a filter, in microseconds, of all
// processes.
func (r round) added(id string, s scene) float64 {
	none, f := r[string(s)+"/none"], r[string(s)+"/"+id]
	return f.EnvoyCPU + f.OtherCPU - none.EnvoyCPU - none.OtherCPU
}

// addedToEnvoy is the same of Envoy alone.
func (r round) addedToEnvoy(id string) float64 {
	return r["direct/"+id].EnvoyCPU - r["direct/none"].EnvoyCPU
}

// filter compares what two filters add to Envoy's work.
func filter(name, id, base string, atMost float64) promise {
	ratio := func(r round) float64 { return r.addedToEnvoy(id) / r.addedToEnvoy(base) }
	flaw := func(r round) string {
		if r.addedToEnvoy(base) <= 0 {
			return "too noisy: in some round the filter to compare with cost nothing"
		}
		return ""
	}
	return promise{name: name, atMost: atMost, needs: []string{"direct/none", "direct/" + id, "direct/" + base}, ratio: ratio, flaw: flaw}
}

func latency(name, id string) promise {
	of, none := "proxied/"+id, "proxied/none"
	return promise{
		name: name, atMost: 1.15, needs: []string{none, of},
		ratio: func(r round) float64 { return r[of].P99 / r[none].P99 },
		flaw: func(r round) string {
			if r[of].OpenRate != r[none].OpenRate {
				return "in some round only at a lower load"
			}
			return ""
		},
	}
}

func promises() []promise {
	return []promise{
		filter("filter, local, two headers / empty filter", "local", "empty", 2.3),
		filter("filter, leased in hand, two headers / empty filter", "leased", "empty", 2.3),
		filter("filter, refused / empty filter", "refused", "empty", 2.3),
		filter("filter, 5 policies apply / 1 applies", "five", "local", 2),
		filter("filter, 1 of 10 000 policies applies / 1 of 1", "thousands", "local", 1.1),
		{
			name: "a global limit, leased / ratelimit, its service and Redis", atMost: 1.0 / 12,
			needs: []string{"proxied/none", "proxied/leased", "proxied/ratelimit"},
			ratio: func(r round) float64 { return r.added("leased", proxied) / r.added("ratelimit", proxied) },
			flaw: func(r round) string {
				if r.added("leased", proxied) <= 0 || r.added("ratelimit", proxied) <= 0 {
					return "too noisy: in some round a limit cost nothing"
				}
				return ""
			},
		},
		latency("99th percentile, local / no limit", "local"),
		latency("99th percentile, leased / no limit", "leased"),
	}
}

// judge measures every promise whose contestants were all there.
func judge(rounds []round) (targets []target) {
	for _, p := range promises() {
		if slices.ContainsFunc(p.needs, func(id string) bool { _, ok := rounds[0][id]; return !ok }) {
			continue
		}
		t := target{Name: p.name, AtMost: p.atMost, Measured: gauge.Over(rounds, p.ratio)}
		for _, r := range rounds {
			t.Flaw = max(t.Flaw, p.flaw(r))
		}
		t.Met = t.Flaw == "" && t.Measured.Median <= p.atMost
		targets = append(targets, t)
	}
	return targets
}
