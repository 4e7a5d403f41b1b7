package main

import (
	"fmt"
	"strconv"

	"github.com/weir-proxy/weir/test/figures"
)

// line is a cost in microseconds of processor time: Call for each call, and Bucket for each bucket
// in it.
type line struct{ Call, Bucket float64 }

func (l line) of(items float64) float64 { return l.Call + l.Bucket*items }

// model has the costs of calls and keys.
type model struct {
	plane, redis line
	// key is the memory of Redis for each key, in bytes.
	key float64
	// off is the largest distance of the lines from a measurement, as a share of it.
	off float64
}

// fitLine finds the line with the least sum of squared relative errors, so that small costs weigh
// the same as large costs.
func fitLine(items, cost []float64) line {
	var w, wx, wxx, wy, wxy float64
	for i, x := range items {
		weight := 1 / (cost[i] * cost[i])
		w, wx, wxx = w+weight, wx+weight*x, wxx+weight*x*x
		wy, wxy = wy+weight*cost[i], wxy+weight*x*cost[i]
	}
	slope := (w*wxy - wx*wy) / (w*wxx - wx*wx)
	return line{Call: (wy - slope*wx) / w, Bucket: slope}
}

// fit makes the model of the medians of a run.
func (r *report) fit() (m model) {
	var items, plane, redis []float64
	for i, p := range r.Calls[0] {
		items = append(items, float64(p.Items))
		plane = append(plane, over(r.Calls, i, func(p point) float64 { return p.PlaneCPU }).Median)
		redis = append(redis, over(r.Calls, i, func(p point) float64 { return p.RedisCPU }).Median)
	}
	m.plane, m.redis = fitLine(items, plane), fitLine(items, redis)
	for i, x := range items {
		m.off = max(m.off, miss(m.plane.of(x), plane[i]), miss(m.redis.of(x), redis[i]))
	}
	small, large := r.Keys[0], r.Keys[len(r.Keys)-1]
	m.key = (large.RedisMB - small.RedisMB) * 1e6 / float64(large.Kept-small.Kept)
	return m
}

func miss(model, measured float64) float64 { return max(model-measured, measured-model) / measured }

// busy is the share of a processor at which a single one should have company: latency grows fast
// beyond it.
const busy = 0.7

// ends returns the number of buckets a second that a busy Redis grants, in calls of items buckets.
func (m model) ends(items float64) float64 { return busy * 1e6 / m.redis.of(items) * items }

// String says the model in words.
func (m model) String() string {
	return fmt.Sprintf("A model is fitted to the measured medians. "+
		"A call costs the control plane %.0f µs, and %.1f µs for each bucket in it. "+
		"It costs Redis %.0f µs, and %.1f µs for each bucket. "+
		"These costs are at most %.0f %% off the measured medians. A key takes %.0f bytes of Redis. "+
		"By this model one Redis is %.0f %% busy at %.0f calls a second of one bucket each, "+
		"or at %.0f buckets a second in calls of %d. "+
		"A higher rate, or more keys than its memory holds, needs a Redis Cluster.",
		m.plane.Call, m.plane.Bucket, m.redis.Call, m.redis.Bucket, 100*m.off, m.key,
		100*busy, m.ends(1), m.ends(full), full)
}

// pause is how long it is assumed to take, in seconds, until an active key needs tokens again.
const pause = 10

// costTable returns the costs of fleets by the model, if each active key is asked for once in each
// pause. It has calls of one bucket, as nodes send them if each request comes alone, and full
// calls.
func (m model) costTable(p polling) figures.Table {
	t := figures.Table{{
		"Envoys", "active keys", "buckets/s", "Redis memory MB", "Redis processors", "control plane processors",
		"control plane memory for polls MB",
	}}
	for _, nodes := range []int{10, 100, 1000} {
		for keys := 10_000; keys <= 10_000_000; keys *= 10 {
			grants := float64(keys) / pause
			span := func(l line) string {
				return fmt.Sprintf("%.2f to %.2f", grants/full*l.of(full)/1e6, grants*l.of(1)/1e6)
			}
			t = append(t, []string{
				strconv.Itoa(nodes), strconv.Itoa(keys),
				fmt.Sprintf("%.0f", grants), fmt.Sprintf("%.0f", m.key*float64(keys)/1e6),
				span(m.redis), span(m.plane), fmt.Sprintf("%.1f", float64(nodes)*p.each()/1000),
			})
		}
	}
	return t
}
