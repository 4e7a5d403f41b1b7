package main

import (
	"fmt"

	"github.com/weir-proxy/weir/test/figures"
)

// report is all that one run has measured; its JSON is what -o json prints and -from reads.
type report struct {
	figures.Facts
	// Beside is how many processors all but Envoy share; 0 is unknown.
	Beside  int          `json:"processors_beside_envoy,omitempty"`
	Plan    plan         `json:"plan"`
	Order   []contestant `json:"contestants"`
	Rounds  []round      `json:"rounds"`
	Targets []target     `json:"targets"`
}

// of returns a figure of one contestant over all rounds.
func (r *report) of(c contestant, figure func(reading) float64) figures.Spread {
	return figures.Over(r.Rounds, func(one round) float64 { return figure(one[c.id()]) })
}

// added returns the use of a contestant's processes for a request beyond the use of Envoy alone.
func (r *report) added(c contestant) figures.Spread {
	none := c.base()
	return figures.Over(r.Rounds, func(one round) float64 { return one.addedOver(c.Name, none, c.Scene) })
}

// base returns the name of the contestant without a filter that has the same requests.
func (c contestant) base() string {
	if c.Scene == browser && (c.Name == "few-local" || c.Name == "few-none") {
		return "few-none"
	}
	return "none"
}

// compares reports whether a contestant can be compared with the contestant without a filter.
func (r *report) compares(c contestant) bool {
	return c.Name != c.base() && r.has(string(c.Scene)+"/"+c.base())
}

// in returns the contestants of a scene.
func (r *report) in(s scene) []contestant { return inScene(r.Order, s) }

// has reports whether a contestant was measured.
func (r *report) has(id string) bool {
	_, ok := r.Rounds[0][id]
	return ok
}

// tables returns all tables of figures.
func (r *report) tables() (all []figures.Table) {
	for _, s := range scenes() {
		all = append(all, r.scene(s)...)
	}
	return all
}

func (r *report) scene(s scene) []figures.Table {
	switch s {
	case curve:
		return []figures.Table{r.curveCosts(), r.curveLatencies()}
	case idle:
		return []figures.Table{r.idleRows()}
	}
	return []figures.Table{r.rows(s)}
}

// targetRows returns the table of targets, the titles first.
func (r *report) targetRows() figures.Table {
	rows := figures.Table{{"measure", "goal", "measured (min to max)", "", "floor"}}
	for _, t := range r.Targets {
		met := "not met"
		switch {
		case t.Flaw != "":
			met += ", " + t.Flaw
		case t.Met:
			met = "met"
		}
		rows = append(rows, []string{
			t.Name, fmt.Sprintf("at most %.3g", t.AtMost), t.Measured.Text("%.3g"), met, t.Floor,
		})
	}
	return rows
}

// over returns a figure of all contestants and rounds, those left out for which ok is false.
func (r *report) over(figure func(reading) (value float64, ok bool)) figures.Spread {
	var all []float64
	for _, one := range r.Rounds {
		for _, f := range one {
			if value, ok := figure(f); ok {
				all = append(all, value)
			}
		}
	}
	if len(all) == 0 {
		return figures.Spread{}
	}
	return figures.Over(all, func(v float64) float64 { return v })
}

// circumstances returns two sentences: where and how the run was measured.
func (r *report) circumstances() string {
	loop := "closed loop"
	if r.Plan.Slice > 0 {
		loop = fmt.Sprintf("closed loop in turns with the others, of which the cheapest %v count", r.Plan.Slice)
	}
	rounds := fmt.Sprintf("Medians of %d rounds; each contestant in each round", r.Plan.Rounds)
	if r.Plan.Rounds == 1 {
		rounds = "One round; each contestant"
	}
	foreign := r.over(func(f reading) (float64, bool) { return f.Foreign, true })
	text := fmt.Sprintf("%s %s: %v to warm up, %v %s, %v open loop, %d connections.", r.Sentence(foreign),
		rounds, r.Plan.Warm, r.Plan.Closed, loop, r.Plan.Open, connections)
	own := r.over(func(f reading) (float64, bool) { return f.LoadCPU, f.LoadCPU > 0 })
	if own.Max > 0 {
		text += fmt.Sprintf(" The load and the service behind Envoy took %.1f µs of a request (%.1f to %.1f) on the "+
			"processors beside Envoy's; no figure below has them in it.", own.Median, own.Min, own.Max)
	}
	return text
}

// Report implements figures.Run.
func (r *report) Report() figures.Report {
	all := figures.Report{r.circumstances()}
	for _, rows := range r.tables() {
		all = append(all, rows)
	}
	return append(all, r.targetRows())
}
