package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/grant/regions"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policyfiles"
	"github.com/weir-proxy/weir/controlplane/internal/rules/promises"
	"github.com/weir-proxy/weir/controlplane/internal/serve/assign"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

type checkCommand struct {
	Files  []string `arg:"" name:"file" help:"Policy files, YAML or JSON, or folders of such whose files make one set; - is the standard input."`
	Nodes  int64    `default:"10" help:"The number of Envoys that share the limits: optimistic policies may exceed their limits by an amount that depends on it."`
	Doors  int64    `default:"0" help:"How many replicas of the control plane answer Envoy's own filters (--rls-listen, --rlqs-listen): each counts as one more Envoy."`
	Output string   `short:"o" enum:"text,json" default:"text" help:"text or json."`

	QuotaFilters bool `help:"Also name the limits that Envoy's quota filters (--rlqs-listen) cannot let through in full. For policies for calls this is always printed."`

	RegionWeights map[string]int64 `help:"Regions that share the limits, as for weir serve: names the costs that are too high for a region." placeholder:"NAME=N;NAME=N"`
}

// checked is the result for a file.
type checked struct {
	File     string             `json:"file"`
	Problems policy.Problems    `json:"problems"`
	Policies []promises.Promise `json:"policies"`
	// Notes are remarks for the operator about the set as a whole.
	Notes []string `json:"notes,omitempty"`
}

// Run checks the files and fails if one has a problem.
func (c *checkCommand) Run(env *environment) error {
	shares, err := regions.Normalise(c.RegionWeights)
	if err != nil {
		return fmt.Errorf("--region-weights: %w", err)
	}
	var files []checked
	failed := false
	for _, name := range c.Files {
		set, err := loadSet(env, name)
		f, err := c.checkSet(name, set, err, shares)
		if err != nil {
			return err
		}
		failed = failed || len(f.Problems) > 0
		files = append(files, f)
	}
	if c.Output == "json" {
		err = printJSON(env.Out, map[string]any{"files": files})
	} else {
		err = printChecked(env, files)
	}
	if err == nil && failed {
		err = errReported
	}
	return err
}

// checkSet returns the result for a set, or the problems in err if there is no set. Its own error
// is not about the document.
func (c *checkCommand) checkSet(name string, set *policy.Set, err error, shares map[string]int64) (checked, error) {
	f := checked{File: name, Problems: policy.Problems{}, Policies: []promises.Promise{}}
	if problems, ok := policydoc.ProblemsOf(err); ok {
		f.Problems = problems
		return f, nil
	} else if err != nil {
		return f, err
	}
	f.Notes = promises.NotesOf(set)
	for _, p := range set.Policies {
		one := c.promiseOf(p, set, shares)
		if c.QuotaFilters || p.Match.IsOfCalls() {
			one.Notes = append(one.Notes, quotaFilterNotes(p)...)
		}
		f.Policies = append(f.Policies, one)
	}
	return f, nil
}

func (c *checkCommand) promiseOf(p policy.Policy, set *policy.Set, shares map[string]int64) promises.Promise {
	promise := promises.Of(p, set, max(c.Nodes, 1), max(c.Doors, 0))
	promise.Notes = append(promise.Notes, regionNotes(p, shares)...)
	return promise
}

// regionNotes names the regions whose part of a limit is smaller than the largest cost of a
// request.
func regionNotes(p policy.Policy, shares map[string]int64) (notes []string) {
	dearest := max(p.Cost.Fixed, p.Cost.Max)
	for _, region := range slices.Sorted(maps.Keys(shares)) {
		part := regions.Part{Rate: shares[region], Burst: shares[region]}
		least := dearest
		for _, l := range p.Limits {
			least = min(least, part.Of(l).Params.Burst)
		}
		if least < dearest && p.Mode != policy.ModeLocal {
			notes = append(notes, fmt.Sprintf(
				"region %s refuses a request that costs more than its part of the limit, %d", region, least))
		}
	}
	return notes
}

// quotaFilterNotes describes the rate that Envoy's quota filters let through of a policy's limits,
// for each limit that they do not let through in full.
func quotaFilterNotes(p policy.Policy) (notes []string) {
	for _, l := range p.Limits {
		note := ""
		if why := assign.Unfit(&p, l); why != "" {
			note = "Envoy's quota filters are assigned none of it: " + why
		} else if least, most, full := assign.Throughput(l.Params); !full {
			note = fmt.Sprintf("Envoy's quota filters let through %d to %d a second of %d per %s: "+
				"all of it needs a burst of three seconds", least, most, l.Quota, policy.FormatSpan(l.Window))
		}
		if note != "" && !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}
	return notes
}

func printChecked(env *environment, files []checked) error {
	var out strings.Builder
	for _, f := range files {
		// A file with problems has no policies to print.
		for _, p := range f.Problems {
			fmt.Fprintln(env.Err, policydoc.Sentence(f.File, p))
		}
		if len(f.Problems) > 0 {
			continue
		}
		// Print the policies with their promises, then the notes.
		fmt.Fprintf(&out, "%s: %s\n", f.File, plural(len(f.Policies), "policy", "policies"))
		for _, p := range f.Policies {
			var limits []string
			for _, l := range p.Limits {
				limits = append(limits, l.String())
			}
			how := p.Mode
			if p.Algorithm != quota.DefaultAlgorithm.String() {
				how += ", " + p.Algorithm
			}
			fmt.Fprintf(&out, "\n  %s (%s): %s\n    %s\n", p.Name, how, strings.Join(limits, "; "), p.Bound)
			for _, note := range p.Notes {
				fmt.Fprintf(&out, "    %s\n", note)
			}
		}
		for _, note := range f.Notes {
			fmt.Fprintf(&out, "\n  %s\n", note)
		}
	}
	_, err := io.WriteString(env.Out, out.String())
	return err
}

// readSet reads a policy set: a file, the standard input, or all policy files of a folder as one
// set. Problems in a folder are policy.Problems that name files and lines. For a file, the error
// only says why it cannot be read.
func readSet(env *environment, name string) (doc policyfiles.Document, err error) {
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return policyfiles.Load(name)
	}
	doc.Text, err = readInput(env, name, policydoc.MaxBytes)
	doc.Format = policydoc.FormatOf(name, doc.Text)
	return doc, err
}

// loadSet reads a policy set as readSet does, and validates it.
func loadSet(env *environment, name string) (*policy.Set, error) {
	doc, err := readSet(env, name)
	if err != nil {
		return nil, err
	}
	return policydoc.LoadNew(doc.Text, doc.Format)
}

// readInput reads a file, or the standard input for -. It reads a byte more than the maximum, so
// that a file that is too large gets the right error.
func readInput(env *environment, name string, most int64) ([]byte, error) {
	in := env.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		info, err := f.Stat()
		if err == nil && info.IsDir() {
			return nil, errors.New(name + " is a directory: name its files")
		}
		in = f
	}
	return io.ReadAll(io.LimitReader(in, most+1))
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
