package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/test/bench/gauge"
)

// report is all that one run has measured; its JSON is what -o json prints and -from reads.
type report struct {
	Date    string `json:"date"`
	Command string `json:"command"`
	Version string `json:"version"`
	Machine string `json:"machine"`
	Load    string `json:"load_average_before"`

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
	pageName = "performance.md"
	dataName = "scale.json"

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
	foreign := gauge.Over(all, func(one float64) float64 { return one })
	return fmt.Sprintf("Measured on %s by `%s` at %s: %s, load average before %s; "+
		"other programs kept %.2f processors busy meanwhile (%.2f at most). "+
		"Redis has one processor for itself; control plane and simulated nodes share the others.",
		r.Date, r.Command, r.Version, r.Machine, r.Load, foreign.Median, foreign.Max)
}

func (r *report) pushTable() gauge.Table {
	t := gauge.Table{{"a policy set for", "replicas", "arrived, p50 ms", "p99 ms", "acknowledged, p50 ms", "p99 ms"}}
	for _, p := range r.Pushes {
		t = append(t, []string{
			fmt.Sprintf("%d nodes", p.Nodes), strconv.Itoa(p.Replicas),
			fmt.Sprintf("%.0f", p.ReachedP50), fmt.Sprintf("%.0f", p.ReachedP99),
			fmt.Sprintf("%.0f", p.AcknowledgedP50), fmt.Sprintf("%.0f", p.AcknowledgedP99),
		})
	}
	return t
}

// over is a figure of the i-th drive over all rounds.
func over[T any](rounds [][]T, i int, figure func(T) float64) gauge.Spread {
	return gauge.Over(rounds, func(round []T) float64 { return figure(round[i]) })
}

func ranged(s gauge.Spread) string { return s.Text("%.0f") }

func (r *report) callTable() gauge.Table {
	t := gauge.Table{{
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

func (r *report) fleetTable() gauge.Table {
	t := gauge.Table{{
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

func (r *report) keyTable() gauge.Table {
	t := gauge.Table{{"active keys", "Redis MB", "bytes each", "Redis µs a call of 64"}}
	for _, p := range r.Keys {
		t = append(t, []string{
			strconv.FormatInt(p.Kept, 10), fmt.Sprintf("%.0f", p.RedisMB),
			fmt.Sprintf("%.0f", p.RedisMB*1e6/float64(p.Kept)), fmt.Sprintf("%.0f", p.RedisCPU),
		})
	}
	return t
}

// tables are all tables, each after the sentences that belong above it.
func (r *report) parts() []any {
	share := gauge.Over(r.Ratio, ratioRound.share)
	plane := gauge.Over(r.Ratio, func(one ratioRound) float64 { return one.Plane })
	bare := gauge.Over(r.Ratio, func(one ratioRound) float64 { return one.Bare })
	m := r.fit()
	return []any{
		r.circumstances(), r.pushTable(),
		fmt.Sprintf("%d polls that wait take %.0f kB of the control plane's memory each, "+
			"and together %.3f of its processor and %.3f of Redis's.",
			r.Polls.Nodes, r.Polls.each(), r.Polls.Plane, r.Polls.Redis),
		r.callTable(), r.crowdTable(), r.goalTable(), r.fleetTable(), r.keyTable(),
		fmt.Sprintf("One control plane and one processor of Redis grant %.0f buckets a second in calls of %d "+
			"(%.0f to %.0f). A client that only sends Redis the very same scripts comes to %.0f: "+
			"**%.0f %%** (%.0f to %.0f over %d interleaved rounds; at least 70 is the target).",
			plane.Median, full, plane.Min, plane.Max, bare.Median,
			100*share.Median, 100*share.Min, 100*share.Max, len(r.Ratio)),
		m.String(), m.costTable(r.Polls),
	}
}

func (r *report) markdown() string {
	var b strings.Builder
	for i, part := range r.parts() {
		switch part := part.(type) {
		case gauge.Table:
			if len(part) > 1 {
				b.WriteString(part.Markdown())
			}
		case string:
			if i > 0 {
				b.WriteString("\n")
			}
			b.WriteString(part + "\n")
		}
	}
	return b.String()
}

// Print writes it for people.
func (r *report) Print(w io.Writer) error {
	for _, part := range r.parts() {
		if rows, ok := part.(gauge.Table); ok && len(rows) == 1 {
			continue
		}
		fmt.Fprintln(w)
		switch part := part.(type) {
		case gauge.Table:
			if err := part.Print(w); err != nil {
				return err
			}
		case string:
			fmt.Fprintln(w, part)
		}
	}
	return nil
}

// WritePage writes the run and the page's figures.
func (r *report) WritePage(dir string) error {
	name := filepath.Join(dir, pageName)
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	page, err := gauge.Insert(string(old), beginMark, endMark, r.markdown())
	if err != nil {
		return err
	}
	data, err := gauge.Encode(r)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(name, []byte(page), 0o644), os.WriteFile(filepath.Join(dir, dataName), data, 0o644))
}
