package wasm

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// atOnce does the same as world.run for a world of one node, but runs a step at once, in an order
// that the seed chooses: requests on all workers, and then the ticks of all VMs and the answers
// that are due.
func atOnce(w *world, r *rand.Rand, d time.Duration, requests func(worker int), each func()) {
	node := w.nodes[0]
	for end := w.now + d; w.now < end; {
		w.now += quantum
		node.AdvanceAtOnce(r.Uint64(), quantum)
		w.fire()
		var functions []func()
		for i := range w.fleet.workers {
			functions = append(functions, func() { requests(i) })
		}
		node.Interleave(r.Uint64(), functions...)
		w.collect()
		each()
	}
}

// contend makes three workers of a node ask for twice the tokens of a leased bucket, and returns
// the used tokens.
func contend(t *testing.T, seed uint64, spoil func(*wire.LeaseReply)) (l *law, w *world) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 3))
	w = newWorld(t, fleet{nodes: 1, workers: 3, seed: seed,
		set: setOf(limits("api", "leased", "200/1s burst 300", thenDeny, costHeader))})
	w.plane.Nodes = 2
	w.plane.reply = spoil
	w.plane.lag = func() (up, down time.Duration) { return millis(r, 1, 8), millis(r, 1, 8) }
	w.plane.lease = func(_ *envoytest.Call, req wire.LeaseRequest) bool {
		if r.IntN(10) == 0 { // The request comes twice, and one of the answers is all that the node hears.
			w.plane.Grant(0, req)
		}
		return false
	}
	l = newLaw(t, 200, quota.Second, 300)
	g := &game{world: w, law: l}
	atOnce(w, r, 4*time.Second, func(worker int) {
		if r.IntN(10) == 0 {
			g.send(0, worker, 1+r.Int64N(3))
		}
	}, g.count)
	return l, w
}

// Leases under every order of host calls, with requests that come to the control plane twice: no
// interval sees more than the law allows.
func TestInterleavedWorkersShareALease(t *testing.T) {
	for seed := range uint64(12) {
		l, w := contend(t, seed, nil)
		if l.check(t, "interleaved"); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		if used := float64(l.used) / l.most(w.now); used < 0.3 {
			t.Errorf("seed %d: only %.0f %% of the law's tokens have passed: the test shows little", seed, 100*used)
		}
	}
}

// The test above notices tokens that are credited twice.
func TestDoubleCreditIsNoticed(t *testing.T) {
	for seed := range uint64(12) {
		l, _ := contend(t, seed, func(reply *wire.LeaseReply) {
			for i := range reply.Items {
				reply.Items[i].Keep *= 2
			}
		})
		if l.worst > 0 {
			t.Logf("found by seed %d", seed)
			return
		}
	}
	t.Error("not found by 12 seeds")
}

// All VMs start to look for the policy set in the same instant. Whichever goes first, one of them
// asks, all others take over its answer, and all limit by it from the same tick on.
func TestTicksAtOnceElectOneLeader(t *testing.T) {
	for seed := range uint64(30) {
		w := newWorld(t, fleet{nodes: 1, workers: 3, seed: seed})
		r := rand.New(rand.NewPCG(seed, 4))
		nothing := func(int) {}
		atOnce(w, r, 100*time.Millisecond, nothing, func() {})
		if n := len(w.plane.polls); n != 1 {
			t.Fatalf("seed %d: %d VMs ask at once", seed, n)
		}
		w.plane.push(setOf(limits("api", "local", "5/1h", thenDeny)))
		atOnce(w, r, 100*time.Millisecond, nothing, func() {})
		passed := 0
		for worker := range 3 {
			passed += count(t, w.nodes[0], worker, 3, get("x-key", "a"))
		}
		if passed != 5 {
			t.Errorf("seed %d: %d passed, want 5", seed, passed)
		}
	}
}
