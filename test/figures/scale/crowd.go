package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-proxy/weir/test/figures"
)

// crowd is many nodes that ask for one bucket a call, each bucket once in a while: the cost of cold
// keys, of which no node has several at hand.
type crowd struct {
	point
	// Due is the number of calls that were due a second. 0 is no fixed rate: each node calls again
	// as soon as it is answered.
	Due float64 `json:"due_per_second"`
	// Halved is the number of times that the rate or the nodes were halved, because too many calls
	// failed.
	Halved int `json:"halved,omitempty"`
}

// mostHalvings is how often a crowd may become smaller.
const mostHalvings = 6

// words describe its work and its cost.
func (c crowd) words() string {
	return fmt.Sprintf("%4d nodes, %5.0f calls/s of one bucket: %s", c.Nodes, c.Calls, c.costs())
}

func (l *lab) crowds(ctx context.Context, r *report) (err error) {
	r.Crowds, err = inRounds(ctx, l, l.plan.Crowds, l.crowd)
	return err
}

// crowd measures a crowd. If too many calls fail, it halves the rate or, without a rate, the nodes:
// the table shows the load that succeeded.
func (l *lab) crowd(ctx context.Context, w *world, version uint64, due paced) (crowd, error) {
	for halved := 0; ; halved++ {
		p, err := l.quietly(ctx, func() (point, error) {
			if due.Rate > 0 {
				return due.open(ctx, w, version, due.Rate, l.plan.Each)
			}
			return due.closed(ctx, w, due.load(w, version), l.plan.Each)
		})
		if !errors.Is(err, errLate) || halved == mostHalvings {
			return crowd{p, due.Rate, halved}, err
		}
		l.say("%v: with half of that", err)
		if due.Rate > 0 {
			due.Rate /= 2
			due.Keys = max(1, due.Keys/2)
		} else {
			due.Nodes = max(1, due.Nodes/2)
		}
	}
}

// perRedis returns the calls a second that one processor of Redis answers at their cost.
func (c crowd) perRedis() float64 { return 1e6 / c.RedisCPU }

func (r *report) crowdTable() figures.Table {
	t := figures.Table{{
		"one bucket a call, cold keys, from", "calls/s due", "calls/s", "control plane µs a call", "Redis µs a call",
		"calls/s of one Redis processor", "p50 ms", "p99 ms", "failed %",
	}}
	if len(r.Crowds) == 0 {
		return t
	}
	for i, c := range r.Crowds[0] {
		due := "no fixed rate"
		if c.Due > 0 {
			due = fmt.Sprintf("%.0f", c.Due)
		}
		t = append(t, []string{
			fmt.Sprintf("%.0f nodes", over(r.Crowds, i, func(c crowd) float64 { return float64(c.Nodes) }).Median), due,
			ranged(over(r.Crowds, i, func(c crowd) float64 { return c.Calls })),
			ranged(over(r.Crowds, i, func(c crowd) float64 { return c.PlaneCPU })),
			ranged(over(r.Crowds, i, func(c crowd) float64 { return c.RedisCPU })),
			ranged(over(r.Crowds, i, crowd.perRedis)),
			fmt.Sprintf("%.1f", over(r.Crowds, i, func(c crowd) float64 { return c.P50 }).Median),
			fmt.Sprintf("%.1f", over(r.Crowds, i, func(c crowd) float64 { return c.P99 }).Median),
			fmt.Sprintf("%.2f", over(r.Crowds, i, func(c crowd) float64 { return 100 * c.Failed / c.Calls }).Median),
		})
	}
	return t
}

// The goals of crowds without a rate, and of crowds with this rate.
const (
	goalPerRedis = 30_000
	goalRate     = 5000
	goalPlane    = 60
)

// goalTable returns the goals, each with its measurement. They are about the last two crowds.
func (r *report) goalTable() figures.Table {
	t := figures.Table{{"measure", "goal", "measured (min to max)", "verdict"}}
	if len(r.Crowds) == 0 || len(r.Crowds[0]) < 2 {
		return t
	}
	all, paced := len(r.Crowds[0])-1, len(r.Crowds[0])-2
	calls := over(r.Crowds, all, crowd.perRedis)
	plane := over(r.Crowds, paced, func(c crowd) float64 { return c.PlaneCPU })
	return append(t,
		[]string{
			fmt.Sprintf("one-bucket calls a second on one Redis processor, %d nodes", r.Crowds[0][all].Nodes),
			fmt.Sprintf("at least %d", goalPerRedis),
			ranged(calls), r.verdict(all, calls.Median >= goalPerRedis),
		},
		[]string{
			fmt.Sprintf("control plane, one-bucket calls at %d a second: µs a call", goalRate),
			fmt.Sprintf("at most %d", goalPlane), ranged(plane), r.verdict(paced, plane.Median <= goalPlane),
		})
}

// verdict returns the verdict about the i-th crowd. A crowd that had to become smaller misses its
// goal.
func (r *report) verdict(i int, met bool) string {
	halved := over(r.Crowds, i, func(c crowd) float64 { return float64(c.Halved) }).Max
	switch {
	case halved > 0:
		return "not met: in some round the full load failed, so the figure includes a smaller load"
	case met:
		return "met"
	}
	return "not met"
}
