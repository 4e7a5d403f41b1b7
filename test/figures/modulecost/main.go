// Command modulecost is `make module-cost`: it measures the cost of the filter's module for an
// Envoy before the first request. It starts real Envoys in turns, without a filter, with an empty
// filter and with Weir, and reads the time until each is ready, its processor time and its memory.
// Run it in the repository's root after `make build`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/weir-proxy/weir/test/figures"
	"github.com/weir-proxy/weir/tools/stack"
)

// version is set by the linker.
var version = "an unknown version"

func main() { figures.Main("modulecost", run) }

// plan describes a measurement.
type plan struct {
	// Starts is how often each Envoy is started.
	Starts int `json:"starts"`
	// Settle is how long after Envoy is ready its figures are read: the JavaScript engine goes on
	// compiling for a moment.
	Settle time.Duration `json:"settle_ns"`
	// Few is the number of workers of the start that is shown. Many is a larger number: the
	// difference shows the cost of one virtual machine.
	Few  int `json:"few_workers"`
	Many int `json:"many_workers"`
}

// settings are the command line's.
type settings struct {
	plan
	figures.Output
	beside string
}

func parse(args []string, usage io.Writer) (s settings, err error) {
	f := flag.NewFlagSet("modulecost", flag.ContinueOnError)
	f.SetOutput(usage)
	f.IntVar(&s.Starts, "starts", 10, "how often each Envoy is started")
	f.DurationVar(&s.Settle, "settle", time.Second, "how long after an Envoy is ready its figures are read")
	f.IntVar(&s.Few, "few", 2, "workers of the Envoys whose start is shown")
	f.IntVar(&s.Many, "many", 6, "workers of the Envoys that show the cost of one more virtual machine")
	f.StringVar(&s.beside, "beside", "", "also measure this file, another build of the filter")
	s.Define(f, pageName)
	if err := f.Parse(args); err != nil {
		return s, err
	}
	err = s.Usage(f)
	if err == nil && (s.Starts < 1 || s.Settle < 0 || s.Few < 1 || s.Many <= s.Few) {
		err = errors.New("-starts and -few must be positive, -settle not negative, and -many more than -few")
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
	r := &report{}
	if s.From != "" {
		err = figures.Decode(s.From, r)
	} else {
		err = r.measure(ctx, s, args, progress)
	}
	if err != nil {
		return err
	}
	return s.Show(r, out)
}

// contestant is a filter before Envoy's router.
type contestant struct {
	Title string `json:"title"`
	// Wasm is the module; empty is no filter. Bytes is its size.
	Wasm  string `json:"module,omitempty"`
	Bytes int64  `json:"bytes"`

	config string
	// host runs the module; with NativeHost the file is libweir.so beside it.
	host stack.FilterHost
}

// policies are Weir's: with a policy, but without a control plane, so that only Envoy starts.
const policies = `{"policyset": {"version": "weir/v1", "policies": [` +
	`{"name": "p", "partition": ["client_ip"], "mode": "local", "limit": {"quota": 1000, "window": "1m"}}]}}`

// contestants builds the empty filter in the repository's root.
func contestants(ctx context.Context, root, beside string) ([]contestant, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	empty, err := figures.EmptyFilter(ctx, root)
	if err != nil {
		return nil, err
	}
	all := []contestant{
		{Title: "no filter"},
		{Title: "empty Wasm filter", Wasm: empty, config: "{}"},
		{Title: "Weir", Wasm: filepath.Join(root, "build/weir.wasm"), config: policies},
		{Title: "Weir, native host", Wasm: filepath.Join(root, "build/weir.wasm"), config: policies,
			host: stack.NativeHost},
	}
	if beside != "" {
		all = append(all, contestant{Title: "Weir, " + filepath.Base(beside), Wasm: beside, config: policies})
	}
	for i := range all {
		if all[i].Wasm == "" {
			continue
		}
		if all[i].host == "" {
			all[i].host = stack.WasmHost
		}
		info, err := os.Stat(all[i].host.File(all[i].Wasm))
		if err != nil {
			return nil, fmt.Errorf("%w; run `make %s`", err, all[i].host.Target())
		}
		all[i].Bytes = info.Size()
	}
	return all, nil
}

// reading has the measurements of one start.
type reading struct {
	// Ready is how long it took until Envoy was ready, in milliseconds, as seen every 15 ms; CPU is
	// its processor time, and MB its resident memory in millions of bytes, a while later.
	Ready float64 `json:"ready_ms"`
	CPU   float64 `json:"cpu_ms"`
	MB    float64 `json:"mb"`
	// VMs is how many virtual machines it has; the native host needs none.
	VMs float64 `json:"vms"`
}

// round has the figures of one start of each contestant, with few and with many workers.
type round struct {
	Few  []reading `json:"few"`
	Many []reading `json:"many"`
	// Foreign is how many processors worked on average for other programs.
	Foreign float64 `json:"foreign_processors"`
}

func (r *report) measure(ctx context.Context, s settings, args []string, progress io.Writer) (err error) {
	r.Facts, r.Plan = figures.NoteFacts(version, "module-cost", "MODULE", args), s.plan
	if r.Contestants, err = contestants(ctx, ".", s.beside); err != nil {
		return err
	}
	config, err := os.ReadFile("envoy.yaml")
	if err != nil {
		return err
	}
	for n := range r.Plan.Starts {
		var one round
		begin := time.Now()
		before, err := figures.EverybodysTime()
		if err != nil {
			return err
		}
		for _, c := range r.Contestants {
			few, err := c.start(ctx, string(config), r.Plan.Few, r.Plan.Settle)
			if err != nil {
				return fmt.Errorf("%s, %d workers: %w", c.Title, r.Plan.Few, err)
			}
			many, err := c.start(ctx, string(config), r.Plan.Many, r.Plan.Settle)
			if err != nil {
				return fmt.Errorf("%s, %d workers: %w", c.Title, r.Plan.Many, err)
			}
			fmt.Fprintf(progress, "start %d of %d: %-24s %d workers %4.0f ms %5.1f MB, %d workers %4.0f ms %5.1f MB\n",
				n+1, r.Plan.Starts, c.Title, r.Plan.Few, few.CPU, few.MB, r.Plan.Many, many.CPU, many.MB)
			one.Few, one.Many = append(one.Few, few), append(one.Many, many)
			one.Foreign -= (few.CPU + many.CPU) / 1000
		}
		after, err := figures.EverybodysTime()
		if err != nil {
			return err
		}
		one.Foreign = figures.Rounded(max(0, ((after-before).Seconds()+one.Foreign)/time.Since(begin).Seconds()))
		r.Rounds = append(r.Rounds, one)
	}
	return nil
}

// patience bounds a start.
const patience = 30 * time.Second

// start starts an Envoy, reads its figures and ends it.
func (c contestant) start(
	ctx context.Context, config string, workers int, settle time.Duration,
) (f reading, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	o := stack.EnvoyOptions{
		Config: config, Wasm: c.Wasm, PluginConfig: c.config, UpstreamPort: 1, ControlPlanePort: 1,
		Concurrency: workers, FilterHost: c.host,
	}
	if c.Wasm == "" {
		o.FilterHost = stack.WasmHost
		o.Wasm = "envoy.yaml" // It must be there; the filter that names it is left out.
		o.Rewrite = func(config string) string { return stack.FilterText.ReplaceAllString(config, "$1") }
	}
	begin := time.Now()
	envoy, err := stack.StartEnvoy(ctx, o)
	if err != nil {
		return f, err
	}
	defer envoy.Stop()
	f.Ready = float64(time.Since(begin).Milliseconds())
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return f, ctx.Err()
	}
	used, err := figures.ProcessorTime(envoy.PID())
	if err != nil {
		return f, err
	}
	f.CPU = figures.Rounded(used.Seconds() * 1000)
	if f.MB, err = figures.Resident(envoy.PID()); err != nil {
		return f, err
	}
	f.VMs, err = machines(ctx, envoy)
	return f, err
}

// machines returns the number of virtual machines of an Envoy.
func machines(ctx context.Context, envoy *stack.Envoy) (float64, error) {
	const name = "wasm.envoy.wasm.runtime.v8.active"
	text, err := envoy.Admin(ctx, "/stats?filter=^"+name+"$")
	if err != nil || len(text) == 0 { // Without a filter there is no such figure.
		return 0, err
	}
	var n float64
	if _, err := fmt.Sscanf(string(text), name+": %f", &n); err != nil {
		return 0, fmt.Errorf("virtual machines: Envoy says %q: %w", text, err)
	}
	return n, nil
}
