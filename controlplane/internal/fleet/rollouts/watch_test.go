package rollouts_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/rollouts"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/wire"
)

// history has the decisions by version.
type history struct {
	sides  map[uint64]map[string]series.Side
	behind bool
	since  time.Time
}

func (h *history) Decided(version uint64, since time.Time) (map[string]series.Side, bool) {
	h.since = since
	return h.sides[version], !h.behind
}

// sets is a rollout that several replicas watch.
type sets struct {
	state policies.State
	away  error
	rolls []policies.RollChange
}

func (s *sets) Active() (policies.Active, <-chan struct{}) {
	return policies.Active{State: s.state}, nil
}

func (s *sets) Roll(_ context.Context, c policies.RollChange) (policies.RollOutcome, error) {
	switch {
	case s.away != nil:
		return policies.RollOutcome{}, s.away
	case s.state.Rollout == nil:
		return policies.RollOutcome{}, policies.ErrNoRollout
	case c.Any || c.Expected != s.state.Revision:
		return policies.RollOutcome{}, errs.Conflict
	}
	s.rolls = append(s.rolls, c)
	s.state.Rollout, s.state.Revision = nil, s.state.Revision+1
	return policies.RollOutcome{}, nil
}

type world struct {
	history
	sets
	stopped int
	log     bytes.Buffer
	now     time.Time
}

// newWorld has a rollout of version 2 that refuses half, where the others refuse a tenth.
func newWorld(rule string) *world {
	w := &world{now: time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)}
	w.state = policies.State{Current: 1, Revision: 7, Rollout: &policies.Rollout{Version: 2, Base: 1, Nodes: 50,
		Since: w.now.Add(-time.Minute), AbortIf: rule}}
	w.sides = map[uint64]map[string]series.Side{
		1: {"api": {Decided: 1000, Refused: 100}, "calm": {Decided: 1000},
			wire.AllRequests: {Decided: 4000, Refused: 100}},
		2: {"api": {Decided: 1000, Refused: 500}, "calm": {Decided: 1000},
			wire.AllRequests: {Decided: 4000, Refused: 100}},
	}
	return w
}

// watch is a replica's.
func (w *world) watch() *rollouts.Watch {
	return &rollouts.Watch{Config: rollouts.Config{Sets: &w.sets, History: &w.history,
		Now: func() time.Time { return w.now }, Stopped: func() { w.stopped++ },
		Log: slog.New(slog.NewTextHandler(&w.log, nil))}}
}

// A policy that does worse than the rule allows takes the version back, once, by whichever replica
// is there; the audit has both figures.
func TestARuleStopsARollout(t *testing.T) {
	w := newWorld("refused > 2x")
	one, other, stale := w.watch(), w.watch(), w.state
	if !one.Look(t.Context()) {
		t.Fatal("it was not stopped")
	}
	other.Sets = believer{&w.sets, stale} // It has not heard of it yet.
	if other.Look(t.Context()) || one.Look(t.Context()) {
		t.Error("it was stopped twice")
	}
	if len(w.rolls) != 1 || w.stopped != 1 {
		t.Fatalf("%d steps, %d counted", len(w.rolls), w.stopped)
	}
	entry := w.rolls[0].Entry
	want := "refused > 2x: by policy api on its nodes 50 % (500 of 1000) were refused, on the others 10 % (100 of 1000)"
	if w.rolls[0].Nodes != 0 || entry.Action != "rollout.abort" || entry.Resource != "rollout" || entry.Reason != want {
		t.Errorf("%+v", w.rolls[0])
	}
	if !strings.Contains(w.log.String(), "50 % (500 of 1000)") {
		t.Error(w.log.String())
	}
}

// believer believes in a state that is over.
type believer struct {
	*sets
	believes policies.State
}

func (b believer) Active() (policies.Active, <-chan struct{}) {
	return policies.Active{State: b.believes}, nil
}

func TestARolloutGoesOn(t *testing.T) {
	for name, change := range map[string]func(*world){
		"without a rule":          func(w *world) { w.state.Rollout.AbortIf = "" },
		"without a rollout":       func(w *world) { w.state.Rollout = nil },
		"by a rule that is kept":  func(w *world) { w.state.Rollout.AbortIf = "refused > 6x" },
		"by another figure":       func(w *world) { w.state.Rollout.AbortIf = "errors > 1% or waits > 1x" },
		"with an unreadable rule": func(w *world) { w.state.Rollout.AbortIf = "refused > half" },
		"without traffic":         func(w *world) { w.sides = nil },
		"without others":          func(w *world) { delete(w.sides, 1) },
		"without its nodes":       func(w *world) { delete(w.sides, 2) },
		"with few requests": func(w *world) {
			w.sides[2]["api"] = series.Side{Decided: 99, Refused: 99}
			w.state.Rollout.AbortIf = "refused > 2x"
		},
		"with a policy that the others lack": func(w *world) { delete(w.sides[1], "api") },
		"while counts are missing":           func(w *world) { w.behind = true },
	} {
		w := newWorld("refused > 2x")
		change(w)
		if w.watch().Look(t.Context()) || len(w.rolls) > 0 {
			t.Errorf("%s it was stopped: %+v", name, w.rolls)
		}
	}
}

