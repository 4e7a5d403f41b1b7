package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/weir-proxy/weir/test/bench/gauge"
)

// The page with the figures; what stands between these lines of it is written by this program.
const (
	pageName  = "performance.md"
	beginMark = "<!-- module: make module-cost writes it -->\n"
	endMark   = "<!-- end of module -->\n"
)

// report is all that one run has measured; its JSON is what -o json prints.
type report struct {
	Date        string       `json:"date"`
	Command     string       `json:"command"`
	Version     string       `json:"version"`
	Machine     string       `json:"machine"`
	Load        string       `json:"load_average_before"`
	Plan        plan         `json:"plan"`
	Contestants []contestant `json:"contestants"`
	Rounds      []round      `json:"rounds"`
}

// over is a figure of one contestant, of which a round knows the start with few workers and the one
// with many.
func (r *report) over(contestant int, figure func(few, many figures) float64) gauge.Spread {
	return gauge.Over(r.Rounds, func(one round) float64 { return figure(one.Few[contestant], one.Many[contestant]) })
}

// perMachine is what one more virtual machine adds to a figure: the difference of the two starts,
// without that of an Envoy without a filter, for each machine that one has more than the other.
func (r *report) perMachine(contestant int, figure func(figures) float64) gauge.Spread {
	return gauge.Over(r.Rounds, func(one round) float64 {
		few, many := one.Few[contestant], one.Many[contestant]
		bare := figure(one.Many[0]) - figure(one.Few[0])
		return (figure(many) - figure(few) - bare) / (many.VMs - few.VMs)
	})
}

func cpu(f figures) float64 { return f.CPU }
func mb(f figures) float64  { return f.MB }

// table has a row for each contestant, the titles first.
func (r *report) table() gauge.Table {
	rows := gauge.Table{{
		fmt.Sprintf("an Envoy with %d workers, without requests", r.Plan.Few), "module, bytes", "virtual machines",
		"ready, ms (min to max)", "processor, ms", "memory, MB", "of each virtual machine: ms", "MB",
	}}
	few := func(figure func(figures) float64) func(few, many figures) float64 {
		return func(few, _ figures) float64 { return figure(few) }
	}
	for i, c := range r.Contestants {
		row := []string{
			c.Title, "", "", r.over(i, few(func(f figures) float64 { return f.Ready })).Text("%.0f"),
			r.over(i, few(cpu)).Text("%.0f"), r.over(i, few(mb)).Text("%.1f"), "", "",
		}
		if c.Wasm != "" {
			row[1] = fmt.Sprint(c.Bytes)
			row[2] = r.over(i, few(func(f figures) float64 { return f.VMs })).Text("%.0f")
			row[6], row[7] = r.perMachine(i, cpu).Text("%.0f"), r.perMachine(i, mb).Text("%.1f")
		}
		rows = append(rows, row)
	}
	return rows
}

// circumstances are where and how it was measured, in one paragraph.
func (r *report) circumstances() string {
	foreign := gauge.Over(r.Rounds, func(one round) float64 { return one.Foreign })
	return fmt.Sprintf("Measured on %s by `%s` at %s: %s, load average before %s; other programs kept %.2f processors "+
		"busy meanwhile (%.2f at most). Medians of %d starts in turns, read %v after Envoy was ready; what a virtual "+
		"machine costs is the difference to Envoys with %d workers.",
		r.Date, r.Command, r.Version, r.Machine, r.Load, foreign.Median, foreign.Max, r.Plan.Starts, r.Plan.Settle,
		r.Plan.Many)
}

// Print writes the table for people.
func (r *report) Print(w io.Writer) error {
	fmt.Fprintf(w, "\n%s\n\n", r.circumstances())
	return r.table().Print(w)
}

// WritePage writes the figures into their place of the page.
func (r *report) WritePage(dir string) error {
	name := filepath.Join(dir, pageName)
	page, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	text, err := gauge.Insert(string(page), beginMark, endMark, r.circumstances()+"\n"+r.table().Markdown())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.WriteFile(name, []byte(text), 0o644)
}
