package storetest

import (
	"bytes"
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/keyhash"
)

func version(number uint64) policies.Version {
	return policies.Version{
		Number: number, Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), Author: "admin", Digest: "ab12",
		Summary: "1 added",
		Format:  policydoc.YAML, Document: []byte("version: weir/v1 # äöü\x00 as written\r\n"),
		Roots: policies.Roots{"a": {0, 1_000_000}, "b": {31_622_400_000_000}},
		Gone: policies.Gone{"c": {{Root: 0, Window: 60_000_000, Until: time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC)},
			{Root: 5, Window: 1_000_000, Candidate: true, Until: time.Date(2026, 1, 4, 0, 0, 0, 0, time.UTC)}}},
	}
}

func testVersions(t *testing.T, s *Instance) {
	ctx := testContext(t)
	if n := must[policies.State](t)(s.State(ctx)).Current; n != 0 {
		t.Fatalf("an empty store is at version %d", n)
	}
	if _, err := s.Load(ctx, 1); !errors.Is(err, policies.ErrNotFound) {
		t.Errorf("a version of an empty store: %v", err)
	}
	if list := must[[]policies.Version](t)(s.List(ctx, 0, 10)); len(list) != 0 {
		t.Errorf("an empty store lists %v", list)
	}
	for n := uint64(1); n <= 5; n++ {
		if err := s.Append(ctx, n-1, version(n), audit.Entry{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, wrong := range []struct{ expected, number uint64 }{{4, 6}, {6, 7}, {0, 1}, {5, 5}, {5, 4}} {
		if err := s.Append(ctx, wrong.expected, version(wrong.number), audit.Entry{}); !errors.Is(err, errs.Conflict) {
			t.Errorf("append %d expecting %d at version 5: %v", wrong.number, wrong.expected, err)
		}
	}
	if got := must[policies.Version](t)(s.Load(ctx, 3)); !reflect.DeepEqual(got, version(3)) {
		t.Errorf("loaded %+v, want %+v", got, version(3))
	}
	// A replica restores the lost changes of a store, so the number may skip some revisions.
	if err := s.Append(ctx, 5, version(9), audit.Entry{}); err != nil {
		t.Fatal(err)
	}
	if n := must[policies.State](t)(s.State(ctx)).Current; n != 9 {
		t.Errorf("current is %d, want 9", n)
	}
	for _, c := range []struct {
		before uint64
		limit  int
		want   []uint64
	}{{0, 10, []uint64{9, 5, 4, 3, 2, 1}}, {0, 2, []uint64{9, 5}}, {5, 2, []uint64{4, 3}}, {7, 1, []uint64{5}},
		{99, 1, []uint64{9}}, {1, 5, nil}} {
		var got []uint64
		for _, v := range must[[]policies.Version](t)(s.List(ctx, c.before, c.limit)) {
			if v.Document != nil {
				t.Error("a list holds documents")
			}
			got = append(got, v.Number)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("list before %d, at most %d: %v, want %v", c.before, c.limit, got, c.want)
		}
	}
	s.Restart(t)
	if got := must[policies.Version](t)(s.Load(ctx, 9)); !bytes.Equal(got.Document, version(9).Document) {
		t.Errorf("after a restart the document is %q", got.Document)
	}
}

func testVersionsKept(t *testing.T, s *Instance) {
	ctx := testContext(t)
	const last = policies.Kept + 3
	for n := uint64(1); n <= last; n++ {
		if err := s.Append(ctx, n-1, version(n), audit.Entry{}); err != nil {
			t.Fatal(err)
		}
	}
	if list := must[[]policies.Version](t)(s.List(ctx, 0, 2*policies.Kept)); len(list) != policies.Kept {
		t.Errorf("%d versions are kept, want %d", len(list), policies.Kept)
	}
	if _, err := s.Load(ctx, 3); !errors.Is(err, policies.ErrNotFound) {
		t.Errorf("an old version: %v", err)
	}
	must[policies.Version](t)(s.Load(ctx, 4))
}

func testVersionRace(t *testing.T, s *Instance) {
	ctx := testContext(t)
	for round := range uint64(10) {
		var won atomic.Int64
		var wait sync.WaitGroup
		for range 16 {
			wait.Go(func() {
				switch err := s.Append(ctx, round, version(round+1), audit.Entry{}); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, errs.Conflict):
					t.Error(err)
				}
			})
		}
		wait.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d of 16 writers won", won.Load())
		}
	}
}

func testSecret(t *testing.T, s *Instance) {
	ctx := testContext(t)
	first := must[[16]byte](t)(s.Secret(ctx, [16]byte{1, 0, 255, 10, 13}))
	if first != (keyhash.Key{1, 0, 255, 10, 13}) {
		t.Errorf("the first candidate did not become the secret: %x", first)
	}
	for range 2 {
		if got := must[[16]byte](t)(s.Secret(ctx, [16]byte{2})); got != first {
			t.Errorf("the secret changed to %x", got)
		}
		s.Restart(t)
	}
}

func testNodes(t *testing.T, s *Instance) {
	ctx := testContext(t)
	count := func(want int64, listed int, when string) {
		t.Helper()
		if got := must[int64](t)(s.CountNodes(ctx, nodes.Counted)); got != want {
			t.Errorf("%s: %d nodes count, want %d", when, got, want)
		}
		if got := must[[]nodes.Node](t)(s.Nodes(ctx)); len(got) != listed {
			t.Errorf("%s: %d nodes are listed, want %d", when, len(got), listed)
		}
	}
	touch := func(n nodes.Node) {
		t.Helper()
		if err := s.Touch(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	count(0, 0, "at first")
	a := nodes.Node{ID: "a", Boot: "1", Applied: 7, Refused: 8, Reason: "why ünd <so>", Filter: "v1", Zone: "z"}
	touch(a)
	touch(nodes.Node{ID: "a", Boot: "2"})
	touch(nodes.Node{ID: "0", Boot: "1"})
	count(3, 3, "after three polls")
	list := must[[]nodes.Node](t)(s.Nodes(ctx))
	if list[0].ID != "0" || list[2].Boot != "2" {
		t.Errorf("the list is not in order: %v", list)
	}
	if list[1].Seen.IsZero() {
		t.Error("a node was never seen")
	}
	list[1].Seen = time.Time{}
	if !reflect.DeepEqual(list[1], a) {
		t.Errorf("listed %+v, want %+v", list[1], a)
	}
	said := nodes.Reported{State: "share", Steps: map[string]string{"p": "share"}, MoreSteps: 1}
	if known := must[bool](t)(s.Report(ctx, a.Key(), said)); !known {
		t.Error("a node that has polled is not known")
	}
	if known := must[bool](t)(s.Report(ctx, "a\x00other boot", said)); known {
		t.Error("a process that has not polled is known")
	}
	s.Age(t, nodes.Counted+time.Second)
	touch(a) // The touch contains no state, so the state stays.
	list = must[[]nodes.Node](t)(s.Nodes(ctx))
	if !reflect.DeepEqual(list[1].Reported, said) || list[2].State != "" {
		t.Errorf("after a report of the second: %+v", list)
	}
	count(1, 3, "a minute later")
	s.Age(t, nodes.Forgotten-nodes.Counted)
	count(0, 1, "ten minutes later")
	touch(nodes.Node{ID: "b", Boot: "1"})
	count(1, 2, "after another poll")
	s.Restart(t)
	if s.KeepsNodes {
		count(1, 2, "after a restart")
	}
}