// A policy that only the new version has shows among all requests, and stops it by those.
func TestANewPolicyStopsARollout(t *testing.T) {
	w := newWorld("refused > 2x")
	delete(w.sides[1], "api")
	w.sides[2][wire.AllRequests] = series.Side{Decided: 4000, Refused: 600}
	if !w.watch().Look(t.Context()) || !strings.Contains(w.rolls[0].Entry.Reason, "of all requests on its nodes 15 %") {
		t.Errorf("%+v", w.rolls)
	}
}

// A store that does not answer is asked again.
func TestARuleIsTriedAgain(t *testing.T) {
	w := newWorld("refused > 2x")
	w.away = errors.New("no store")
	if w.watch().Look(t.Context()) || w.stopped > 0 || !strings.Contains(w.log.String(), "trying again") {
		t.Error("it was stopped without the store")
	}
	w.away = nil
	if !w.watch().Look(t.Context()) {
		t.Error("it goes on with the store")
	}
}

// A policy that decides different requests in the new version is not compared. It may refuse a
// larger share only because it leaves out requests that it never refused. A rule about its share
// alone is applied.
func TestAPolicyOfOtherRequestsIsNotCompared(t *testing.T) {
	w := newWorld("refused > 2x")
	w.sides[1] = map[string]series.Side{"api": {Decided: 10_000, Refused: 100},
		wire.AllRequests: {Decided: 10_000, Refused: 100}}
	w.sides[2] = map[string]series.Side{"api": {Decided: 1000, Refused: 100},
		wire.AllRequests: {Decided: 10_000, Refused: 100}}
	for _, c := range []struct {
		rule   string
		unlike bool
		want   rollouts.Verdict
	}{
		{"refused > 2x", false, rollouts.Broken},
		{"refused > 2x", true, rollouts.Kept},
		{"refused > 4%", true, rollouts.Broken},
	} {
		w.state.Rollout.AbortIf = c.rule
		got := rollouts.Compare(*w.state.Rollout, map[string]bool{"api": c.unlike}, &w.history, w.now)
		if got.Verdict != c.want || (got.Why() != "") != (c.want == rollouts.Broken) {
			t.Errorf("%s, unlike %v: %v %q", c.rule, c.unlike, got.Verdict, got.Why())
		}
	}
}

// A step of which the store lost the answer is counted; the reason why it cannot be made is logged
// once.
func TestAStepWithoutAnAnswerIsCounted(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   int
	}{
		"taken back": {func(w *world) { w.state.Rollout = nil }, 1},
		"followed":   {func(w *world) { w.state.Rollout.Version, w.state.Rollout.AbortIf = 3, "" }, 1},
		"promoted":   {func(w *world) { w.state.Rollout, w.state.Current = nil, 2 }, 0},
	} {
		w := newWorld("refused > 2x")
		watch := w.watch()
		w.away = errors.New("version 1 cannot be read")
		for range 3 {
			watch.Look(t.Context())
		}
		if n := strings.Count(w.log.String(), "version 1 cannot be read"); n != 1 || w.stopped != 0 {
			t.Errorf("%d counted, %d lines: %s", w.stopped, n, w.log.String())
		}
		c.change(w)
		for range 3 {
			watch.Look(t.Context())
		}
		if w.stopped != c.want {
			t.Errorf("%s: %d counted", name, w.stopped)
		}
	}
}

// At most the last five minutes count, and nothing from before the rollout.
func TestTheTimeThatIsCompared(t *testing.T) {
	w := newWorld("refused > 2x")
	for age, want := range map[time.Duration]time.Duration{time.Minute: time.Minute, time.Hour: series.Window} {
		w.state.Rollout.Since = w.now.Add(-age)
		rollouts.Compare(*w.state.Rollout, nil, &w.history, w.now)
		if got := w.now.Sub(w.since); got != want {
			t.Errorf("begun %v ago, %v count", age, got)
		}
	}
}
