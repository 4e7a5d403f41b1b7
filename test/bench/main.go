// Command bench is `make bench`: Weir beside its peers on this machine, in one run, on real
// processes. In each round all contestants of a scene run side by side and take turns; the figures
// that count are ratios within a round, because what a machine does in a second changes from hour
// to hour and from machine to machine. It runs in the repository's root, on what `make build` made.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/weir-proxy/weir/test/bench/gauge"
	"github.com/weir-proxy/weir/tools/stack"
)

// version is set by the linker.
var version = "an unknown version"

// settings are the command line's.
type settings struct {
	plan       plan
	only       string
	output     string
	docs, from string
}

func main() { gauge.Main("bench", run) }

func parse(args []string, usage io.Writer) (s settings, err error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(usage)
	f.IntVar(&s.plan.Rounds, "rounds", 3, "how often each contestant is measured")
	f.DurationVar(&s.plan.Warm, "warm", 2*time.Second, "time to warm up, of each contestant in each round")
	f.DurationVar(&s.plan.Closed, "closed", 3*time.Second, "time in the closed loop")
	f.DurationVar(&s.plan.Slice, "slice", 250*time.Millisecond, "what is measured of the closed loop at a time, the cheapest of which counts")
	f.DurationVar(&s.plan.Open, "open", 4*time.Second, "time in the open loop")
	short := f.Bool("short", false, "one short round: does everything work?")
	f.StringVar(&s.only, "only", "", "measure only contestants whose SCENE/NAME matches this expression")
	f.StringVar(&s.output, "o", "table", "print a table or json")
	f.StringVar(&s.docs, "docs", "", "also write "+pageName+", its plot and its data in this folder")
	f.StringVar(&s.from, "from", "", "measure nothing, read a run's JSON from this file")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if *short {
		s.plan = plan{Rounds: 1, Warm: 200 * time.Millisecond, Closed: 300 * time.Millisecond, Open: 300 * time.Millisecond, Slice: 300 * time.Millisecond}
	}
	switch {
	case f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
	case s.output != "table" && s.output != "json":
		err = fmt.Errorf("-o %s: there are table and json", s.output)
	case s.plan.Rounds < 1 || s.plan.Warm <= 0 || s.plan.Closed <= 0 || s.plan.Open <= 0 || s.plan.Slice <= 0:
		err = errors.New("rounds and times must be positive")
	}
	return s, err
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	s, err := parse(args, progress)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	var r *report
	if s.from != "" {
		r, err = readReport(s.from)
	} else {
		r, err = bench(ctx, s, args, progress)
	}
	if err != nil {
		return err
	}
	return gauge.Show(r, s.docs, s.output, out)
}

// bench measures the contestants that are asked for.
func bench(ctx context.Context, s settings, args []string, progress io.Writer) (*report, error) {
	only, err := regexp.Compile(s.only)
	if err != nil {
		return nil, err
	}
	var chosen []contestant
	for _, c := range contestants() {
		if only.MatchString(c.id()) {
			chosen = append(chosen, c)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no contestant matches %q", s.only)
	}
	r := &report{
		Date: time.Now().UTC().Format(time.DateOnly), Version: version, Plan: s.plan, Order: chosen,
		Command: strings.TrimSpace("make bench BENCH='" + strings.Join(args, " ") + "'"), Machine: gauge.Machine(), Load: gauge.LoadAverage(),
	}
	if len(args) == 0 {
		r.Command = "make bench"
	}
	if r.Envoy, err = envoyVersion(ctx); err != nil {
		return nil, err
	}
	shop, err := newWorkshop(ctx, ".")
	if err != nil {
		return nil, err
	}
	defer shop.upstream.stop()
	err = r.measure(ctx, &runner{shop: shop, plan: s.plan, progress: progress})
	return r, err
}

func (r *report) measure(ctx context.Context, by *runner) error {
	for n := range r.Plan.Rounds {
		one, err := by.round(ctx, n+1, r.Order)
		if err != nil {
			return err
		}
		r.Rounds = append(r.Rounds, one)
	}
	r.Targets = judge(r.Rounds)
	return nil
}

func envoyVersion(ctx context.Context) (string, error) {
	binary, err := stack.EnvoyBinary()
	if err != nil {
		return "", err
	}
	output, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", binary, err)
	}
	m := regexp.MustCompile(`/(\d+\.\d+\.\d+)/`).FindSubmatch(output)
	if m == nil {
		return "", fmt.Errorf("unknown version of Envoy: %q", output)
	}
	return "Envoy " + string(m[1]), nil
}
