package main

import (
	"fmt"
	"path/filepath"

	"github.com/weir-proxy/weir/test/figures"
)

// The page with the figures, its plots, and the run that all come from; in the folder of the
// documentation.
const (
	pageName  = "measured/performance.md"
	plotName  = "measured/performance.svg"
	curveName = "measured/performance-curve.svg"
	dataName  = "measured/performance.json"
)

// This program writes the text between these lines of the page.
const (
	beginMark  = "<!-- figures: make bench writes them -->\n"
	endMark    = "<!-- end of figures -->\n"
	beginGoals = "<!-- goals: make bench writes them -->\n"
	endGoals   = "<!-- end of goals -->\n"
)

// Page implements figures.Run.
func (r *report) Page() (figures.Page, error) {
	data, err := figures.Encode(r)
	files := map[string][]byte{dataName: data, plotName: r.plot()}
	measured := figures.Report{r.circumstances(), "![What a request costs](" + filepath.Base(plotName) + ")"}
	if len(r.in(curve)) > 0 {
		files[curveName] = r.plotCurve()
		measured = append(measured, "![What a request costs at each rate]("+filepath.Base(curveName)+")")
	}
	for _, t := range r.tables() {
		measured = append(measured, t)
	}
	return figures.Page{Name: pageName, Files: files, Sections: []figures.Section{
		{Begin: beginMark, End: endMark, Text: measured.Markdown()},
		{Begin: beginGoals, End: endGoals, Text: figures.Report{r.targetRows()}.Markdown()},
	}}, err
}

// readReport reads the file of -docs or -o json. It judges the targets anew, by today's promises.
func readReport(name string) (*report, error) {
	r := &report{}
	if err := figures.Decode(name, r); err != nil {
		return nil, err
	}
	if len(r.Rounds) == 0 {
		return nil, fmt.Errorf("%s has no rounds", name)
	}
	r.Targets = judge(r.Rounds)
	return r, nil
}
