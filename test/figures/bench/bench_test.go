package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/test/figures"
	"github.com/weir-proxy/weir/test/figures/bench/load"
	"github.com/weir-proxy/weir/tools/stack"
)

const (
	repository    = "../../.."
	documentation = repository + "/docs"
)

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
	options := stack.EnvoyOptions{Config: string(config), Wasm: wasm, UpstreamPort: 1, ControlPlanePort: 2}
	finished, err := options.Configuration()
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
		hasWasm := c.part == weir || c.part == emptyWasm
		if strings.Contains(text, "access_log") || strings.Contains(text, "weir.wasm") != hasWasm {
			t.Errorf("%s has an access log, or the filter without need, or lacks it:\n%s", c.id(), text)
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
		output, err := exec.Command(envoy, "--mode", "validate", "--config-path", name).CombinedOutput()
		if err != nil {
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

func spread(median, least, most float64) figures.Spread {
	return figures.Spread{Median: median, Min: least, Max: most}
}

// A comparison that is missed names its parts: they add up to it.
func TestAMissedTargetNamesItsParts(t *testing.T) {
	r := round{
		"proxied/none": {EnvoyCPU: 30}, "proxied/empty": {EnvoyCPU: 35}, "proxied/local": {EnvoyCPU: 50},
		"proxied/strict": {EnvoyCPU: 60, OtherCPU: 40}, "proxied/ratelimit": {EnvoyCPU: 60, OtherCPU: 70},
	}
	want := "consists of 0.05 to enter any Wasm filter, 0.15 to decide by a bucket of this Envoy, " +
		"0.1 for what else the mode does in Envoy, its calls among it, 0.4 in the control plane and Redis"
	if got := judge([]round{r})[0]; got.Floor != want || math.Abs(got.Measured.Median-0.7) > 1e-9 {
		t.Errorf("%+v, want %q", got, want)
	}
	delete(r, "proxied/local")
	if got := judge([]round{r})[0]; got.Floor != "" {
		t.Errorf("parts without the contestant that they need: %q", got.Floor)
	}
}

// The costs that filters add are compared within a round; the median over the rounds counts.
func TestTargetsAreJudgedByRatiosWithinRounds(t *testing.T) {
	one := func(slow float64, local float64) round {
		return round{
			"direct/none": {EnvoyCPU: 10 * slow}, "direct/local": {EnvoyCPU: 12 * slow},
			"direct/five":       {EnvoyCPU: (10 + local) * slow, OtherCPU: 5},
			"proxied/none":      {EnvoyCPU: 30, Open: []paced{{Rate: 100, P99: 2}}},
			"proxied/leased":    {EnvoyCPU: 34, OtherCPU: 1, Open: []paced{{Rate: 100, P99: 3}}},
			"proxied/ratelimit": {EnvoyCPU: 60, OtherCPU: 70},
			"proxied/local":     {Open: []paced{{Rate: 99, P99: 2}}},
		}
	}
	got := map[string]target{}
	for _, t := range judge([]round{one(1, 4), one(7, 5), one(3, 4.4)}) {
		got[t.Name] = t
	}
	for name, want := range map[string]target{
		"filter, 5 policies apply / 1 applies":   {AtMost: 2, Measured: spread(2.2, 2, 2.5)},
		"leased, 1000 keys: added / ratelimit's": {AtMost: 0.4, Measured: spread(0.05, 0.05, 0.05), Met: true},
		"99th percentile, leased / no limit":     {AtMost: 1.15, Measured: spread(1.5, 1.5, 1.5)},
		"99th percentile, local / no limit": {AtMost: 1.15, Measured: spread(1, 1, 1),
			Flaw: "in some round only at a lower load"},
	} {
		want.Name = name
		g, ok := got[name]
		near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
		if !ok || g.Met != want.Met || g.Flaw != want.Flaw || !near(g.AtMost, want.AtMost) ||
			!near(g.Measured.Median, want.Measured.Median) ||
			!near(g.Measured.Min, want.Measured.Min) || !near(g.Measured.Max, want.Measured.Max) {
			t.Errorf("%s: %+v, want %+v", name, g, want)
		}
	}
	noisy := one(1, 4)
	noisy["direct/local"] = reading{EnvoyCPU: 9.9}
	noisy["proxied/ratelimit"] = reading{}
	for _, target := range judge([]round{one(1, 4), noisy, one(1, 4)}) {
		isRatio := strings.HasPrefix(target.Name, "filter") || strings.Contains(target.Name, "ratelimit")
		if isRatio && (target.Met || !strings.Contains(target.Flaw, "noisy")) {
			t.Errorf("in one round the base costs nothing, and the target counts: %+v", target)
		}
	}
	if len(got) != 4 {
		t.Errorf("the others lack a contestant and cannot be judged: %+v", got)
	}
}

// On the curve the costs at one rate are compared, if all have reached it.
func TestTargetsOnTheCurve(t *testing.T) {
	at := func(cost, reached float64) reading {
		p := paced{Rate: 1500, Reached: reached, EnvoyCPU: cost, Ladder: cost / 1000}
		return reading{Open: []paced{p, {Rate: 3000, Reached: 2999}}}
	}
	const name = "leased, 100 000 cold keys, 1500 requests a second: added / ratelimit's"
	for _, c := range []struct {
		reached, ladder float64
		want            target
	}{
		{1490, 10, target{Measured: spread(0.5, 0.5, 0.5), Met: true}},
		{1200, 4, target{Measured: spread(0.5, 0.5, 0.5), Flaw: "in some round one of them did not reach that rate"}},
	} {
		r := round{"curve/none": at(40, 1500), "curve/leased": at(100, c.reached), "curve/ratelimit": at(160, 1500)}
		for _, got := range judge([]round{r}) {
			got.AtMost, c.want.AtMost = 0, 0
			if got.Name == name {
				c.want.Name = name
			}
			if got.Name == name && got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		}
		delete(r, "curve/none")
		delete(r, "curve/ratelimit")
		if got := ladderShare(r); (got > 0) != (c.reached > 1400) {
			t.Errorf("at %v of 1500 requests a second the ladder decided %v %% below saturation", c.reached, got)
		}
	}
}

// The page shows the run that lies beside it, and nothing that was written by hand.
func TestThePageShowsItsRun(t *testing.T) {
	r, err := readReport(filepath.Join(documentation, dataName))
	if err != nil {
		t.Fatal(err)
	}
	page, err := r.Page()
	if err != nil {
		t.Fatal(err)
	}
	if err := page.Check(documentation); err != nil {
		t.Error(err)
	}
	for _, name := range []string{plotName, curveName} {
		checkXML(t, name, page.Files[name])
	}
}

// checkXML complains if a drawing is not XML.
func checkXML(t *testing.T, name string, drawing []byte) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(drawing)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(name, err)
		}
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

// The cheapest slice counts, except for a slice that is cheap because the failure ladder decided.
func TestWhichSliceCounts(t *testing.T) {
	cheap, dear := reading{EnvoyCPU: 10, OtherCPU: 5}, reading{EnvoyCPU: 11, OtherCPU: 5}
	cheapByLadder, alike := reading{EnvoyCPU: 1, Ladder: 0.3}, reading{EnvoyCPU: 9, Ladder: 0.01}
	for _, c := range []struct {
		slice, other reading
		want         bool
	}{
		{cheap, dear, true}, {dear, cheap, false}, {alike, cheap, true},
		{cheapByLadder, dear, false}, {dear, cheapByLadder, true},
	} {
		if got := c.slice.counts(c.other); got != c.want {
			t.Errorf("%+v before %+v: %v", c.slice, c.other, got)
		}
	}
}

// A contestant that cannot do the common rate at ease is asked for less.
func TestPaceOfTheOpenLoop(t *testing.T) {
	r := &runner{}
	if got := r.pace(contestant{Scene: proxied}, 8000); got != 4000 {
		t.Errorf("without a common rate a contestant is asked for %v, want half of its capacity", got)
	}
	measured := round{"proxied/none": {Rate: 30_000}, "cold/none": {Rate: 30_000}, "cold/ratelimit": {Rate: 9000}}
	r.choosePace(proxied, measured)
	r.choosePace(cold, measured)
	r.choosePace(cold, round{"cold/ratelimit": {Rate: 7000}})
	for _, step := range []struct {
		scene          scene
		capacity, want float64
	}{
		{proxied, 30_000, 10_000}, {proxied, 15_000, 10_000}, {proxied, 3000, 1500}, {proxied, 12_400, 6200},
		{cold, 30_000, 4500}, {cold, 9000, 4500}, {cold, 5000, 2500},
	} {
		if got := r.pace(contestant{Scene: step.scene}, step.capacity); got != step.want {
			t.Errorf("%s: with a capacity of %v a contestant is asked for %v, want %v",
				step.scene, step.capacity, got, step.want)
		}
	}
}

// Two services behind one filter are compared at one rate, unless one cannot do it.
func TestServicesBehindOneFilterHaveOnePace(t *testing.T) {
	r := &runner{openRates: map[scene]float64{proxied: 6000}}
	for _, step := range []struct {
		part                 part
		peer, capacity, want float64
	}{
		{calls, 1900, 7000, 1900}, {calls, 1900, 30_000, 1900}, {calls, 0, 7000, 3500}, {calls, 1900, 3000, 1500},
		{weir, 1900, 30_000, 6000},
	} {
		c := contestant{Name: "it", Scene: proxied, part: step.part}
		measured := round{"proxied/it": {Rate: step.capacity}}
		if step.peer > 0 {
			measured["proxied/ratelimit"] = reading{Open: []paced{{Rate: step.peer}}}
		}
		if got := r.paceBeside(measured, c); got != step.want {
			t.Errorf("%+v: asked for %v", step, got)
		}
	}
}

// Key k of a thousand is about 1/(k+1) as frequent as the first key, which has one request in 7.49.
func TestKeysAreZipfs(t *testing.T) {
	order := busyKeys.order(busyKeys.keys)
	count := make([]int, busyKeys.keys)
	for _, k := range order {
		count[k]++
	}
	for k, want := range map[int]float64{0: 8755, 1: 4378, 9: 875.5, 99: 87.55} {
		if got := float64(count[k]); math.Abs(got-want) > 5*math.Sqrt(want) {
			t.Errorf("key %d was drawn %v times, want about %v", k, got, want)
		}
	}
	if !slices.Equal(order, busyKeys.order(busyKeys.keys)) {
		t.Error("the keys differ from run to run")
	}
	if slices.Max(zipf(1, 1, 100)) != 0 {
		t.Error("with one key, another key was drawn")
	}
}

// About a tenth of the mixed keys is refused, however fast they come: here all at once.
func TestATenthOfMixedRequestsExceedsItsLimit(t *testing.T) {
	used, refused := make([]int, mixedKeys.keys), 0
	const n = 50 * fashion
	for _, k := range mixedKeys.order(mixedKeys.keys)[:n] {
		if used[k]++; used[k] > tightLimit {
			refused++
		}
	}
	if share := float64(refused) / n; share < 0.08 || share > 0.12 {
		t.Errorf("%.3f of the requests exceed their limit, want a tenth", share)
	}
}

// No cold key reaches its limit in a minute at a rate that is more than any contestant makes.
func TestColdKeysAreWithinTheirLimit(t *testing.T) {
	used := map[int]int{}
	for _, k := range coldKeys.order(coldKeys.keys) {
		used[k]++
		if used[k] > usualLimit {
			t.Fatalf("key %d came %d times in %d requests", k, used[k], draws)
		}
	}
	if len(used) < coldKeys.keys*999/1000 {
		t.Errorf("of %d keys only %d came", coldKeys.keys, len(used))
	}
}

// A browser's request has twenty headers and a cookie of a kilobyte.
func TestHeadersOfABrowser(t *testing.T) {
	request := string(browserKeys.requests()[7])
	head, rest, complete := strings.Cut(request, "\r\n\r\n")
	lines := strings.Split(head, "\r\n")
	bare := strings.ReplaceAll(request, "\r\n", "")
	if !complete || rest != "" || len(lines) != 1+20 || strings.Contains(bare, "\n") {
		t.Fatalf("%d lines: %q", len(lines), request)
	}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ": ")
		if name == "" || value == "" || name == "cookie" && len(value) < 1024 {
			t.Errorf("a header is %q", line)
		}
	}
}

