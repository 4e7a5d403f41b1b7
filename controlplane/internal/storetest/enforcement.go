package storetest

import (
	"errors"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/errs"
)

func testEnforcement(t *testing.T, s *Instance) {
	ctx := testContext(t)
	read := func(want enforcement.Document) {
		t.Helper()
		got := must[enforcement.Document](t)(s.Enforcement(ctx))
		if revision := must[uint64](t)(s.EnforcementRevision(ctx)); !reflect.DeepEqual(got, want) ||
			revision != want.Revision {
			t.Errorf("read %+v at revision %d, want %+v", got, revision, want)
		}
	}
	read(enforcement.Document{})
	until := time.Date(2041, 1, 1, 0, 0, 0, 0, time.UTC)
	stamp := enforcement.Stamp{ID: "one", Revision: 7, Time: time.Date(2040, 1, 2, 3, 4, 5, 678e6, time.UTC),
		By: "ädmin"}
	first := enforcement.Document{
		Revision: 1 << 41,
		Orders: enforcement.Orders{Stamp: stamp, List: []enforcement.Order{
			{State: enforcement.Off, Percent: 25, Policy: "api", Tier: "free", Reason: "too \"many\" refusals",
				Expires: &until, Since: stamp.Time, By: "me"},
			{State: enforcement.Shadow, Percent: 100, Reason: "looking", Since: stamp.Time, By: "me"},
		}},
		Bans: enforcement.Bans{Stamp: stamp, List: []enforcement.Ban{
			{Policy: "api", Key: "ff00000000000000000000000000000a", Reason: "abuse", Since: stamp.Time, By: "me"},
		}},
	}
	for _, expected := range []uint64{1, first.Revision} {
		if err := s.WriteEnforcement(ctx,
			enforcement.Write{Expected: expected, Document: first}); !errors.Is(err, errs.Conflict) {
			t.Errorf("written in the place of revision %d, which is not there: %v", expected, err)
		}
	}
	read(enforcement.Document{})
	must1(t, s.WriteEnforcement(ctx,
		enforcement.Write{Document: first, Entries: []audit.Entry{{Action: "one"}, {Action: "two"}}}))
	s.Restart(t)
	read(first)
	lifted := enforcement.Document{Revision: first.Revision + 1, Bans: first.Bans}
	if err := s.WriteEnforcement(ctx,
		enforcement.Write{Document: lifted, Entries: []audit.Entry{{Action: "none"}}}); !errors.Is(err, errs.Conflict) {
		t.Errorf("written over what was there: %v", err)
	}
	must1(t, s.WriteEnforcement(ctx,
		enforcement.Write{Expected: first.Revision, Document: lifted, Entries: []audit.Entry{{Action: "three"}}}))
	read(lifted)
	var kept []string
	for _, e := range must[[]audit.Entry](t)(s.Audit(ctx, "", 10)) {
		kept = append(kept, e.Action)
	}
	if !slices.Equal(kept, []string{"three", "two", "one"}) {
		t.Errorf("the audit has %v", kept)
	}
}

func testEnforcementRace(t *testing.T, s *Instance) {
	ctx := testContext(t)
	var won atomic.Int64
	var wait sync.WaitGroup
	for i := range uint64(16) {
		wait.Go(func() {
			switch err := s.WriteEnforcement(ctx, enforcement.Write{Document: enforcement.Document{Revision: 1 + i}}); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, errs.Conflict):
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of 16 writers won", won.Load())
	}
}
