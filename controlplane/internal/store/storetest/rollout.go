package storetest

import (
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
)

// begin returns the step that rolls a version out to a quarter of the nodes.
func begin(from policies.State, number uint64) policies.Step {
	to := from
	to.Revision++
	to.DraftDigest = version(number).Digest
	to.Rollout = &policies.Rollout{Version: number, Base: from.Current, Nodes: 25, By: "ed",
		Since: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)}
	v := version(number)
	v.Rollout = policies.RolloutUnderWay
	return policies.Step{From: from, To: to, Versions: []policies.Version{v},
		Entry: audit.Entry{Action: "policyset.put"}}
}

// end returns the step that ends a rollout.
func end(from policies.State, how string) policies.Step {
	to := from
	to.Revision++
	to.Rollout, to.DraftDigest = nil, ""
	v := version(from.Rollout.Version)
	v.Rollout, v.Document = how, nil
	if how == policies.RolloutPromoted {
		to.Current = v.Number
	}
	return policies.Step{From: from, To: to, Versions: []policies.Version{v}, Entry: audit.Entry{Action: "rollout.put"}}
}

func (s *Instance) state(t *testing.T) policies.State {
	t.Helper()
	return must[policies.State](t)(s.State(testContext(t)))
}

func testRollout(t *testing.T, s *Instance) {
	ctx, state := testContext(t), func() policies.State { t.Helper(); return s.state(t) }
	must1(t, s.Append(ctx, 0, version(1), audit.Entry{}))
	first := begin(state(), 2)
	must1(t, s.Roll(ctx, first))
	want := first.To
	want.Newest = 2
	for range 2 {
		if got := state(); !reflect.DeepEqual(got, want) {
			t.Fatalf("under way is %+v %+v, want %+v %+v", got, got.Rollout, want, want.Rollout)
		}
		s.Restart(t)
	}
	if v := must[policies.Version](t)(s.Load(ctx, 2)); v.Rollout != policies.RolloutUnderWay ||
		string(v.Document) != string(version(2).Document) {
		t.Errorf("the draft is %+v", v)
	}
	// A step from another state changes nothing.
	older := want
	older.Revision--
	for _, step := range []policies.Step{first, begin(older, 3), end(older, policies.RolloutPromoted), begin(want, 2)} {
		if err := s.Roll(ctx, step); !errors.Is(err, errs.Conflict) {
			t.Errorf("a step from %+v: %v", step.From, err)
		}
	}
	if err := s.Append(ctx, 1, version(3), audit.Entry{}); !errors.Is(err, errs.Conflict) {
		t.Errorf("a version for all while one is rolled out: %v", err)
	}
	if got := state(); !reflect.DeepEqual(got, want) {
		t.Errorf("after the refused steps: %+v", got)
	}
	grown := policies.Step{From: want, To: want, Entry: audit.Entry{Action: "rollout.put"}}
	grown.To.Revision++
	half := *want.Rollout
	half.Nodes = 50
	grown.To.Rollout = &half
	must1(t, s.Roll(ctx, grown))
	if got := state(); got.Rollout == nil || got.Rollout.Nodes != 50 || got.Revision != 2 {
		t.Fatalf("grown it is %+v", got)
	}

	s.endsRollouts(t)
}

// endsRollouts continues from version 2, which is rolled out over version 1, at revision 2.
func (s *Instance) endsRollouts(t *testing.T) {
	t.Helper()
	ctx, state := testContext(t), func() policies.State { t.Helper(); return s.state(t) }
	must1(t, s.Roll(ctx, end(state(), policies.RolloutTakenBack)))
	if got := state(); got.Rollout != nil || got.Current != 1 || got.Newest != 2 || got.Revision != 3 {
		t.Errorf("taken back it is %+v", got)
	}
	if v := must[policies.Version](t)(s.Load(ctx, 2)); v.Rollout != policies.RolloutTakenBack ||
		string(v.Document) != string(version(2).Document) {
		t.Errorf("the version that was taken back is %+v", v)
	}
	if err := s.Append(ctx, 1, version(2), audit.Entry{}); !errors.Is(err, errs.Conflict) {
		t.Errorf("a number that was given: %v", err)
	}
	must1(t, s.Roll(ctx, begin(state(), 3)))
	must1(t, s.Roll(ctx, end(state(), policies.RolloutPromoted)))
	if got := state(); got.Rollout != nil || got.Current != 3 || got.Newest != 3 {
		t.Errorf("promoted it is %+v", got)
	}
	must1(t, s.Append(ctx, 3, version(4), audit.Entry{}))
	if all := must[[]audit.Entry](t)(s.Audit(ctx, "", 20)); len(all) != 7 {
		t.Errorf("%d entries are kept of 7 changes", len(all))
	}
}

// The version in force stays, however many drafts are taken back.
func testRolloutKeepsWhatIsInForce(t *testing.T, s *Instance) {
	ctx := testContext(t)
	must1(t, s.Append(ctx, 0, version(1), audit.Entry{}))
	for n := uint64(2); n <= policies.Kept+10; n++ {
		must1(t, s.Roll(ctx, begin(s.state(t), n)))
		must1(t, s.Roll(ctx, end(s.state(t), policies.RolloutTakenBack)))
	}
	must[policies.Version](t)(s.Load(ctx, 1))
	if _, err := s.Load(ctx, 3); !errors.Is(err, policies.ErrNotFound) {
		t.Errorf("an old draft: %v", err)
	}
}

// A store that came back empty gets both versions in force again.
func testRolloutIsRestored(t *testing.T, s *Instance) {
	ctx := testContext(t)
	held := begin(policies.State{Current: 7, Digest: version(7).Digest, Newest: 8, Revision: 4}, 9)
	step := policies.Step{To: held.To, Versions: []policies.Version{version(7), held.Versions[0]}}
	must1(t, s.Roll(ctx, step))
	got, want := s.state(t), held.To
	want.Newest = 9
	if !reflect.DeepEqual(got, want) {
		t.Errorf("restored is %+v, want %+v", got, want)
	}
	must[policies.Version](t)(s.Load(ctx, 7))
	must[policies.Version](t)(s.Load(ctx, 9))
}

func testRolloutRace(t *testing.T, s *Instance) {
	ctx := testContext(t)
	must1(t, s.Append(ctx, 0, version(1), audit.Entry{}))
	for round := range uint64(10) {
		from := s.state(t)
		var won atomic.Int64
		var wait sync.WaitGroup
		for i := range 12 {
			wait.Go(func() {
				var err error
				if i%3 == 0 {
					err = s.Append(ctx, from.Current, version(from.Newest+1), audit.Entry{})
				} else {
					err = s.Roll(ctx, begin(from, from.Newest+1))
				}
				if err == nil {
					won.Add(1)
				} else if !errors.Is(err, errs.Conflict) {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d of 12 writers won", round, won.Load())
		}
		if now := s.state(t); now.Rollout != nil {
			must1(t, s.Roll(ctx, end(now, policies.RolloutTakenBack)))
		}
	}
}
