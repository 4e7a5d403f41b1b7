package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-proxy/weir/test/bench/gauge"
)

// The page with the figures, its plots, and the run that all come from; in the folder of the
// documentation.
const (
	pageName  = "performance.md"
	plotName  = "performance.svg"
	curveName = "performance-curve.svg"
	dataName  = "performance.json"
)

// What stands between these lines of the page is written by this program.
const (
	beginMark  = "<!-- figures: make bench writes them -->\n"
	endMark    = "<!-- end of figures -->\n"
	beginGoals = "<!-- goals: make bench writes them -->\n"
	endGoals   = "<!-- end of goals -->\n"
)

// markdown is the part of the page with the figures.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n![What a request costs](%s)\n", r.circumstances(), plotName)
	if len(r.in(curve)) > 0 {
		fmt.Fprintf(&b, "\n![What a request costs at each rate](%s)\n", curveName)
	}
	for _, t := range r.tables() {
		b.WriteString(t.Markdown())
	}
	return b.String()
}

// insert puts the run's figures and its targets between the marks of a page.
func (r *report) insert(page string) (string, error) {
	page, err := gauge.Insert(page, beginMark, endMark, r.markdown())
	if err != nil {
		return "", err
	}
	return gauge.Insert(page, beginGoals, endGoals, strings.TrimPrefix(r.targetRows().Markdown(), "\n"))
}

// plots are the drawings of a run by name.
func (r *report) plots() map[string][]byte {
	all := map[string][]byte{plotName: r.plot()}
	if len(r.in(curve)) > 0 {
		all[curveName] = r.plotCurve()
	}
	return all
}

// WritePage writes the run, the plots and the page's figures.
func (r *report) WritePage(dir string) error {
	name := filepath.Join(dir, pageName)
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	page, err := r.insert(string(old))
	if err != nil {
		return err
	}
	data, err := gauge.Encode(r)
	if err != nil {
		return err
	}
	err = errors.Join(
		os.WriteFile(name, []byte(page), 0o644),
		os.WriteFile(filepath.Join(dir, dataName), data, 0o644),
	)
	for plot, drawn := range r.plots() {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, plot), drawn, 0o644))
	}
	return err
}

// readReport reads what WritePage or -o json wrote. Its targets are judged anew, by what is
// promised now.
func readReport(name string) (*report, error) {
	r := &report{}
	if err := gauge.Decode(name, r); err != nil {
		return nil, err
	}
	if len(r.Rounds) == 0 {
		return nil, fmt.Errorf("%s has no rounds", name)
	}
	r.Targets = judge(r.Rounds)
	return r, nil
}
