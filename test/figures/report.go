// Package figures reads the use of processes from the kernel, and shows figures for the programs
// that measure Weir: as tables for people, as JSON, on a page of the documentation and as drawings.
package figures

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Facts are when, how and where a run was made.
type Facts struct {
	Date    string `json:"date"`
	Command string `json:"command"`
	Version string `json:"version"`
	Machine string `json:"machine"`
	// Envoy is Envoy's version; empty in a run without Envoy.
	Envoy string `json:"envoy,omitempty"`
	Load  string `json:"load_average_before"`
	// Took is how long the run lasted; 0 is unknown.
	Took time.Duration `json:"took_ns,omitempty"`
}

// NoteFacts notes the facts of a run that begins now. Its command is a target of make, and the
// variable that has the arguments.
func NoteFacts(version, target, variable string, args []string) Facts {
	command := "make " + target
	if len(args) > 0 {
		command += " " + variable + "='" + strings.Join(args, " ") + "'"
	}
	return Facts{
		Date: time.Now().UTC().Format(time.DateOnly), Command: command, Version: version,
		Machine: Machine(), Load: LoadAverage(),
	}
}

// Sentence says the facts, and how many processors other programs kept busy.
func (f Facts) Sentence(foreign Spread) string {
	took, where := "", f.Machine
	if f.Took > 0 {
		took = fmt.Sprintf(" in %v", f.Took)
	}
	if f.Envoy != "" {
		where += ", " + f.Envoy
	}
	return fmt.Sprintf("Measured on %s by `%s`%s at %s: %s, load average before %s; "+
		"other programs kept %.2f processors busy meanwhile (%.2f at most).",
		f.Date, f.Command, took, f.Version, where, f.Load, foreign.Median, foreign.Max)
}

// Report is the result of a run, in order: each part is a sentence or a Table. A table without rows
// is left out.
type Report []any

// Print writes the report for people.
func (r Report) Print(w io.Writer) error {
	for _, part := range r {
		switch part := part.(type) {
		case Table:
			if len(part) < 2 {
				continue
			}
			fmt.Fprintln(w)
			if err := part.Print(w); err != nil {
				return err
			}
		default:
			fmt.Fprintf(w, "\n%s\n", part)
		}
	}
	return nil
}

// Markdown returns the report for a page.
func (r Report) Markdown() string {
	var b strings.Builder
	for _, part := range r {
		if table, ok := part.(Table); !ok {
			fmt.Fprintf(&b, "\n%s\n", part)
		} else if len(table) > 1 {
			b.WriteString(table.Markdown())
		}
	}
	return strings.TrimPrefix(b.String(), "\n")
}

// Section is a part of a page that a program writes: all between two whole lines.
type Section struct{ Begin, End, Text string }

// Page is the text that a run writes into a folder of the documentation: sections of the page Name,
// and whole files by name.
type Page struct {
	Name     string
	Sections []Section
	Files    map[string][]byte
}

// Write writes the page and its files into a folder.
func (p Page) Write(dir string) error {
	all, err := p.written(dir)
	for name, content := range all {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), content, 0o644))
	}
	return err
}

// Check returns an error if Write would change something in a folder.
func (p Page) Check(dir string) error {
	all, err := p.written(dir)
	for name, want := range all {
		got, readErr := os.ReadFile(filepath.Join(dir, name))
		if err = errors.Join(err, readErr); readErr == nil && string(got) != string(want) {
			err = errors.Join(err, fmt.Errorf("%s differs from its run; write it again", name))
		}
	}
	return err
}

// written returns the contents of the files that Write writes, by name.
func (p Page) written(dir string) (map[string][]byte, error) {
	name := filepath.Join(dir, p.Name)
	old, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	page := string(old)
	for _, s := range p.Sections {
		if page, err = Insert(page, s.Begin, s.End, s.Text); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	all := map[string][]byte{p.Name: []byte(page)}
	for name, content := range p.Files {
		all[name] = content
	}
	return all, nil
}

// Run is a finished run, of which JSON keeps all.
type Run interface {
	Report() Report
	Page() (Page, error)
}

// Output is how a run is shown: the flags that all programs have.
type Output struct {
	// Kind is table or json. Docs is the folder of the page to write and From the file of a run to
	// read instead of measuring; both may be empty.
	Kind, Docs, From string
}

// Define adds the flags, of a program that writes a page of that name.
func (o *Output) Define(f *flag.FlagSet, page string) {
	f.StringVar(&o.Kind, "o", "table", "print a table or json")
	f.StringVar(&o.Docs, "docs", "", "also write the figures of "+page+" in this folder")
	f.StringVar(&o.From, "from", "", "measure nothing, read a run's JSON from this file")
}

// Usage checks the rest of a command line and the kind of output. It returns nil if both are valid.
func (o *Output) Usage(f *flag.FlagSet) error {
	switch {
	case f.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.Kind != "table" && o.Kind != "json":
		return fmt.Errorf("-o %s: there are table and json", o.Kind)
	}
	return nil
}

// Show writes the page of a run, unless Docs is empty, and prints the run.
func (o *Output) Show(r Run, out io.Writer) error {
	if o.Docs != "" {
		page, err := r.Page()
		if err == nil {
			err = page.Write(o.Docs)
		}
		if err != nil {
			return err
		}
	}
	if o.Kind == "table" {
		return r.Report().Print(out)
	}
	data, err := Encode(r)
	if err == nil {
		_, err = out.Write(data)
	}
	return err
}
