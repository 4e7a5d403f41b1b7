package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/test/bench/gauge"
	"github.com/weir-proxy/weir/test/bench/load"
	"github.com/weir-proxy/weir/tools/stack"
)

const (
	repository    = "../.."
	documentation = repository + "/docs"
)

var short = plan{Rounds: 1, Warm: 200 * time.Millisecond, Closed: 300 * time.Millisecond, Open: 300 * time.Millisecond, Slice: 300 * time.Millisecond}

// shop is for all tests: the first that asks for it keeps this process off Envoy's processor.
var shop = sync.OnceValues(func() (*workshop, error) { return newWorkshop(context.Background(), repository) })

func openShop(t *testing.T) *workshop {
	t.Helper()
	w, err := shop()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Every contestant that needs no more than `make setup` installs does the work that it is measured for: measure itself fails if an
// answer has another status or the filter has not counted each request. No figure is judged: a machine that runs tests
// measures nothing. envoyproxy/ratelimit is not installed for tests; its Envoy's configuration is tested below.
func TestEveryContestantDoesItsWork(t *testing.T) {
	shop := openShop(t)
	r := &report{Plan: short, Order: slices.DeleteFunc(contestants(), func(c contestant) bool { return c.part == global })}
	if err := r.measure(t.Context(), &runner{shop: shop, plan: short, progress: io.Discard}); err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Order {
		f := r.Rounds[0][c.id()]
		if f.Rate <= 0 || f.EnvoyCPU <= 0 || f.EnvoyMB <= 0 {
			t.Errorf("%s has no figures: %+v", c.id(), f)
		}
		if (f.OtherMB > 0) != (c.part == weir) {
			t.Errorf("%s has %.0f MB in other processes", c.id(), f.OtherMB)
		}
		if (c.Scene == proxied) != (f.P50 > 0 && f.P50 <= f.P99 && f.P99 <= f.P999) {
			t.Errorf("%s has the latencies %v, %v, %v", c.id(), f.P50, f.P99, f.P999)
		}
		if c.Name == "strict" && f.Calls < 0.1 {
			t.Errorf("%s made %.3f calls for each request", c.id(), f.Calls)
		}
	}
	if want := len(promises()) - 1; len(r.Targets) != want {
		t.Errorf("%d targets were judged, want all %d but that with envoyproxy/ratelimit: %+v", len(r.Targets), want, r.Targets)
	}
}

// A filter that does not do what it is measured for is noticed, whichever way.
func TestIdleContestantsAreNoticed(t *testing.T) {
	shop := openShop(t)
	r := &runner{shop: shop, plan: short, progress: io.Discard}
	for want, c := range map[string]contestant{
		"every answer must be 429":      {part: weir, Scene: direct, status: 429, proof: localProof, policies: set(open("local"))},
		"proof that the filter worked":  {part: weir, Scene: direct, status: 200, proof: localProof, policies: set()},
		"their tokens were not in hand": {part: weir, Scene: direct, status: 200, proof: strictProof, policies: set(central("strict")), inHand: true},
	} {
		if _, err := r.round(t.Context(), 1, []contestant{c}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

// Envoy takes the configuration of every contestant.
func TestEnvoyTakesEveryConfiguration(t *testing.T) {
	envoy, err := stack.EnvoyBinary()
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(repository + "/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	wasm, err := filepath.Abs(repository + "/build/weir.wasm")
	if err != nil {
		t.Fatal(err)
	}
	finished, err := stack.EnvoyOptions{Config: string(config), Wasm: wasm, UpstreamPort: 1, ControlPlanePort: 2}.Configuration()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[part]bool{}
	for _, c := range contestants() {
		text, err := c.configure(finished, 3)
		if err != nil {
			t.Errorf("%s: %v", c.id(), err)
			continue
		}
		if err := yaml.Unmarshal([]byte(text), new(any)); err != nil {
			t.Errorf("%s: %v", c.id(), err)
		}
		if strings.Contains(text, "access_log") || strings.Contains(text, "weir.wasm") != (c.part == weir || c.part == emptyWasm) {
			t.Errorf("%s has what it should not:\n%s", c.id(), text)
		}
		// The others run in the test above.
		if c.part != global || seen[c.part] {
			continue
		}
		seen[c.part] = true
		name := filepath.Join(t.TempDir(), "envoy.yaml")
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if output, err := exec.Command(envoy, "--mode", "validate", "--config-path", name).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", c.id(), err, output)
		}
	}
	if !seen[global] {
		t.Error("no contestant has the ratelimit filter")
	}
	if _, err := contestants()[0].configure("node: {}", 0); err == nil {
		t.Error("a configuration that is not envoy.yaml is taken")
	}
}

// Contestants have names of their own, and each promise compares contestants that there are.
func TestContestantsAndPromisesFitTogether(t *testing.T) {
	ids := map[string]bool{}
	for _, c := range contestants() {
		if ids[c.id()] || c.Title == "" || (c.proof == "") != (c.part == nothing) {
			t.Errorf("%s is there twice, or lacks its title or its proof: %+v", c.id(), c)
		}
		ids[c.id()] = true
	}
	for _, p := range promises() {
		for _, id := range p.needs {
			if !ids[id] {
				t.Errorf("%s needs %s, which does not exist", p.name, id)
			}
		}
	}
}

// What a filter adds is compared, within a round; the median over the rounds counts.
func spread(median, least, most float64) gauge.Spread {
	return gauge.Spread{Median: median, Min: least, Max: most}
}

func TestTargetsAreJudgedByRatiosWithinRounds(t *testing.T) {
	one := func(slow float64, local float64) round {
		return round{
			"direct/none": {EnvoyCPU: 10 * slow}, "direct/empty": {EnvoyCPU: 12 * slow}, "direct/local": {EnvoyCPU: (10 + local) * slow, OtherCPU: 5},
			"proxied/none":      {EnvoyCPU: 30, P99: 2, OpenRate: 100},
			"proxied/leased":    {EnvoyCPU: 34, OtherCPU: 1, P99: 3, OpenRate: 100},
			"proxied/ratelimit": {EnvoyCPU: 60, OtherCPU: 70},
			"proxied/local":     {P99: 2, OpenRate: 99},
		}
	}
	got := map[string]target{}
	for _, t := range judge([]round{one(1, 4), one(7, 5), one(3, 4.4)}) {
		got[t.Name] = t
	}
	for name, want := range map[string]target{
		"filter, local, two headers / empty filter":                 {AtMost: 2.3, Measured: spread(2.2, 2, 2.5), Met: true},
		"a global limit, leased / ratelimit, its service and Redis": {AtMost: 1.0 / 12, Measured: spread(0.05, 0.05, 0.05), Met: true},
		"99th percentile, leased / no limit":                        {AtMost: 1.15, Measured: spread(1.5, 1.5, 1.5)},
		"99th percentile, local / no limit":                         {AtMost: 1.15, Measured: spread(1, 1, 1), Flaw: "in some round only at a lower load"},
	} {
		want.Name = name
		g, ok := got[name]
		near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
		if !ok || g.Met != want.Met || g.Flaw != want.Flaw || !near(g.AtMost, want.AtMost) || !near(g.Measured.Median, want.Measured.Median) ||
			!near(g.Measured.Min, want.Measured.Min) || !near(g.Measured.Max, want.Measured.Max) {
			t.Errorf("%s: %+v, want %+v", name, g, want)
		}
	}
	noisy := one(1, 4)
	noisy["direct/empty"] = figures{EnvoyCPU: 9.9}
	noisy["proxied/ratelimit"] = figures{}
	for _, target := range judge([]round{one(1, 4), noisy, one(1, 4)}) {
		if (strings.HasPrefix(target.Name, "filter") || strings.HasPrefix(target.Name, "a global")) && (target.Met || !strings.Contains(target.Flaw, "noisy")) {
			t.Errorf("in one round the base costs nothing, and the target counts: %+v", target)
		}
	}
	if len(got) != 4 {
		t.Errorf("the others lack a contestant and cannot be judged: %+v", got)
	}
}

// The page shows the run that lies beside it, and nothing that was written by hand.
func TestThePageShowsItsRun(t *testing.T) {
	r, err := readReport(filepath.Join(documentation, dataName))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(documentation, pageName))
	if err != nil {
		t.Fatal(err)
	}
	want, err := r.insert(string(page))
	if err != nil {
		t.Fatal(err)
	}
	if want != string(page) {
		t.Errorf("%s is not what %s says; write it again by: build/bench -from docs/%s -docs docs", pageName, dataName, dataName)
	}
	plot, err := os.ReadFile(filepath.Join(documentation, plotName))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(plot, r.plot()) {
		t.Errorf("%s is not drawn from %s", plotName, dataName)
	}
	for d := xml.NewDecoder(bytes.NewReader(plot)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(plotName, err)
		}
	}
	if !slices.EqualFunc(r.Targets, judge(r.Rounds), func(a, b target) bool { return a == b }) {
		t.Errorf("%s has other targets than its rounds give", dataName)
	}
}

func TestAnswersOfAnotherStatusAreAnError(t *testing.T) {
	for _, statuses := range []map[int]int{{}, {200: 9, 503: 1}, {429: 10}} {
		if (contestant{status: 200}).expects(load.Result{Statuses: statuses}) == nil {
			t.Errorf("%v is taken for nothing but 200", statuses)
		}
	}
	if err := (contestant{status: 429}).expects(load.Result{Statuses: map[int]int{429: 1}}); err != nil {
		t.Error(err)
	}
}

// Who cannot do the common rate at ease is asked for less.
func TestPaceOfTheOpenLoop(t *testing.T) {
	r := &runner{}
	for _, step := range []struct {
		part           part
		capacity, want float64
	}{{nothing, 30_000, 10_000}, {nothing, 24_000, 10_000}, {weir, 15_000, 10_000}, {global, 3000, 1500}, {weir, 12_400, 6200}} {
		if got := r.pace(contestant{part: step.part}, step.capacity); got != step.want {
			t.Errorf("%s that can do %v is asked for %v, want %v", step.part, step.capacity, got, step.want)
		}
	}
}

// Key k of a thousand comes about 1/(k+1) as often as the first, which comes with one request in 7.49.
func TestKeysAreZipfs(t *testing.T) {
	order := zipf(keys, 1<<16)
	count := make([]int, keys)
	for _, k := range order {
		count[k]++
	}
	for k, want := range map[int]float64{0: 8755, 1: 4378, 9: 875.5, 99: 87.55} {
		if got := float64(count[k]); math.Abs(got-want) > 5*math.Sqrt(want) {
			t.Errorf("key %d was drawn %v times, want about %v", k, got, want)
		}
	}
	if !slices.Equal(order, zipf(keys, 1<<16)) {
		t.Error("the keys differ from run to run")
	}
	if slices.Max(zipf(1, 100)) != 0 {
		t.Error("one key is more than one")
	}
}

func TestSettings(t *testing.T) {
	s, err := parse([]string{"-short", "-o", "json", "-only", "x"}, io.Discard)
	if err != nil || s.plan != short || s.output != "json" || s.only != "x" {
		t.Errorf("%+v, %v", s, err)
	}
	for _, args := range [][]string{{"x"}, {"-o", "xml"}, {"-rounds", "0"}, {"-open", "0s"}, {"-nothing"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}

// What -o json prints is what -from reads.
func TestARunIsReadAsItWasWritten(t *testing.T) {
	r := &report{Date: "2026-01-02", Plan: short, Order: contestants()[:2], Rounds: []round{{
		"direct/none": {EnvoyCPU: 10}, "direct/empty": {EnvoyCPU: 12.5},
	}}}
	data, err := gauge.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), dataName)
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-from", name}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2026-01-02", "empty Wasm filter", "2.5 (2.5 to 2.5)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
	out.Reset()
	if err := run(t.Context(), []string{"-from", name, "-o", "json"}, &out, io.Discard); err != nil || out.String() != string(data) {
		t.Errorf("%v: read and written again it is\n%s", err, out.String())
	}
	if err := os.WriteFile(name, []byte(`{"rounds": []}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readReport(name); err == nil {
		t.Error("a run without rounds is taken")
	}
}
