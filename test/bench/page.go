package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The page with the figures, its plot, and the run that both come from; all in the folder of the documentation.
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
	for _, rows := range r.tables() {
		b.WriteString("\n")
		for i, row := range rows {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
			if i == 0 {
				fmt.Fprintf(&b, "| ---%s |\n", strings.Repeat(" | ---", len(row)-1))
			}
		}
	}
	return b.String()
}

// insert puts the run's figures between the marks of a page.
func (r *report) insert(page string) (string, error) {
	before, rest, ok1 := strings.Cut(page, beginMark)
	_, after, ok2 := strings.Cut(rest, endMark)
	if !ok1 || !ok2 {
		return "", fmt.Errorf("%s lacks the line %q or %q after it", pageName, strings.TrimSpace(beginMark), strings.TrimSpace(endMark))
	}
	return before + beginMark + r.markdown() + endMark + after, nil
}

// writePage writes the run, the plot and the page's figures.
func (r *report) writePage(dir string) error {
	name := filepath.Join(dir, pageName)
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	page, err := r.insert(string(old))
	if err != nil {
		return err
	}
	data, err := r.encode()
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(name, []byte(page), 0o644),
		os.WriteFile(filepath.Join(dir, plotName), r.plot(), 0o644),
		os.WriteFile(filepath.Join(dir, dataName), data, 0o644),
	)
}

func (r *report) encode() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", " ")
	return append(data, '\n'), err
}

// readReport reads what encode wrote.
func readReport(name string) (*report, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r := &report{}
	if err := json.Unmarshal(content, r); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(r.Rounds) == 0 {
		return nil, fmt.Errorf("%s has no rounds", name)
	}
	return r, nil
}
