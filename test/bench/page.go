package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-proxy/weir/test/bench/gauge"
)

// The page with the figures, its plot, and the run that both come from; all in the folder of the
// documentation.
const (
	pageName = "performance.md"
	plotName = "performance.svg"
	dataName = "performance.json"
)

// What stands between these lines of the page is written by this program.
const (
	beginMark = "<!-- figures: make bench writes them -->\n"
	endMark   = "<!-- end of figures -->\n"
)

// markdown is the part of the page that the program writes.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n![What a request costs](%s)\n", r.circumstances(), plotName)
	for _, t := range r.tables() {
		b.WriteString(t.Markdown())
	}
	return b.String()
}

// insert puts the run's figures between the marks of a page.
func (r *report) insert(page string) (string, error) {
	return gauge.Insert(page, beginMark, endMark, r.markdown())
}

// WritePage writes the run, the plot and the page's figures.
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
	return errors.Join(
		os.WriteFile(name, []byte(page), 0o644),
		os.WriteFile(filepath.Join(dir, plotName), r.plot(), 0o644),
		os.WriteFile(filepath.Join(dir, dataName), data, 0o644),
	)
}

// readReport reads what writePage or -o json wrote.
func readReport(name string) (*report, error) {
	r := &report{}
	if err := gauge.Decode(name, r); err != nil {
		return nil, err
	}
	if len(r.Rounds) == 0 {
		return nil, fmt.Errorf("%s has no rounds", name)
	}
	return r, nil
}
