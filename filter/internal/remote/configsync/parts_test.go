package configsync_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// large is a snapshot of 5000 policies, which takes several ticks.
func large(t *testing.T, version uint64) []byte {
	t.Helper()
	var b strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&b, `,{"name":"p-%d","match":{"paths":["/v1/%d/{a}"]},"partition":[],"limit":{"quota":5,"window":"1s"}}`, i, i)
	}
	node, err := policy.ParseJSON([]byte(`{"version":"weir/v1","policies":[` + b.String()[1:] + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	set, err := policy.Decode(node)
	if err != nil {
		t.Fatal(err)
	}
	return wire.AppendSnapshot(nil, wire.Snapshot{Version: version, Set: set})
}

// ticks ticks until all VMs have these versions, and returns how often; the rules before stay in
// force until then.
func (p *process) ticks(t *testing.T, before, after string) (n int) {
	t.Helper()
	for ; p.versions() != after; n++ {
		if got := p.versions(); n > 100 || !strings.HasPrefix(before+" "+after, strings.Fields(got)[0]) {
			t.Fatalf("versions %s after %d ticks, want %s", got, n, after)
		}
		p.tick(sec / 100)
	}
	return n
}

// A large set is compiled over several ticks, in the leader and then in the other VMs, so that no
// request waits for all of it. The rules in force stay until the next rules are whole.
func TestALargeSetIsLoadedInParts(t *testing.T) {
	p := newProcess(2)
	p.tick(0)
	p.answer(t, 200, snapshot(1))
	p.tick(1)
	p.answer(t, 200, large(t, 2))
	if got := p.versions(); got != "1 1" {
		t.Fatalf("versions %s at once", got)
	}
	leader := p.ticks(t, "1 1", "2 1")
	follower := p.ticks(t, "2 1", "2 2")
	if leader < 3 || follower < 3 {
		t.Errorf("the leader took %d ticks, the other %d", leader, follower)
	}
	if q := p.answer(t, 204, nil); q.Get("after") != "2" || q.Get("applied") != "2" {
		t.Errorf("the next poll says %v", q)
	}
}

// The first set of a control plane is in force at once if it is small. A large one is loaded in
// parts like those after it, so that no worker stands still for all of it.
func TestTheFirstSetIsLoadedInParts(t *testing.T) {
	p := newProcess(2)
	p.tick(0)
	p.answer(t, 200, snapshot(1))
	if p.vms[1].Follow(); p.versions() != "1 1" {
		t.Errorf("a small set: versions %s", p.versions())
	}
	p = newProcess(2)
	p.tick(0)
	p.answer(t, 200, large(t, 2))
	leader := p.ticks(t, "- -", "2 -")
	if p.vms[1].Follow(); p.versions() != "2 -" {
		t.Errorf("a large set: versions %s after one part", p.versions())
	}
	if follower := p.ticks(t, "2 -", "2 2"); leader < 2 || follower < 1 {
		t.Errorf("the leader took %d ticks, the other %d", leader, follower)
	}
}

// A VM that starts when another one has a set has all of it before its first request.
func TestALateVMHasTheWholeSet(t *testing.T) {
	p := newProcess(2)
	p.tick(0)
	p.answer(t, 200, large(t, 2))
	p.ticks(t, "- -", "2 -")
	p.vms[1].Join()
	if got := p.versions(); got != "2 2" {
		t.Errorf("versions %s", got)
	}
}

// While a set is being compiled: there is no poll, and another leader may publish a newer set.
func TestANewerSetReplacesOneThatIsBeingLoaded(t *testing.T) {
	p := newProcess(2)
	p.tick(0)
	p.answer(t, 200, snapshot(1))
	p.tick(1)
	p.answer(t, 200, large(t, 2))
	p.tick(sec / 100)
	if len(p.polls) != 0 || p.versions() != "1 1" {
		t.Fatalf("%d polls while a set is being loaded, versions %s", len(p.polls), p.versions())
	}
	p.ticks(t, "1 1", "2 1")
	p.tick(sec / 100)
	p.answer(t, 200, snapshot(3)) // The other VM is still at version 2.
	if got := p.versions(); got != "3 1" {
		t.Fatalf("versions %s", got)
	}
	p.ticks(t, "3 1", "3 3")
}

// A set whose damage shows late changes nothing, and is reported.
func TestALargeSetThatDoesNotLoad(t *testing.T) {
	p := newProcess(2)
	p.tick(0)
	p.answer(t, 200, snapshot(1))
	p.tick(1)
	damaged := large(t, 2)
	p.answer(t, 200, wire.Reseal(damaged[:len(damaged)-1]))
	for range 20 {
		p.tick(sec / 100)
	}
	if q := p.answer(t, 200, large(t, 3)); q.Get("refused") != "2" || q.Get("applied") != "1" || q.Get("after") != "2" {
		t.Errorf("the refusal is reported as %v", q)
	}
	p.ticks(t, "1 1", "3 1")
	p.ticks(t, "3 1", "3 3")
}

// A VM that no longer leads when its set is compiled does not put it over the next leader's.
func TestALeaderThatIsReplacedWhileItLoads(t *testing.T) {
	p := newProcess(2)
	p.tick(0)
	p.answer(t, 200, snapshot(4))
	p.tick(1)
	p.answer(t, 200, large(t, 5))
	former := p.vms[0] // It is busy for longer than its leadership.
	p.vms = p.vms[1:]
	for range 5 {
		p.tick(sec)
	}
	p.answer(t, 200, snapshot(6))
	p.vms = append(p.vms, former)
	for range 20 {
		p.tick(sec / 100)
	}
	if got := p.versions(); got != "6 6" {
		t.Errorf("in force %s, want 6 6", got)
	}
}
