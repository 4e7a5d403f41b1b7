package main

import (
	"fmt"
	"strconv"

	"github.com/weir-proxy/weir/test/figures"
)

// report is all that one run has measured; its JSON is what -o json prints and -from reads.
type report struct {
	figures.Facts

	Pushes []pushed `json:"pushes"`
	Polls  polling  `json:"polls"`
	// Calls and Crowds have the same drives in each round.
	Calls  [][]point    `json:"calls"`
	Crowds [][]crowd    `json:"crowds,omitempty"`
	Fleets []lived      `json:"fleets"`
	Ratio  []ratioRound `json:"ratio"`
	Keys   []point      `json:"keys"`
}

// The page with the figures and the run that they come from, in the folder of the documentation.
const (
	pageName = "measured/scale.md"
	dataName = "measured/scale.json"

	beginMark = "<!-- figures: make scale writes them -->\n"
	endMark   = "<!-- end of the figures of make scale -->\n"
)

func (r *report) circumstances() string {
	var all []float64
	for _, round := range r.Calls {
		for _, p := range round {
			all = append(all, p.Foreign)
		}
	}
	for _, round := range r.Crowds {
		for _, c := range round {
			all = append(all, c.Foreign)
		}
	}
	for _, f := range r.Fleets {
		all = append(all, f.Foreign)
	}
	for _, one := range r.Ratio {
		all = append(all, one.Foreign)
	}
	foreign := figures.Over(all, func(one float64) float64 { return one })
	return r.Sentence(foreign) +
		" Redis has one processor for itself; control plane and simulated nodes share the others."
}

func (r *report) pushTable() figures.Table {
	t := figures.Table{{"a policy set for", "replicas", "arrived, p50 ms", "p99 ms", "acknowledged, p50 ms", "p99 ms"}}
	for _, p := range r.Pushes {
		t = append(t, []string{
			fmt.Sprintf("%d nodes", p.Nodes), strconv.Itoa(p.Replicas),
			fmt.Sprintf("%.0f", p.ReachedP50), fmt.Sprintf("%.0f", p.ReachedP99),
			fmt.Sprintf("%.0f", p.AcknowledgedP50), fmt.Sprintf("%.0f", p.AcknowledgedP99),
		})
	}
	return t
}

// over returns a figure of the i-th drive over all rounds.
func over[T any](rounds [][]T, i int, figure func(T) float64) figures.Spread {
	return figures.Over(rounds, func(round []T) float64 { return figure(round[i]) })
}

func ranged(s figures.Spread) string { return s.Text("%.0f") }

func (r *report) callTable() figures.Table {
	t := figures.Table{{
		"lease calls from", "buckets a call", "calls/s", "control plane µs a call", "Redis µs a call",
		"p50 ms", "p99 ms", "failed %",
	}}
	for i, p := range r.Calls[0] {
		t = append(t, []string{
			fmt.Sprintf("%d nodes", p.Nodes), strconv.Itoa(p.Items),
			fmt.Sprintf("%.0f", over(r.Calls, i, func(p point) float64 { return p.Calls }).Median),
			ranged(over(r.Calls, i, func(p point) float64 { return p.PlaneCPU })),
			ranged(over(r.Calls, i, func(p point) float64 { return p.RedisCPU })),
			fmt.Sprintf("%.1f", over(r.Calls, i, func(p point) float64 { return p.P50 }).Median),
			fmt.Sprintf("%.1f", over(r.Calls, i, func(p point) float64 { return p.P99 }).Median),
			fmt.Sprintf("%.2f", over(r.Calls, i, func(p point) float64 { return 100 * p.Failed / p.Calls }).Median),
		})
	}
	return t
}

func (r *report) fleetTable() figures.Table {
	t := figures.Table{{
		"requests from", "keys", "requests/s", "refused %", "calls per 1000", "buckets a call", "p50 ms", "p99 ms",
		"control plane %", "Redis %", "buckets/s of one Redis processor", "by ladder %",
	}}
	for _, f := range r.Fleets {
		t = append(t, []string{
			fmt.Sprintf("%d nodes", f.Nodes), f.keys(),
			fmt.Sprintf("%.0f", f.Decided), fmt.Sprintf("%.0f", 100*f.Refused),
			fmt.Sprintf("%.0f", 1000*f.Calls/f.Decided), fmt.Sprintf("%.1f", f.Items/f.Calls),
			fmt.Sprintf("%.1f", f.P50), fmt.Sprintf("%.1f", f.P99),
			fmt.Sprintf("%.1f", f.Calls*f.PlaneCPU/1e4), fmt.Sprintf("%.1f", f.Calls*f.RedisCPU/1e4),
			fmt.Sprintf("%.0f", f.Items/(f.Calls*f.RedisCPU)*1e6), fmt.Sprintf("%.2f", 100*f.Failed),
		})
	}
	return t
}

func (r *report) keyTable() figures.Table {
	t := figures.Table{{"active keys", "Redis MB", "bytes each", "Redis µs a call of 64"}}
	for _, p := range r.Keys {
		t = append(t, []string{
			strconv.FormatInt(p.Kept, 10), fmt.Sprintf("%.0f", p.RedisMB),
			fmt.Sprintf("%.0f", p.RedisMB*1e6/float64(p.Kept)), fmt.Sprintf("%.0f", p.RedisCPU),
		})
	}
	return t
}

// Report implements figures.Run: each table after the sentences that belong above it.
func (r *report) Report() figures.Report {
	share := figures.Over(r.Ratio, ratioRound.share)
	plane := figures.Over(r.Ratio, func(one ratioRound) float64 { return one.Plane })
	bare := figures.Over(r.Ratio, func(one ratioRound) float64 { return one.Bare })
	m := r.fit()
	return figures.Report{
		r.circumstances(), r.pushTable(),
		fmt.Sprintf("%d polls that wait take %.0f kB of the control plane's memory each, "+
			"and together %.3f of its processor and %.3f of Redis's.",
			r.Polls.Nodes, r.Polls.each(), r.Polls.Plane, r.Polls.Redis),
		r.callTable(), r.crowdTable(), r.goalTable(), r.fleetTable(), r.keyTable(),
		fmt.Sprintf("One control plane and one processor of Redis grant %.0f buckets a second in calls of %d "+
			"(%.0f to %.0f). A client that only sends the same scripts to Redis gets %.0f buckets a second. "+
			"The control plane grants **%.0f %%** of this rate (%.0f to %.0f over %d interleaved rounds); "+
			"the target is at least 70 %%.",
			plane.Median, full, plane.Min, plane.Max, bare.Median,
			100*share.Median, 100*share.Min, 100*share.Max, len(r.Ratio)),
		m.String(), m.costTable(r.Polls),
	}
}

// Page implements figures.Run.
func (r *report) Page() (figures.Page, error) {
	data, err := figures.Encode(r)
	return figures.Page{
		Name: pageName, Files: map[string][]byte{dataName: data},
		Sections: []figures.Section{{Begin: beginMark, End: endMark, Text: r.Report().Markdown()}},
	}, err
}
