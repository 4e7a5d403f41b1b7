package main

import (
	"fmt"
	"time"

	"github.com/weir-proxy/weir/test/figures"
)

// table shows the outcome of each contestant.
func table(courses []*course) figures.Table {
	titles := []string{"", "goodput, all of the capacity", "two fifths of it", "all again"}
	for _, class := range classes {
		titles = append(titles, class.name+" served")
	}
	all := figures.Table{append(titles, "critical, p99")}
	for _, c := range courses {
		row := []string{c.name}
		for phase := range 3 {
			row = append(row, fmt.Sprintf("%.0f %%", 100*c.goodput(phase)))
		}
		for class := range classes {
			row = append(row, fmt.Sprintf("%.1f %%", 100*c.served(class)))
		}
		all = append(all, append(row, fmt.Sprintf("%d ms", c.p99()/time.Millisecond)))
	}
	return all
}

// The page, and the lines of it between which the table stands.
const (
	pageName    = "choose/adaptive.md"
	tableBegins = "<!-- written by make overload -->\n"
	tableEnds   = "<!-- until here -->\n"
)

// page returns the plot, and the table in its place.
func page(courses []*course) figures.Page {
	return figures.Page{
		Name: pageName, Files: map[string][]byte{"choose/overload.svg": plot(courses)},
		Sections: []figures.Section{{Begin: tableBegins, End: tableEnds, Text: table(courses).Markdown() + "\n"}},
	}
}
