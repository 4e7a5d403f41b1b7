package penalties_test

import (
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// guard is an Enforcer in words.
type guard struct {
	*plane
	service  *penalties.Service
	enforcer *penalties.Enforcer
	rule     penalty.Rule
}

func (p *plane) guard(node string) *guard {
	p.Helper()
	g := &guard{plane: p, service: p.replica(), rule: penalty.Rule{
		Refusals: 2, Within: 10 * quota.Second, For: quota.Minute, Factor: 2, Max: quota.Hour, Forget: quota.Hour,
	}}
	p.refresh(g.service)
	g.enforcer = penalties.NewEnforcer(g.service, node, func() uint64 { return 0 })
	return g
}

func (g *guard) caller(n int) *penalties.Caller {
	return &penalties.Caller{Key: key(n), Policy: "api", Rule: &g.rule, Version: 1}
}

// refuse makes the policy refuse a caller the given number of times.
func (g *guard) refuse(n, times int) {
	for range times {
		g.enforcer.CountRefusal(g.caller(n), &wire.Identity{})
	}
}

// left is how many seconds a caller's penalty lasts.
func (g *guard) left(n int) int64 {
	return int64(g.enforcer.Find(g.caller(n), func() *wire.Identity { return &wire.Identity{} }) / quota.Second)
}

func (g *guard) wants(what string, n int, want int64) {
	g.Helper()
	if got := g.left(n); got != want {
		g.Errorf("%s: %d s are left of the penalty of %d, want %d", what, got, n, want)
	}
}

func (g *guard) deliver() {
	g.Helper()
	if err := g.enforcer.Deliver(g.Context()); err != nil {
		g.Fatal(err)
	}
	g.refresh(g.service)
}

// A penalty of one replica holds at all other replicas, like a penalty that a node reports. A
// pardoned penalty stays ended.
func TestReplicasShareTheirPenalties(t *testing.T) {
	p := newPlane(t)
	one, two := p.guard("one"), p.guard("two")
	one.refuse(1, 1)
	one.wants("one refusal", 1, 0)
	one.refuse(1, 1)
	one.wants("two refusals", 1, 60)
	two.wants("at another replica, before the report", 1, 0)
	one.deliver()
	p.refresh(two.service)
	two.wants("at another replica", 1, 60)
	p.report(two.service, 0, 2)
	p.refresh(one.service)
	one.wants("of a node", 2, 60)
	if _, err := two.service.Pardon(t.Context(), penalties.Query{Keys: []keyhash.Key{key(1)}},
		audit.Entry{Action: "a"}); err != nil {
		t.Fatal(err)
	}
	p.refresh(one.service)
	one.wants("after a pardon", 1, 0)
	one.wants("of another caller", 2, 60)
	p.now = p.now.Add(time.Second)
	one.refuse(1, 2)
	one.wants("a first offence again", 1, 60)
	one.deliver()
	if _, err := two.service.Pardon(t.Context(), penalties.Query{}, audit.Entry{Action: "a"}); err != nil {
		t.Fatal(err)
	}
	p.refresh(one.service)
	one.wants("after a pardon of all", 1, 0)
	one.wants("after a pardon of all", 2, 0)
}

// A report that does not arrive is made again, with the latest penalty of each caller.
func TestReportsAreMadeAgain(t *testing.T) {
	p := newPlane(t)
	one, two := p.guard("one"), p.guard("two")
	one.refuse(1, 2)
	_ = p.store.Close()
	if err := one.enforcer.Deliver(t.Context()); err == nil {
		t.Fatal("a closed store took a report")
	}
	p.now = p.now.Add(time.Minute)
	one.refuse(1, 2)
	one.refuse(2, 2)
	one.wants("while the store is away", 1, 120)
	p.store = p.open(t.TempDir())
	one.deliver()
	p.refresh(two.service)
	two.wants("when the store is back", 1, 120)
	two.wants("when the store is back", 2, 60)
	if p.meter.begun["api false"] != 2 {
		t.Errorf("counted %v", p.meter.begun)
	}
}

// A flood of callers takes bounded memory, and those stay that are under a penalty.
func TestAFloodOfCallersIsForgotten(t *testing.T) {
	p := newPlane(t)
	one := p.guard("one")
	one.refuse(1, 2)
	for n := 2; n < 100_000; n++ {
		one.refuse(n, 1)
	}
	one.wants("in a flood", 1, 60)
	if n := one.enforcer.Remembered(); n != 1<<16 {
		t.Errorf("%d callers are remembered", n)
	}
}
