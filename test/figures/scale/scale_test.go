package main

import (
	"bufio"
	"context"
	"io"
	"math"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/figures"
)

// Each step of a run works: a step fails by itself if the control plane has not granted the tokens
// of its answers. No figure is judged: a machine that runs tests measures nothing.
func TestEveryStepDoesItsWork(t *testing.T) {
	l := &lab{root: repository, plan: brief, progress: io.Discard}
	r := &report{}
	for _, step := range []func(context.Context, *report) error{
		l.pushes, l.polls, l.calls, l.crowds, l.fleets, l.ratio, l.keys,
	} {
		if err := step(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.Pushes) != len(brief.Push) || r.Polls.Nodes != brief.Polls || len(r.Calls) != brief.Rounds ||
		len(r.Crowds) != brief.Rounds || len(r.Ratio) != 2*brief.Rounds || len(r.Keys) != len(brief.Keys) {
		t.Errorf("steps are missing: %+v", r)
	}
	for _, p := range r.Calls[0] {
		if p.Calls <= 0 || p.Granted <= 0 || p.PlaneCPU <= 0 {
			t.Errorf("%+v has no figures", p)
		}
	}
	if len(r.Crowds[0]) != len(brief.Crowds) || len(r.crowdTable()) != 1+len(brief.Crowds) {
		t.Errorf("crowds are missing: %+v", r.Crowds)
	}
	for _, c := range r.Crowds[0] {
		if c.Calls <= 0 || c.PlaneCPU <= 0 || c.RedisCPU <= 0 {
			t.Errorf("%+v has no figures", c)
		}
	}
	for _, f := range r.Fleets {
		if f.Decided < f.Requests/2 || f.Calls <= 0 || f.Items < f.Calls {
			t.Errorf("%+v", f)
		}
	}
	for _, k := range r.Keys {
		// A call that a busy machine does not answer in time may have stored its keys, or not.
		answered := float64(k.Keys) * (1 - k.Failed/k.Calls)
		if float64(k.Kept) < answered-1 {
			t.Errorf("of %d keys, %.0f of them answered, Redis keeps %d", k.Keys, answered, k.Kept)
		}
	}
	for _, one := range r.Ratio {
		if one.Plane <= 0 || one.Bare <= 0 {
			t.Errorf("%+v", one)
		}
	}
}

// A drive whose buckets are refused is an error: it would measure something cheaper.
func TestRefusedBucketsAreNoticed(t *testing.T) {
	w := testWorld(t, 1)
	version, err := w.apply(t.Context(), strings.Replace(lasting, "1000000", "5", 1))
	if err != nil {
		t.Fatal(err)
	}
	d := drive{Nodes: 1, Keys: 1, Items: 1}
	_, err = d.closed(t.Context(), w, d.load(w, version), 200*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "were granted") {
		t.Errorf("want an error about grants, got %v", err)
	}
}

// A goal is judged by the median over the rounds, of the crowd that it is about.
func TestGoalsOfCrowds(t *testing.T) {
	one := func(redis, plane float64) []crowd {
		return []crowd{
			{point: point{PlaneCPU: 999}, Due: 1000}, {point: point{PlaneCPU: plane}, Due: goalRate},
			{point: point{drive: drive{Nodes: 1000}, RedisCPU: redis}},
		}
	}
	r := &report{Crowds: [][]crowd{one(20, 50), one(25, 61), one(50, 70)}}
	want := figures.Table{
		{"measure", "goal", "measured (min to max)", "verdict"},
		{
			"one-bucket calls a second on one Redis processor, 1000 nodes", "at least 30000",
			"40000 (20000 to 50000)", "met",
		},
		{"control plane, one-bucket calls at 5000 a second: µs a call", "at most 60", "61 (50 to 70)", "not met"},
	}
	if got := r.goalTable(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	r.Crowds[1][2].Halved = 1
	if got := r.goalTable()[1][3]; !strings.HasPrefix(got, "not met: in some round the full load failed") {
		t.Errorf("a crowd of half the nodes is judged as %q", got)
	}
}

// The report has a sentence about the work of other programs while the crowds were measured.
func TestCircumstancesOfCrowds(t *testing.T) {
	r := &report{Crowds: [][]crowd{{{point: point{Foreign: 0.5}}}, {{point: point{Foreign: 1.5}}}}}
	if got := r.circumstances(); !strings.Contains(got, "kept 1.00 processors busy meanwhile (1.50 at most)") {
		t.Error(got)
	}
}

func TestTheModelFindsTheLine(t *testing.T) {
	l := fitLine([]float64{1, 1, 16, 64}, []float64{107, 107, 212, 548})
	if math.Abs(l.Call-100) > 1e-6 || math.Abs(l.Bucket-7) > 1e-6 {
		t.Errorf("%+v, want 100 and 7", l)
	}
	if end := (model{redis: line{100, 7}}).ends(64); math.Abs(end-0.7e6/548*64) > 1e-6 {
		t.Errorf("one Redis ends at %f buckets a second", end)
	}
}

func TestCommandsAreReadOffTheWire(t *testing.T) {
	in := bufio.NewReader(strings.NewReader("*3\r\n$7\r\nevalsha\r\n$2\r\n\r\n\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n"))
	for _, want := range [][]string{{"evalsha", "\r\n", ""}, {"PING"}} {
		got, err := readCommand(in)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%q, %v", got, err)
		}
		for i, part := range got {
			if string(part.([]byte)) != want[i] {
				t.Errorf("%q, want %q", part, want[i])
			}
		}
	}
	if _, err := readCommand(bufio.NewReader(strings.NewReader("+OK\r\n"))); err == nil {
		t.Error("an answer was taken for a command")
	}
}

// The page shows the run that lies beside it, and nothing that was written by hand.
func TestThePageShowsItsRun(t *testing.T) {
	const documentation = repository + "/docs"
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
}

func TestSettings(t *testing.T) {
	s, err := parse([]string{"-long", "-o", "json", "-docs", "d"}, io.Discard)
	if err != nil || s.Kind != "json" || s.Docs != "d" || len(s.plan.Keys) != len(usual.Keys)+1 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, bad := range [][]string{{"-o", "xml"}, {"more"}, {"-unknown"}} {
		if _, err := parse(bad, io.Discard); err == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
}
