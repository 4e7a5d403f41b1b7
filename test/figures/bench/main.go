// Command bench is `make bench`: Weir beside its peers on this machine, in one run, on real
// processes. In each round all contestants of a scene run side by side and take turns; the figures
// that count are ratios within a round, because the speed of a machine changes from hour to hour,
// and differs from other machines. Run it in the repository's root after `make build`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"time"

	"github.com/weir-proxy/weir/test/figures"
	"github.com/weir-proxy/weir/tools/stack"
)

// version is set by the linker.
var version = "an unknown version"

// settings are the command line's.
type settings struct {
	figures.Output
	plan   plan
	scenes []scene
	only   string
}

func main() { figures.Main("bench", run) }

// usual is the plan without flags, brief the plan of -short.
var (
	usual = plan{
		Rounds: 3, Warm: time.Second, Closed: 2 * time.Second, Open: 2 * time.Second, Slice: 250 * time.Millisecond,
		Curve: 2 * time.Second, Idle: 6 * time.Second,
	}
	brief = plan{
		Rounds: 1, Warm: 200 * time.Millisecond, Closed: 300 * time.Millisecond, Open: 300 * time.Millisecond,
		Slice: 300 * time.Millisecond, Curve: 200 * time.Millisecond, Idle: 500 * time.Millisecond,
	}
)

func parse(args []string, usage io.Writer) (s settings, err error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(usage)
	p := usual
	f.IntVar(&p.Rounds, "rounds", p.Rounds, "how often each contestant is measured")
	f.DurationVar(&p.Warm, "warm", p.Warm, "time to warm up, of each contestant in each round")
	f.DurationVar(&p.Closed, "closed", p.Closed, "time in the closed loop")
	f.DurationVar(&p.Slice, "slice", p.Slice,
		"length of a slice of the closed loop; the cheapest slice counts")
	f.DurationVar(&p.Open, "open", p.Open, "time in the open loop")
	f.DurationVar(&p.Curve, "curve", p.Curve, "time at each rate of the curve")
	f.DurationVar(&p.Idle, "idle", p.Idle, "time without requests")
	short := f.Bool("short", false, "one short round: does everything work?")
	scenes := f.String("scene", "", "measure only these scenes, with commas between them; without it all")
	f.StringVar(&s.only, "only", "", "measure only contestants whose SCENE/NAME matches this expression")
	s.Define(f, pageName)
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if s.plan = p; *short {
		s.plan = brief
	}
	s.scenes, err = chosenScenes(*scenes)
	if err == nil {
		err = s.Usage(f)
	}
	if err == nil && (s.plan.Rounds < 1 || s.plan.shortest() <= 0) {
		err = errors.New("rounds and times must be positive")
	}
	return s, err
}

// shortest returns the shortest of its times.
func (p plan) shortest() time.Duration {
	return min(p.Warm, p.Closed, p.Open, p.Slice, p.Curve, p.Idle)
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
	if s.From != "" {
		r, err = readReport(s.From)
	} else {
		r, err = bench(ctx, s, args, progress)
	}
	if err != nil {
		return err
	}
	return s.Show(r, out)
}

// bench measures the contestants that are asked for.
func bench(ctx context.Context, s settings, args []string, progress io.Writer) (*report, error) {
	chosen, err := s.contestants()
	if err != nil {
		return nil, err
	}
	r := &report{Facts: figures.NoteFacts(version, "bench", "BENCH", args), Plan: s.plan, Order: chosen}
	if r.Envoy, err = envoyVersion(ctx); err != nil {
		return nil, err
	}
	begin := time.Now()
	shop, err := newWorkshop(ctx, ".")
	if err != nil {
		return nil, err
	}
	defer shop.upstream.stop()
	r.Beside = shop.beside
	err = r.measure(ctx, &runner{shop: shop, plan: s.plan, progress: progress, retries: 2})
	r.Took = time.Since(begin).Round(time.Second)
	return r, err
}

// contestants returns the contestants that the command line asks for.
func (s settings) contestants() (chosen []contestant, err error) {
	only, err := regexp.Compile(s.only)
	if err != nil {
		return nil, err
	}
	for _, c := range contestants() {
		if slices.Contains(s.scenes, c.Scene) && only.MatchString(c.id()) {
			chosen = append(chosen, c)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no contestant of %v matches %q", s.scenes, s.only)
	}
	return chosen, nil
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