func TestSettings(t *testing.T) {
	s, err := parse([]string{"-short", "-o", "json", "-only", "x", "-scene", "cold,idle"}, io.Discard)
	if err != nil || s.plan != brief || s.Kind != "json" || s.only != "x" ||
		!slices.Equal(s.scenes, []scene{cold, idle}) {
		t.Errorf("%+v, %v", s, err)
	}
	for _, args := range [][]string{
		{"x"}, {"-o", "xml"}, {"-rounds", "0"}, {"-open", "0s"}, {"-curve", "0s"}, {"-nothing"}, {"-scene", "warm"},
	} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
	if chosen, err := s.contestants(); err == nil {
		t.Errorf("no contestant has an x, there are %v", chosen)
	}
	s.only = "leased"
	if chosen, err := s.contestants(); err != nil || len(chosen) != 4 {
		t.Errorf("%v, %v: want one of each scene and host", chosen, err)
	}
}

// What -o json prints is what -from reads.
func TestARunIsReadAsItWasWritten(t *testing.T) {
	r := &report{Facts: figures.Facts{Date: "2026-01-02"}, Plan: brief, Order: contestants()[:2], Rounds: []round{
		{"direct/none": {EnvoyCPU: 10}, "direct/empty": {EnvoyCPU: 12}},
		{"direct/none": {EnvoyCPU: 10}, "direct/empty": {EnvoyCPU: 13}},
	}}
	r.Plan.Rounds = 2
	data, err := figures.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), filepath.Base(dataName))
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-from", name}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2026-01-02", "empty Wasm filter", "2.5 (2.0 to 3.0)", "Medians of 2 rounds;"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
	out.Reset()
	err = run(t.Context(), []string{"-from", name, "-o", "json"}, &out, io.Discard)
	if err != nil || out.String() != string(data) {
		t.Errorf("%v: read and written again it is\n%s", err, out.String())
	}
	if err := os.WriteFile(name, []byte(`{"rounds": []}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readReport(name); err == nil {
		t.Error("a run without rounds is taken")
	}
}
