package main

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-proxy/weir/test/figures"
	"github.com/weir-proxy/weir/test/figures/bench/load"
)

// paced has the measurements of an open loop.
type paced struct {
	// Rate is how many requests a second were due, Reached how many were answered; 0 is unknown.
	Rate    float64 `json:"requests_per_second"`
	Reached float64 `json:"reached_per_second,omitempty"`
	// EnvoyCPU, OtherCPU and LoadCPU are as in figures.
	EnvoyCPU float64 `json:"envoy_cpu_us,omitempty"`
	OtherCPU float64 `json:"other_cpu_us,omitempty"`
	LoadCPU  float64 `json:"load_cpu_us,omitempty"`
	// Calls and Ladder are as in figures.
	Calls  float64 `json:"calls,omitempty"`
	Ladder float64 `json:"ladder,omitempty"`
	// The percentiles of latencies are in milliseconds.
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	P999 float64 `json:"p999_ms"`
}

// cost returns the processor time for each answer in microseconds.
func (p paced) cost() float64 { return p.EnvoyCPU + p.OtherCPU }

// reached reports whether all requests were answered about as soon as they were due.
func (p paced) reached() bool { return p.Reached == 0 || p.Reached > 0.95*p.Rate }

// curveRates are the rates of the curve, in requests a second.
var curveRates = []float64{200, 1000, 1500, 3000, 10_000}

// pacedLoop asks in an open loop.
func (t *trial) pacedLoop(ctx context.Context, rate float64, during time.Duration) (p paced, err error) {
	before, err := t.world.count(ctx, t.contestant)
	if err != nil {
		return p, err
	}
	result, spent, err := t.spend(func() (load.Result, error) { return t.open(ctx, rate, during) })
	if err == nil {
		err = t.world.prove(ctx, t.contestant, before.proof, result.Answered())
	}
	if err != nil {
		return p, err
	}
	after, err := t.world.count(ctx, t.contestant)
	n := float64(result.Answered())
	return paced{
		Rate: rate, Reached: figures.Rounded(n / result.Duration.Seconds()),
		EnvoyCPU: micros(spent.envoy, n), OtherCPU: micros(spent.others, n), LoadCPU: micros(spent.self, n),
		Calls:  figures.Rounded(float64(after.calls-before.calls) / n),
		Ladder: figures.Rounded(float64(after.ladder-before.ladder) / n),
		P50:    milliseconds(result, 0.5), P99: milliseconds(result, 0.99), P999: milliseconds(result, 0.999),
	}, err
}

func milliseconds(r load.Result, p float64) float64 {
	return float64(r.Percentile(p).Microseconds()) / 1000
}

// openAll adds an open loop to the figures of each contestant, which runs alone.
func (r *runner) openAll(ctx context.Context, n int, all []contestant, result round) error {
	r.choosePace(all[0].Scene, result)
	for _, c := range all {
		rate := figures.Rounded(r.paceBeside(result, c))
		measure := func(ctx context.Context, n int, trials []*trial, result round) error {
			p, err := trials[0].pacedLoop(ctx, rate, r.plan.Open)
			if err != nil {
				return fmt.Errorf("%s: %w", c.id(), err)
			}
			f := result[c.id()]
			f.Open = append(f.Open, p)
			result[c.id()] = f
			r.say(n, "latency", c, fmt.Sprintf("%6.0f/s %7.2f ms", p.Rate, p.P99))
			return nil
		}
		if err := r.together(ctx, n, []contestant{c}, result, measure); err != nil {
			return err
		}
	}
	return nil
}

// choosePace sets the rate of a scene's open loop, unless an earlier round has. With cold keys it
// is half the rate of Envoy's ratelimit filter in the closed loop. Else it is a third of Envoy's
// rate without a limit, which is about half of its rate with Weir.
func (r *runner) choosePace(s scene, result round) {
	if r.openRates == nil {
		r.openRates = map[scene]float64{}
	}
	peer, hasPeer := result[string(s)+"/ratelimit"]
	none, hasNone := result[string(s)+"/none"]
	switch {
	case r.openRates[s] > 0:
	case s == cold && hasPeer:
		r.openRates[s] = peer.Rate / 2
	case hasNone:
		r.openRates[s] = none.Rate / 3
	}
}

// pace returns the rate of a contestant's open loop. If a contestant cannot keep up with the
// scene's rate, it gets half of its capacity; its latencies are then at another load than the
// others'.
func (r *runner) pace(c contestant, capacity float64) float64 {
	common := r.openRates[c.Scene]
	if common == 0 || common > capacity*0.8 {
		return capacity / 2
	}
	return common
}

// paceBeside returns the pace of a contestant, given the contestants that were measured before it:
// Weir behind Envoy's ratelimit filter has the pace of the other service, so that latencies can be
// compared.
func (r *runner) paceBeside(result round, c contestant) float64 {
	own, peer := r.pace(c, result[c.id()].Rate), result.opened(string(c.Scene)+"/ratelimit").Rate
	if c.part == calls && peer > 0 {
		return min(own, peer)
	}
	return own
}

// climb asks all at one rate after the other.
func (r *runner) climb(ctx context.Context, n int, trials []*trial, result round) error {
	for _, rate := range curveRates {
		for _, t := range trials {
			if _, err := t.open(ctx, rate, r.plan.Curve/8); err != nil {
				return fmt.Errorf("%s: %w", t.id(), err)
			}
			p, err := t.pacedLoop(ctx, rate, r.plan.Curve)
			if err != nil {
				return fmt.Errorf("%s at %.0f requests a second: %w", t.id(), rate, err)
			}
			f := result[t.id()]
			f.Open = append(f.Open, p)
			f.Foreign = processors(t.foreign, t.took)
			result[t.id()] = f
			r.say(n, "curve", t.contestant, fmt.Sprintf("%6.0f/s %7.1f µs", p.Reached, p.cost()))
		}
	}
	return nil
}
