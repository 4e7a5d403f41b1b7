package policies_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
)

// The nodes of a smaller share are among the nodes of a larger share, and a share is about that
// share of many nodes.
func TestIncludes(t *testing.T) {
	for n := range 2000 {
		node, in := fmt.Sprint("envoy-", n), false
		for percent := 1; percent <= policies.Everyone; percent++ {
			now := policies.Rollout{Nodes: percent}.Includes(node)
			if in && !now {
				t.Fatalf("%s is in a share of %d %% and not in one of %d %%", node, percent-1, percent)
			}
			in = now
		}
		if !in {
			t.Fatalf("%s is not among everyone", node)
		}
	}
	for _, percent := range []int{1, 25, 50, 99} {
		count := 0
		for n := range 100_000 {
			if (policies.Rollout{Nodes: percent}).Includes(fmt.Sprint("envoy-", n)) {
				count++
			}
		}
		if share := float64(count) / 1000; share < float64(percent)-1 || share > float64(percent)+1 {
			t.Errorf("%d %% of the nodes are %.1f %%", percent, share)
		}
	}
}

func rollOut(t *testing.T, s *policies.Service, expected uint64, percent int, doc []byte) policies.Outcome {
	t.Helper()
	out, err := s.Put(t.Context(),
		policies.Change{Expected: expected, Document: doc, Format: policydoc.YAML, Nodes: percent,
			Entry: audit.Entry{By: "me"}})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// inForce describes the belief of a replica: the current version, and the draft with its share.
func inForce(s *policies.Service) string {
	active, _ := s.Active()
	text := fmt.Sprint(active.Current.Version.Number)
	if active.Draft != nil {
		text += fmt.Sprintf(" and %d for %d %%", active.Draft.Version.Number, active.State.Rollout.Nodes)
	}
	return text
}

func TestRolloutOverReplicas(t *testing.T) {
	m := newMemory()
	s, other := newService(m), newService(m)
	put(t, s, 0, document(10))
	refresh := func(want string) {
		t.Helper()
		_, changed := other.Current()
		before := inForce(s)
		if _, err := other.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := inForce(other); got != want || before != want {
			t.Errorf("in force are %s here and %s there, want %s", before, got, want)
		}
		select {
		case <-changed:
		default:
			t.Errorf("no listener was called with %s", want)
		}
	}
	refresh("1")
	if out := rollOut(t, s, 1, 25, document(20)); out.Version != 2 || out.Rollout == nil {
		t.Errorf("%+v", out)
	}
	refresh("1 and 2 for 25 %")
	if _, err := other.Put(t.Context(),
		policies.Change{Any: true, Document: document(30)}); !errors.Is(err, errs.RolloutUnderWay) ||
		!strings.HasPrefix(err.Error(), "version 2 is being rolled out to 25 %") {
		t.Errorf("another change meanwhile: %v", err)
	}
	if _, err := s.Roll(t.Context(), policies.RollChange{Expected: 9, Nodes: 50}); !errors.Is(err, errs.Conflict) {
		t.Errorf("of another revision: %v", err)
	}
	if _, err := s.Roll(t.Context(), policies.RollChange{Expected: 1, Nodes: 50}); err != nil {
		t.Fatal(err)
	}
	refresh("1 and 2 for 50 %")
	if out, err := s.Roll(t.Context(), policies.RollChange{Any: true, Nodes: 0, DryRun: true}); err != nil ||
		out.Ended != policies.RolloutTakenBack {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := s.Roll(t.Context(), policies.RollChange{Any: true, Nodes: policies.Everyone}); err != nil {
		t.Fatal(err)
	}
	refresh("2")
	rollOut(t, s, 2, 1, document(30))
	refresh("2 and 3 for 1 %")
	if _, err := s.Roll(t.Context(), policies.RollChange{Any: true}); err != nil {
		t.Fatal(err)
	}
	refresh("2")
	if out := put(t, s, 2, document(40)); out.Version != 4 {
		t.Errorf("the next version is %d", out.Version)
	}
}

// A store that comes back empty, or with an older dump, gets both versions in force back, and the
// share with them.
func TestLostRolloutIsRestored(t *testing.T) {
	m := newMemory()
	s := newService(m)
	put(t, s, 0, document(10))
	rollOut(t, s, 1, 25, document(20))
	was := m.state()
	for _, lose := range []func(){
		func() { m.current, m.revision, m.rollout, m.versions = 0, 0, nil, map[uint64]policies.Version{} },
		func() { m.revision, m.rollout = 0, nil; delete(m.versions, 2) },
	} {
		m.set(lose)
		if _, err := s.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := m.state()
		if got.Current != was.Current || got.Revision != was.Revision || got.Rollout == nil ||
			*got.Rollout != *was.Rollout || len(m.versions) != 2 {
			t.Errorf("restored is %+v, was %+v", got, was)
		}
	}
}

func TestApart(t *testing.T) {
	before := load(t, `policies:
  - {name: same, partition: [client_ip], limit: {quota: 1, window: 1m}}
  - {name: limit, partition: [client_ip], limit: {quota: 1, window: 1m}}
  - {name: partition, partition: [client_ip], limit: {quota: 1, window: 1m}}
  - {name: windows, partition: [], limit: {quota: 1, window: 1m}}
  - {name: away, partition: [], limit: {quota: 1, window: 1m}}
  - {name: longer, partition: [], limit: {quota: 1, window: 1m}, algorithm: sliding_log}
  - {name: gone, partition: [], limit: {quota: 1, window: 1m}}`)
	after := `policies:
  - {name: same, partition: [client_ip], limit: {quota: 1, window: 1m}}
  - {name: limit, partition: [client_ip], limit: {quota: 2, window: 1h}, mode: strict}
  - {name: partition, partition: [client_ip, method], limit: {quota: 1, window: 1m}}
  - {name: windows, partition: [], limit: {quota: 1, window: 1m}, algorithm: sliding_window}
  - {name: away, partition: [], limit: {quota: 1, window: 1m}, mode: local}
  - {name: longer, partition: [], limit: {quota: 1, window: 1h}, algorithm: sliding_log}
  - {name: new, partition: [], limit: {quota: 1, window: 1m}}`
	if got := strings.Join(policies.Apart(before, load(t, after)), " "); got != "partition windows away longer" {
		t.Errorf("apart are %s", got)
	}
	identity := "identity: {client_ip: {ipv6_prefix: 56}}\n"
	if got := strings.Join(policies.Apart(before, load(t, identity+after)),
		" "); got != "same limit partition windows away longer" {
		t.Errorf("with another identity apart are %s", got)
	}
}
