package main

import (
	"fmt"

	"github.com/weir-proxy/weir/test/figures"
)

// column is a column of a table: its title, and the text in the row of a contestant.
type column struct {
	title string
	cell  func(r *report, c contestant) string
}

// number returns a column with the median of a figure.
func number(title, format string, figure func(reading) float64) column {
	return column{title, func(r *report, c contestant) string {
		return fmt.Sprintf(format, r.of(c, figure).Median)
	}}
}

// opened returns a column with the median of a figure of the open loop.
func opened(title, format string, figure func(paced) float64) column {
	return number(title, format, func(f reading) float64 { return figure(f.first()) })
}

var addedColumn = column{"added µs (min to max)", func(r *report, c contestant) string {
	if !r.compares(c) {
		return ""
	}
	return r.added(c).Text("%.1f")
}}

// busyColumn shows which processors were full: Envoy's processor, or all other processors.
var busyColumn = column{"busy %, Envoy's / rest", func(r *report, c contestant) string {
	envoy := r.of(c, func(f reading) float64 { return f.Rate * f.EnvoyCPU / 1e4 })
	rest := r.of(c, func(f reading) float64 { return f.Rate * (f.OtherCPU + f.LoadCPU) / 1e4 / float64(r.Beside) })
	return fmt.Sprintf("%.0f / %.0f", envoy.Median, rest.Median)
}}

// openRate shows the rate of the open loop, and the rate of answers if it was lower.
var openRate = column{"open loop/s", func(r *report, c contestant) string {
	due := r.of(c, func(f reading) float64 { return f.first().Rate }).Median
	made := r.of(c, func(f reading) float64 { return f.first().Reached }).Median
	text := fmt.Sprintf("%.0f", due)
	if !(paced{Rate: due, Reached: made}).reached() {
		text += fmt.Sprintf(", only %.0f", made)
	}
	return text
}}

// columns returns the columns of a scene's table after the column of names.
func (r *report) columns(s scene) []column {
	all := []column{
		number("requests/s", "%.0f", func(f reading) float64 { return f.Rate }),
		number("Envoy µs", "%.1f", func(f reading) float64 { return f.EnvoyCPU }),
		number("others µs", "%.1f", func(f reading) float64 { return f.OtherCPU }),
		addedColumn,
	}
	if r.Beside > 0 {
		all = append(all, busyColumn)
	}
	if s != direct { // In the direct scene hardly a request needs a call; see contestant.inHand.
		all = append(all,
			number("calls per 1000", "%.1f", func(f reading) float64 { return 1000 * f.Calls }),
			number("by ladder %", "%.1f", func(f reading) float64 { return 100 * f.Ladder }),
		)
	}
	if stages[s].refuses {
		all = append(all, number("refused %", "%.1f", func(f reading) float64 { return 100 * f.Refused }))
	}
	if stages[s].opens {
		all = append(all,
			openRate,
			opened("p50 ms", "%.2f", p50), opened("p99 ms", "%.2f", p99),
			opened("p99.9 ms", "%.2f", func(p paced) float64 { return p.P999 }),
		)
	}
	return append(all, memory...)
}

var memory = []column{
	number("Envoy MB", "%.0f", func(f reading) float64 { return f.EnvoyMB }),
	number("others MB", "%.0f", func(f reading) float64 { return f.OtherMB }),
}

// rows returns a scene's table, the titles first.
func (r *report) rows(s scene) figures.Table { return r.table(stages[s].title, r.in(s), r.columns(s)) }

// table returns a table with a row for each contestant.
func (r *report) table(title string, all []contestant, columns []column) figures.Table {
	titles := []string{title}
	for _, c := range columns {
		titles = append(titles, c.title)
	}
	rows := figures.Table{titles}
	for _, c := range all {
		row := []string{c.Title}
		for _, column := range columns {
			row = append(row, column.cell(r, c))
		}
		rows = append(rows, row)
	}
	return rows
}

func (r *report) idleRows() figures.Table {
	percent := func(title string, figure func(reading) float64) column {
		return column{title, func(r *report, c contestant) string { return r.of(c, figure).Text("%.2f") }}
	}
	return r.table(stages[idle].title, r.in(idle), append([]column{
		percent("Envoy, % of a processor (min to max)", func(f reading) float64 { return f.IdleEnvoy }),
		percent("others, % of a processor (min to max)", func(f reading) float64 { return f.IdleOther }),
	}, memory...))
}

// pointOf returns a contestant's point of the curve in a round.
func pointOf(one round, c contestant, rate float64) paced {
	p, _ := one.at(c.id(), rate)
	return p
}

// misses returns the requests a second that a contestant, or Envoy without a limit, reached, and
// whether that misses the rate in the median round.
func (r *report) misses(c contestant, rate float64) (made float64, missed bool) {
	made = figures.Over(r.Rounds, func(one round) float64 { return pointOf(one, c, rate).Reached }).Median
	return made, !paced{Rate: rate, Reached: made}.reached()
}

// costAt returns the cost that a contestant adds at a rate of the curve. For the contestant without
// a limit it is the whole cost.
func (r *report) costAt(c contestant, rate float64) figures.Spread {
	return figures.Over(r.Rounds, func(one round) float64 {
		cost := pointOf(one, c, rate).cost()
		if r.compares(c) {
			cost -= pointOf(one, contestant{Name: c.base(), Scene: c.Scene}, rate).cost()
		}
		return cost
	})
}

func curveColumns(cell func(r *report, c contestant, rate float64) string) (all []column) {
	for _, rate := range curveRates {
		all = append(all, column{fmt.Sprintf("%.0f/s", rate), func(r *report, c contestant) string {
			text := cell(r, c, rate)
			if made, missed := r.misses(c, rate); missed {
				text += fmt.Sprintf(", only %.0f/s", made)
			}
			return text
		}})
	}
	return all
}

func (r *report) curveCosts() figures.Table {
	return r.table("added µs (min to max): "+stages[curve].title, r.in(curve),
		curveColumns(func(r *report, c contestant, rate float64) string {
			text := r.costAt(c, rate).Text("%.0f")
			if !r.compares(c) {
				text = "uses " + text
			}
			return text
		}))
}

func (r *report) curveLatencies() figures.Table {
	return r.table("the same: p50 ms / p99 ms / calls per 1000 / by ladder %", r.in(curve),
		curveColumns(func(r *report, c contestant, rate float64) string {
			median := func(figure func(paced) float64) float64 {
				return figures.Over(r.Rounds, func(one round) float64 { return figure(pointOf(one, c, rate)) }).Median
			}
			calls := median(func(p paced) float64 { return 1000 * p.Calls })
			ladder := median(func(p paced) float64 { return 100 * p.Ladder })
			return fmt.Sprintf("%.1f / %.1f / %.0f / %.1f", median(p50), median(p99), calls, ladder)
		}))
}
