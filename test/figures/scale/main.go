// Command scale is `make scale`: how far one control plane and one Redis go, measured with
// simulated nodes that speak the filter's protocol over real connections to a real `weir serve`
// with a real Redis. Run it in the repository's root after `make build`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"

	"github.com/weir-proxy/weir/test/figures"
)

// version is set by the linker.
var version = "an unknown version"

// settings are the command line's.
type settings struct {
	figures.Output
	plan plan
}

func main() { figures.Main("scale", run) }

func parse(args []string, usage io.Writer) (s settings, err error) {
	f := flag.NewFlagSet("scale", flag.ContinueOnError)
	f.SetOutput(usage)
	short := f.Bool("short", false, "few nodes and keys for moments: does everything work?")
	long := f.Bool("long", false, "also ten million keys: some minutes and some gigabytes more")
	s.Define(f, pageName)
	if err := f.Parse(args); err != nil {
		return s, err
	}
	s.plan = usual
	switch {
	case *short:
		s.plan = brief
	case *long:
		s.plan.Keys = append(s.plan.Keys[:len(s.plan.Keys):len(s.plan.Keys)], 10_000_000)
	}
	return s, s.Usage(f)
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	s, err := parse(args, progress)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	r := &report{}
	if s.From != "" {
		r, err = readReport(s.From)
	} else {
		err = r.measure(ctx, s.plan, args, progress)
	}
	if err != nil {
		return err
	}
	return s.Show(r, out)
}

// measure does all that a plan asks for. It leaves one processor to Redis, and the rest to the
// control planes and this process.
func (r *report) measure(ctx context.Context, p plan, args []string, progress io.Writer) error {
	r.Facts = figures.NoteFacts(version, "scale", "SCALE", args)
	root, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	redisCPUs, _, err := figures.TakeProcessors()
	if err != nil {
		return err
	}
	l := &lab{root: root, redisCPUs: redisCPUs, plan: p, progress: progress}
	for _, step := range []func(context.Context, *report) error{
		l.pushes, l.polls, l.calls, l.crowds, l.fleets, l.ratio, l.keys,
	} {
		if err := step(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// readReport reads what -docs or -o json wrote.
func readReport(name string) (*report, error) {
	r := &report{}
	if err := figures.Decode(name, r); err != nil {
		return nil, err
	}
	if len(r.Calls) == 0 || len(r.Keys) < 2 || len(r.Ratio) == 0 {
		return nil, fmt.Errorf("%s is not of a whole run", name)
	}
	return r, nil
}
