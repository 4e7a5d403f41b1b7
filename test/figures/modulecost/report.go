package main

import (
	"fmt"

	"github.com/weir-proxy/weir/test/figures"
)

// The page with the figures. This program writes the text between these lines.
const (
	pageName  = "measured/costs.md"
	beginMark = "<!-- module: make module-cost writes it -->\n"
	endMark   = "<!-- end of module -->\n"
)

// report is all that one run has measured; its JSON is what -o json prints.
type report struct {
	figures.Facts
	Plan        plan         `json:"plan"`
	Contestants []contestant `json:"contestants"`
	Rounds      []round      `json:"rounds"`
}

// over returns a figure of one contestant over all rounds. A round has a start with few workers and
// a start with many workers.
func (r *report) over(contestant int, figure func(few, many reading) float64) figures.Spread {
	return figures.Over(r.Rounds, func(one round) float64 { return figure(one.Few[contestant], one.Many[contestant]) })
}

// perMachine returns the increase of a figure for each further virtual machine: the difference of
// the two starts, less the same difference of an Envoy without a filter, divided by the number of
// further machines.
func (r *report) perMachine(contestant int, figure func(reading) float64) figures.Spread {
	return figures.Over(r.Rounds, func(one round) float64 {
		few, many := one.Few[contestant], one.Many[contestant]
		bare := figure(one.Many[0]) - figure(one.Few[0])
		return (figure(many) - figure(few) - bare) / (many.VMs - few.VMs)
	})
}

func cpu(f reading) float64 { return f.CPU }
func mb(f reading) float64  { return f.MB }

// table has a row for each contestant, the titles first.
func (r *report) table() figures.Table {
	rows := figures.Table{{
		fmt.Sprintf("an Envoy with %d workers, without requests", r.Plan.Few), "module, bytes", "virtual machines",
		"ready, ms (min to max)", "processor, ms", "memory, MB", "of each virtual machine: ms", "MB",
	}}
	few := func(figure func(reading) float64) func(few, many reading) float64 {
		return func(few, _ reading) float64 { return figure(few) }
	}
	for i, c := range r.Contestants {
		row := []string{
			c.Title, "", "", r.over(i, few(func(f reading) float64 { return f.Ready })).Text("%.0f"),
			r.over(i, few(cpu)).Text("%.0f"), r.over(i, few(mb)).Text("%.1f"), "", "",
		}
		if c.Wasm != "" {
			row[1] = fmt.Sprint(c.Bytes)
			row[2] = r.over(i, few(func(f reading) float64 { return f.VMs })).Text("%.0f")
		}
		if c.Wasm != "" && r.Rounds[0].Few[i].VMs > 0 { // A native instance starts with a worker's first request.
			row[6], row[7] = r.perMachine(i, cpu).Text("%.0f"), r.perMachine(i, mb).Text("%.1f")
		}
		rows = append(rows, row)
	}
	return rows
}

// circumstances returns where and how the run was measured, in one paragraph.
func (r *report) circumstances() string {
	foreign := figures.Over(r.Rounds, func(one round) float64 { return one.Foreign })
	return fmt.Sprintf("%s Medians of %d starts in turns, read %v after Envoy was ready; what a virtual "+
		"machine costs is the difference to Envoys with %d workers.",
		r.Sentence(foreign), r.Plan.Starts, r.Plan.Settle, r.Plan.Many)
}

// Report implements figures.Run.
func (r *report) Report() figures.Report { return figures.Report{r.circumstances(), r.table()} }

// Page implements figures.Run.
func (r *report) Page() (figures.Page, error) {
	text := r.Report().Markdown()
	return figures.Page{
		Name: pageName, Sections: []figures.Section{{Begin: beginMark, End: endMark, Text: text}},
	}, nil
}
