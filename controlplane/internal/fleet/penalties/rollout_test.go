package penalties_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/wire"
)

const rolledOut = `
version: weir/v1
policies:
  - {name: api, partition: [client_ip], limit: {quota: QUOTA, window: 1h},
     penalty: {after: {refusals: 5, within: 1m}, for: 1h}}
  - {name: same, partition: [client_ip], limit: {quota: 40, window: 1h},
     penalty: {after: {refusals: 5, within: 1m}, for: 1h}}
`

// trial is two replicas while version 2 is rolled out, with a node of each version.
type trial struct {
	*plane
	sets     [2]*policies.Service
	replicas [2]*penalties.Service
	// old is a node of version 1, new one of version 2.
	old, new node
}

func newTrial(t *testing.T) *trial {
	w := &trial{plane: newPlane(t), old: node{version: 1}, new: node{version: 2}}
	now := func() time.Time { return w.now }
	for i := range w.sets {
		w.sets[i] = policies.New(policies.Config{Store: w.store, Now: now})
		w.replicas[i] = penalties.New(penalties.Config{
			Store: current{w.plane}, Sets: w.sets[i], Now: now, Meter: &w.meter, Log: slog.New(slog.DiscardHandler),
		})
	}
	w.put(40, 0)
	return w
}

func (w *trial) put(quota, nodes int) {
	w.Helper()
	document := strings.Replace(rolledOut, "QUOTA", fmt.Sprint(quota), 1)
	_, err := w.sets[0].Put(w.Context(), policies.Change{
		Any: true, Document: []byte(document), Format: policydoc.YAML, Nodes: nodes, Entry: audit.Entry{By: "me"},
	})
	if err != nil {
		w.Fatal(err)
	}
	w.follow()
}

func (w *trial) roll(nodes int) {
	w.Helper()
	if _, err := w.sets[0].Roll(w.Context(), policies.RollChange{Any: true, Nodes: nodes}); err != nil {
		w.Fatal(err)
	}
	w.follow()
}

// follow has both replicas read the store as often as a change takes, and the nodes poll them.
func (w *trial) follow() {
	w.Helper()
	for range 2 {
		for i := range w.replicas {
			if _, err := w.sets[i].Refresh(w.Context()); err != nil {
				w.Fatal(err)
			}
			w.refresh(w.replicas[i])
		}
	}
	w.old.follow(w.replicas[0])
	w.new.follow(w.replicas[1])
}

// offends has a node report that a policy's caller is under a penalty for some minutes.
func (w *trial) offends(n *node, policy string, caller, minutes int) {
	w.Helper()
	o := w.offence(2*caller, n.revision)
	o.Policy, o.Version = []byte(policy), n.version
	o.Until = w.now.UnixMilli() + int64(minutes)*60_000
	o.Forgotten = o.Until + 3_600_000
	m := wire.Offences{Node: []byte("e"), Items: []wire.Offence{o}}
	if err := w.replicas[0].Report(w.Context(), &m); err != nil {
		w.Fatal(err)
	}
	w.follow()
}

// must checks for how many minutes each node refuses a caller.
func (w *trial) must(when string, caller, old, new int) {
	w.Helper()
	for name, c := range map[string]struct {
		*node
		want int
	}{"the old version's": {&w.old, old}, "the new version's": {&w.new, new}} {
		left := max(0, c.known[key(2*caller)].Until-w.now.UnixMilli())
		if got := int(left / 60_000); got != c.want {
			w.Errorf("%s: %s node refuses caller %d for %d minutes, want %d", when, name, caller, got, c.want)
		}
	}
}

