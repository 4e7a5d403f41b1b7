//go:build contestants

package main

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
)

// shop is for both tests: the first that asks for it keeps this process off Envoy's processor.
var shop = sync.OnceValues(func() (*workshop, error) { return newWorkshop(context.Background(), repository) })

func openShop(t *testing.T) *workshop {
	t.Helper()
	w, err := shop()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Every contestant that needs no more than `make setup` installs does the work that it is measured
// for: measure itself fails if an answer has another status or the filter has not counted each
// request. Each is tried in the first scene that has it; in the others two show that the scene
// works. A scene may fail twice, as in a run that measures. No figure is judged: a machine that
// runs tests measures nothing. envoyproxy/ratelimit is not installed for tests; its Envoy's
// configuration is tested with all other configurations.
func TestEveryContestantDoesItsWork(t *testing.T) {
	shop := openShop(t)
	everywhere := []string{"none", "few-none", "leased"}
	r := &report{Plan: brief, Beside: shop.beside}
	ids, tried := map[string]bool{}, map[string]bool{}
	for _, c := range contestants() {
		if c.part != global && (!tried[c.Name] || slices.Contains(everywhere, c.Name)) {
			r.Order = append(r.Order, c)
			ids[c.id()], tried[c.Name] = true, true
		}
	}
	if err := r.measure(t.Context(), &runner{shop: shop, plan: brief, progress: io.Discard, retries: 2}); err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Order {
		checkFigures(t, c, r.Rounds[0][c.id()])
	}
	var want []string
	for _, p := range promises() {
		if !slices.ContainsFunc(p.needs, func(id string) bool { return !ids[id] }) {
			want = append(want, p.name)
		}
	}
	if len(r.Targets) != len(want) || len(want) < 10 {
		t.Errorf("%+v were judged, want these: %q", r.Targets, want)
	}
	for _, rows := range r.tables() {
		for _, row := range rows {
			if len(row) != len(rows[0]) {
				t.Errorf("a row has %d cells and its title %d: %v", len(row), len(rows[0]), row)
			}
		}
	}
	checkXML(t, curveName, r.plotCurve())
}

// checkFigures complains if a contestant lacks figures that its scene has, or has figures that the
// scene does not have.
func checkFigures(t *testing.T, c contestant, f reading) {
	t.Helper()
	if f.EnvoyMB <= 0 && c.Scene != curve {
		t.Errorf("%s has no memory: %+v", c.id(), f)
	}
	if hasRate := f.Rate > 0 && f.EnvoyCPU > 0 && f.LoadCPU > 0; hasRate != (stages[c.Scene].perTurn > 0) {
		t.Errorf("%s has the figures of a closed loop, or lacks them: %+v", c.id(), f)
	}
	if hasOthers := slices.Contains([]part{weir, calls, quotas}, c.part); (f.OtherMB > 0) != hasOthers &&
		c.Scene != curve {
		t.Errorf("%s has %.0f MB in other processes", c.id(), f.OtherMB)
	}
	if (f.IdleEnvoy > 0) != (c.Scene == idle) {
		t.Errorf("%s uses %v %% without requests", c.id(), f.IdleEnvoy)
	}
	if strict := c.Name == "strict" && c.Scene != curve; strict && f.Calls <= 0 {
		t.Errorf("%s made no calls", c.id())
	}
	loops := 0
	switch {
	case stages[c.Scene].opens:
		loops = 1
	case c.Scene == curve:
		loops = len(curveRates)
	}
	if len(f.Open) != loops {
		t.Errorf("%s has %d open loops, want %d", c.id(), len(f.Open), loops)
	}
	for _, p := range f.Open {
		if p.P50 <= 0 || p.P50 > p.P99 || p.P99 > p.P999 || p.Reached <= 0 || p.EnvoyCPU <= 0 {
			t.Errorf("%s has an open loop with %+v", c.id(), p)
		}
	}
}

// A filter that does not do the measured work is noticed, whichever way, also when it is tried
// again.
func TestIdleContestantsAreNoticed(t *testing.T) {
	shop := openShop(t)
	var progress bytes.Buffer
	r := &runner{shop: shop, plan: brief, progress: &progress, retries: 1}
	for want, c := range map[string]contestant{
		"every answer must be 429": {
			part: weir, Scene: direct, status: 429, proof: localProof, policies: set(open("local")),
		},
		"proof that the filter worked": {part: weir, Scene: direct, status: 200, proof: localProof, policies: set()},
		"their tokens were not in hand": {
			part: weir, Scene: direct, status: 200, proof: strictProof, policies: set(central("strict", noLimit)),
			inHand: true,
		},
	} {
		if _, err := r.round(t.Context(), 1, []contestant{c}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
	if n := strings.Count(progress.String(), "once more"); n != 3 {
		t.Errorf("%d scenes were tried again, want all three:\n%s", n, progress.String())
	}
}
