package main

import (
	"fmt"
	"io"

	"github.com/weir-proxy/weir/test/bench/gauge"
)

// report is all that one run has measured; its JSON is what -o json prints and -from reads.
type report struct {
	Date    string       `json:"date"`
	Command string       `json:"command"`
	Version string       `json:"version"`
	Machine string       `json:"machine"`
	Envoy   string       `json:"envoy"`
	Load    string       `json:"load_average_before"`
	Plan    plan         `json:"plan"`
	Order   []contestant `json:"contestants"`
	Rounds  []round      `json:"rounds"`
	Targets []target     `json:"targets"`
}

// of is a figure of one contestant over all rounds.
func (r *report) of(c contestant, figure func(figures) float64) gauge.Spread {
	return gauge.Over(r.Rounds, func(one round) float64 { return figure(one[c.id()]) })
}

// added is what a contestant's processes use for a request more than Envoy alone.
func (r *report) added(c contestant) gauge.Spread {
	return gauge.Over(r.Rounds, func(one round) float64 { return one.added(c.Name, c.Scene) })
}

// in are the contestants of a scene.
func (r *report) in(s scene) []contestant { return inScene(r.Order, s) }

// has reports whether a contestant was measured.
func (r *report) has(id string) bool {
	_, ok := r.Rounds[0][id]
	return ok
}

// A column of the tables.
type column struct {
	title string
	cell  func(r *report, c contestant) string
}

func number(title, format string, figure func(figures) float64) column {
	return column{title, func(r *report, c contestant) string { return fmt.Sprintf(format, r.of(c, figure).Median) }}
}

var addedColumn = column{"added µs (min to max)", func(r *report, c contestant) string {
	if c.Name == "none" || !r.has(string(c.Scene)+"/none") {
		return ""
	}
	s := r.added(c)
	return fmt.Sprintf("%.1f (%.1f to %.1f)", s.Median, s.Min, s.Max)
}}

// columns of a scene's table, after that of the names.
func columns(s scene) []column {
	first := []column{
		number("requests/s", "%.0f", func(f figures) float64 { return f.Rate }),
		number("Envoy µs", "%.1f", func(f figures) float64 { return f.EnvoyCPU }),
		number("others µs", "%.1f", func(f figures) float64 { return f.OtherCPU }),
		addedColumn,
	}
	memory := []column{
		number("Envoy MB", "%.0f", func(f figures) float64 { return f.EnvoyMB }),
		number("others MB", "%.0f", func(f figures) float64 { return f.OtherMB }),
	}
	if s == direct {
		return append(first, memory...)
	}
	return append(append(first,
		number("calls per 1000", "%.1f", func(f figures) float64 { return 1000 * f.Calls }),
		number("by ladder %", "%.1f", func(f figures) float64 { return 100 * f.Ladder }),
		number("open loop/s", "%.0f", func(f figures) float64 { return f.OpenRate }),
		number("p50 ms", "%.2f", func(f figures) float64 { return f.P50 }),
		number("p99 ms", "%.2f", func(f figures) float64 { return f.P99 }),
		number("p99.9 ms", "%.2f", func(f figures) float64 { return f.P999 }),
	), memory...)
}

var sceneTitles = map[scene]string{
	direct:  "Envoy answers by itself, one key",
	proxied: "a service behind Envoy, 1000 keys",
}

// rows are a scene's table, the titles first.
func (r *report) rows(s scene) gauge.Table {
	titles := []string{sceneTitles[s]}
	for _, c := range columns(s) {
		titles = append(titles, c.title)
	}
	rows := gauge.Table{titles}
	for _, c := range r.in(s) {
		row := []string{c.Title}
		for _, column := range columns(s) {
			row = append(row, column.cell(r, c))
		}
		rows = append(rows, row)
	}
	return rows
}

// targetRows are the table of targets, the titles first.
func (r *report) targetRows() gauge.Table {
	rows := gauge.Table{{"ratio", "target", "measured (min to max)", ""}}
	for _, t := range r.Targets {
		met := "not met"
		switch {
		case t.Flaw != "":
			met += ", " + t.Flaw
		case t.Met:
			met = "met"
		}
		rows = append(rows, []string{t.Name, fmt.Sprintf("at most %.3g", t.AtMost),
			fmt.Sprintf("%.3g (%.3g to %.3g)", t.Measured.Median, t.Measured.Min, t.Measured.Max), met})
	}
	return rows
}

// tables are all tables that have something to say.
func (r *report) tables() (all []gauge.Table) {
	for _, rows := range []gauge.Table{r.rows(direct), r.rows(proxied), r.targetRows()} {
		if len(rows) > 1 {
			all = append(all, rows)
		}
	}
	return all
}

// foreign is how many processors were busy with other things, over all contestants and rounds.
func (r *report) foreign() gauge.Spread {
	var all []round
	for _, one := range r.Rounds {
		for _, f := range one {
			all = append(all, round{"": f})
		}
	}
	return gauge.Over(all, func(one round) float64 { return one[""].Foreign })
}

// circumstances are where and how it was measured, in one sentence each.
func (r *report) circumstances() string {
	loop := "closed loop"
	if r.Plan.Slice > 0 {
		loop = fmt.Sprintf("closed loop in turns with the others, of which the cheapest %v count", r.Plan.Slice)
	}
	return fmt.Sprintf("Measured on %s by `%s` at %s: %s, %s, load average before %s; other programs kept %.2f processors busy meanwhile (%.2f at most). "+
		"Medians of %d rounds; each contestant in each round: %v to warm up, %v %s, %v open loop, %d connections.",
		r.Date, r.Command, r.Version, r.Machine, r.Envoy, r.Load, r.foreign().Median, r.foreign().Max,
		r.Plan.Rounds, r.Plan.Warm, r.Plan.Closed, loop, r.Plan.Open, connections)
}

// Print writes the tables for people.
func (r *report) Print(w io.Writer) error {
	fmt.Fprintln(w, "\n"+r.circumstances())
	for _, rows := range r.tables() {
		fmt.Fprintln(w)
		if err := rows.Print(w); err != nil {
			return err
		}
	}
	return nil
}