// A penalty that nodes of a rolled out version begin holds at these nodes alone, until all nodes
// have the version or it is taken back. An earlier penalty, a penalty that the other nodes begin,
// and a penalty of a policy that the version leaves unchanged hold at all nodes.
func TestPenaltiesOfARollout(t *testing.T) {
	const before, draft, both, others, unchanged = 1, 2, 3, 4, 5
	for _, promoted := range []bool{true, false} {
		w := newTrial(t)
		w.offends(&w.old, "api", before, 50)
		w.offends(&w.old, "api", both, 10)
		w.put(4, 50)
		w.offends(&w.new, "api", draft, 20)
		w.offends(&w.new, "api", both, 30)
		w.offends(&w.old, "api", others, 40)
		w.offends(&w.new, "same", unchanged, 15)
		w.must("during", before, 50, 50)
		w.must("during", draft, 0, 20)
		w.must("during", both, 10, 30)
		w.must("during", others, 40, 40)
		w.must("during", unchanged, 15, 15)
		fresh := node{version: 2}
		fresh.follow(w.replicas[0])
		if n := fresh.inForce(w.now); n != 5 {
			t.Errorf("a node that starts with the version obeys %d penalties, want 5", n)
		}
		list, _ := w.replicas[0].List(penalties.Query{Keys: []keyhash.Key{key(2 * draft)}}, 9)
		if len(list) != 1 || list[0].Version != 2 || list[0].Caller() != key(2*draft) {
			t.Errorf("listed %+v", list)
		}

		late := node{version: 2}
		late.follow(w.replicas[0])
		w.roll(map[bool]int{true: policies.Everyone}[promoted])
		w.old.version = map[bool]uint64{true: 2, false: 1}[promoted]
		w.new.version = w.old.version
		w.must("after", before, 50, 50)
		w.must("after", others, 40, 40)
		w.must("after", unchanged, 15, 15)
		if promoted {
			w.must("promoted", draft, 20, 20)
			w.must("promoted", both, 30, 30)
			w.put(5, 0)
			w.old.version, w.new.version = 3, 3
			w.must("after a further version", draft, 20, 20)
		} else {
			w.must("taken back", draft, 0, 0)
			w.must("taken back", both, 10, 10)
			w.offends(&late, "api", 9, 20)
			w.must("reported after the end", 9, 0, 0)
			late.known[key(2*9)] = penalty.Record{Level: 1, Until: w.now.UnixMilli() + 20*60_000}
			late.follow(w.replicas[0])
			if late.known[key(2*9)].Level != 0 {
				t.Error("the node keeps a penalty that it reported after the end")
			}
		}
		fresh = node{version: w.new.version}
		fresh.follow(w.replicas[0])
		if n := fresh.inForce(w.now); n != w.old.inForce(w.now) || n != w.new.inForce(w.now) {
			t.Errorf("a node that starts obeys %d penalties, others %d and %d", n, w.old.inForce(w.now),
				w.new.inForce(w.now))
		}
	}
}

// A pardon reaches the penalties of a caller at the nodes of both versions, and none comes back
// with the end of the rollout.
func TestAPardonDuringARollout(t *testing.T) {
	w := newTrial(t)
	w.offends(&w.old, "api", 1, 10)
	w.put(4, 50)
	w.offends(&w.new, "api", 1, 30)
	n, err := w.replicas[1].Pardon(t.Context(), penalties.Query{Keys: []keyhash.Key{key(2)}}, audit.Entry{Action: "a"})
	if n != 2 || err != nil {
		t.Errorf("%d pardoned (%v)", n, err)
	}
	w.follow()
	w.must("pardoned", 1, 0, 0)
	w.roll(policies.Everyone)
	w.must("promoted", 1, 0, 0)
}

// A pardon right after a promotion ends the penalty that has just begun at all nodes.
func TestAPardonAfterAPromotion(t *testing.T) {
	w := newTrial(t)
	w.put(4, 50)
	w.offends(&w.new, "api", 2, 20)
	if _, err := w.sets[0].Roll(t.Context(), policies.RollChange{Any: true, Nodes: policies.Everyone}); err != nil {
		t.Fatal(err)
	}
	w.old.version = 2
	n, err := w.replicas[0].Pardon(t.Context(), penalties.Query{Keys: []keyhash.Key{key(4)}}, audit.Entry{Action: "a"})
	if err != nil || n != 1 {
		t.Errorf("%d pardoned: %v", n, err)
	}
	w.follow()
	w.must("pardoned", 2, 0, 0)
}
