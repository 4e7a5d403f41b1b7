package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/weir-proxy/weir/controlplane/internal/offline/simulate"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
)

// currentSet is the command line's name for the policy set of the control plane.
const currentSet = "current"

type simulateCommand struct {
	serverFlags
	Policies string            `arg:"" help:"The policy file to try, or current for the policy set of the control plane."`
	Logs     []string          `arg:"" name:"log" help:"Access logs, in the order of time: JSON, an object a line, or CSV with a header; plain or gzip. - is the standard input."`
	Against  string            `help:"Compare with another policy file, or with current: who is newly limited, and who no longer." placeholder:"POLICIES"`
	Nodes    int64             `default:"1" help:"The number of Envoys: each has its own bucket of a limit of mode local."`
	Field    map[string]string `mapsep:"," help:"The name of a field in the log: time, method, path, host, client_ip, status, consumer, tier, or a request header." placeholder:"NAME=FIELD"`
	Top      int               `default:"20" help:"How many callers to list."`
	Output   string            `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

// Help returns the text below the flags.
func (simulateCommand) Help() string {
	return `Each request is decided as the filter decides it, in the time of the log, with one exact bucket for all Envoys. Requests that were refused when the log was written count as demand.`
}

// Run replays the logs and prints who would have been limited.
func (c *simulateCommand) Run(env *environment) error {
	if c.Nodes < 1 || c.Top < 0 {
		return errors.New("--nodes must be at least 1, and --top at least 0")
	}
	o := simulate.Options{Nodes: c.Nodes, Fields: c.Field, Top: c.Top}
	var err error
	o.Set, err = c.getSet(env, c.Policies)
	if err != nil {
		return err
	}
	if c.Against != "" {
		o.Against, err = c.getSet(env, c.Against)
		if err != nil {
			return err
		}
	}
	s, err := simulate.New(o)
	if err != nil {
		return err
	}
	for _, name := range c.Logs {
		if err := replayLog(env, s, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	report := s.Report()
	if report.Requests == 0 { // Zeros would look as if all were well.
		return errNoRequests(report)
	}
	if c.Output == "json" {
		return printJSON(env.Out, report)
	}
	_, err = io.WriteString(env.Out, describeReport(report, c))
	return err
}

// errNoRequests says why no line of a log is a request.
func errNoRequests(r simulate.Report) error {
	text := fmt.Sprintf("of %d lines none is a request that could be read: logs are lines of JSON, or CSV whose first "+
		"line names the fields; --field NAME=FIELD gives the name of a field in the log", r.Lines)
	for _, p := range r.Problems {
		text += "\n  " + p
	}
	return errors.New(text)
}

// getSet reads a policy set from a file, or gets the set of the control plane.
func (c *simulateCommand) getSet(env *environment, name string) (*policy.Set, error) {
	if name != currentSet {
		set, err := loadSet(env, name)
		return set, showProblems(env, name, err)
	}
	cl, err := c.newClient()
	if err != nil {
		return nil, err
	}
	got, err := cl.do(http.MethodGet, "/v1/policyset", nil, nil)
	if err != nil {
		return nil, err
	}
	set, err := policydoc.Load(got.body, policydoc.Sniff(got.body))
	return set, showProblems(env, name, err)
}

// replayLog reads a log, with a progress bar on a terminal.
func replayLog(env *environment, s *simulate.Simulation, name string) error {
	if name == "-" {
		return s.Read("stdin", env.In)
	}
	file, err := os.Open(name)
	if err != nil {
		return errors.Unwrap(err)
	}
	defer file.Close()
	shown := newProgress(env.Err, file)
	defer shown.end()
	return s.Read(name, reading{file, shown})
}

// describeReport returns the report for people.
func describeReport(r simulate.Report, c *simulateCommand) string {
	var out strings.Builder
	// How the log was read.
	if r.Requests > 0 {
		fmt.Fprintf(&out, "%d requests from %s to %s\n", r.Requests, stamp(r.From), stamp(r.To))
	}
	if r.Malformed > 0 {
		fmt.Fprintf(&out, "%d of %d lines could not be read:\n", r.Malformed, r.Lines)
		for _, p := range r.Problems {
			fmt.Fprintf(&out, "  %s\n", p)
		}
	}
	if r.Late > 0 {
		fmt.Fprintf(&out, "%d lines came more than %ds after their place, and are taken where they stand\n", r.Late,
			int64(simulate.Window)/1e6)
	}
	if r.Recorded > 0 {
		fmt.Fprintf(&out, "%d were refused with 429 when the log was written; they count as demand\n", r.Recorded)
	}
	for _, name := range r.Adaptive {
		fmt.Fprintf(&out, "policy %s refuses nothing here: no log says how an upstream would have answered under "+
			"another limit\n", name)
	}
	// The result, or both results and their difference.
	writeResult(&out, c.Policies, r.Result, r.Requests)
	if r.Against == nil {
		writeCallers(&out, r.Result.Callers, r.Result.Limited)
		return out.String()
	}
	writeResult(&out, c.Against, *r.Against, r.Requests)
	fmt.Fprintf(&out, "\nnewly limited: %d requests\n", r.Newly.Requests)
	writeCallers(&out, r.Newly.Callers, r.Newly.Limited)
	fmt.Fprintf(&out, "\nno longer limited: %d requests\n", r.Freed.Requests)
	writeCallers(&out, r.Freed.Callers, r.Freed.Limited)
	return out.String()
}

func writeResult(out *strings.Builder, name string, r simulate.Result, requests int64) {
	fmt.Fprintf(out, "\n%s: %d refused", name, r.Refused+r.Banned)
	if requests > 0 {
		fmt.Fprintf(out, " (%.2f %%)", float64(r.Refused+r.Banned)*100/float64(requests))
	}
	if r.Banned > 0 {
		fmt.Fprintf(out, ", %d of them banned", r.Banned)
	}
	out.WriteString("\n")
	_ = printTable(out, "POLICY\tREFUSED\tIN SHADOW\tFIRST", func(w io.Writer) { // Into memory.
		for _, p := range r.Policies {
			first := "-"
			if p.First != nil {
				first = stamp(*p.First)
			}
			fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", p.Name, p.Refused, p.Shadow, first)
		}
	})
	if len(r.Unseen) > 0 {
		fmt.Fprintf(out, "not simulated, since an access log shows no descriptors: %s\n", strings.Join(r.Unseen, ", "))
	}
	if r.Forgotten > 0 {
		fmt.Fprintf(out, "%d buckets were forgotten too early, because more than %d were in use: somewhat too little "+
			"is refused\n", r.Forgotten, simulate.MaxBuckets)
	}
}

func writeCallers(out *strings.Builder, callers []simulate.Caller, all int) {
	if len(callers) == 0 {
		return
	}
	out.WriteString("\n")
	_ = printTable(out, "CALLER\tPOLICY\tREFUSED\tFIRST\tLAST", func(w io.Writer) { // Into memory.
		for _, one := range callers {
			count := fmt.Sprint(one.Refused)
			if one.Error > 0 {
				count = fmt.Sprintf("%d to %d", one.Refused-one.Error, one.Refused)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", printable(one.Who), one.Policy, count, stamp(one.First),
				stamp(one.Last))
		}
	})
	if more := all - len(callers); more > 0 {
		fmt.Fprintf(out, "and %d more: --top lists them\n", more)
	}
}

func stamp(at time.Time) string { return at.Format("2006-01-02T15:04:05.000Z") }

// printable returns a foreign text in a form that a terminal may show.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}
