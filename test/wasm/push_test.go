package wasm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/wire"
)

// burstOf asks which burst a worker's policy set has, by the draft's header; 0 for no policy.
func burstOf(w *world, node, worker int) int64 {
	w.t.Helper()
	reply := w.ask(node, worker, get("x-key", "probe", "x-cost", "0")).stream.Reply()
	if reply.Header("ratelimit-policy") == "" {
		return 0
	}
	return draft11(w.t, reply.Header("ratelimit-policy"))[0].params["q"]
}

// pollers says which VMs have a poll under way.
func pollers(h *envoytest.Host) []int {
	var vms []int
	for _, c := range h.Calls() {
		if strings.HasPrefix(c.Header(":path"), "/node/v1/snapshot") && h.Alive(c.VM) {
			vms = append(vms, c.VM)
		}
	}
	return vms
}

// One VM of a process polls, all workers get its snapshot within a tick or two, and the next poll
// says that the snapshot is in force.
func TestPushReachesEveryWorker(t *testing.T) {
	w := newWorld(t, fleet{nodes: 2, workers: 3})
	w.advance(50 * quantum)
	for i, h := range w.nodes {
		if vms := pollers(h); len(vms) != 1 {
			t.Errorf("node %d: polls from %v, want one VM", i, vms)
		}
	}
	first := w.plane.lastPoll(0)
	if first.query.Get("node") != "node-0" || first.query.Get("boot") == "" || first.query.Get("filter") == "" ||
		first.query.Get("wait") != "25s" ||
		first.after != 0 || first.applied != 0 || first.query.Get("boot") == w.plane.lastPoll(1).query.Get("boot") {
		t.Errorf("the first poll is %v", first.query)
	}
	for version := uint64(1); version <= 5; version++ {
		w.plane.push(setOf(limits("api", "local", fmt.Sprintf("%d/1m", 10*version), costHeader)))
		w.advance(2*quantum + 2*tick)
		for node := range 2 {
			for worker := range 3 {
				if q := burstOf(w, node, worker); q != int64(10*version) {
					t.Errorf("version %d: worker %d of node %d has a burst of %d", version, worker, node, q)
				}
			}
			if p := w.plane.lastPoll(node); p.after != version || p.applied != version || p.refused != 0 {
				t.Errorf("version %d: node %d polls with %v", version, node, p.query)
			}
			if n := w.logged(node, fmt.Sprintf("policy set version %d is in force", version)); n != 1 {
				t.Errorf("version %d: node %d logged it %d times", version, node, n)
			}
		}
	}
	// Nothing new: the poll ends after 25 s and the next follows.
	heard := len(w.plane.heard)
	w.advance(60 * time.Second)
	if n := len(w.plane.heard) - heard; n != 4 {
		t.Errorf("%d polls of two nodes in 60 s, want 4", n)
	}
}

// trap makes a VM trap the next time it touches shared data.
type trap struct {
	armed  bool
	vm     int
	sprung int
}

func (tr *trap) hook(vm int, _ string, _ []byte) {
	if tr.armed && vm == tr.vm {
		tr.armed, tr.sprung = false, tr.sprung+1
		panic("a trap for the test")
	}
}

// The leader's VM traps: within a few seconds another VM polls, and pushes arrive again.
func TestAnotherVMTakesOverFromATrappedLeader(t *testing.T) {
	var tr trap
	w := newWorld(t, fleet{nodes: 1, workers: 2, fail: envoytest.FailReload, onShared: tr.hook,
		set: setOf(limits("api", "local", "10/1m", costHeader))})
	h := w.nodes[0]
	for round := range 2 {
		leader := pollers(h)
		if len(leader) != 1 {
			t.Fatalf("polls from %v", leader)
		}
		tr = trap{armed: true, vm: leader[0]}
		w.advance(time.Second) // An idle VM ticks once a second.
		if tr.armed || h.Alive(leader[0]) {
			t.Fatalf("VM %d is alive", leader[0])
		}
		w.plane.push(setOf(limits("api", "local", fmt.Sprintf("%d/1m", 20+round), costHeader)))
		died := w.now
		for len(pollers(h)) == 0 {
			w.advance(quantum)
			if w.now > died+5*time.Second {
				t.Fatal("no worker polls")
			}
		}
		t.Logf("VM %d polls %v after VM %d trapped", pollers(h)[0], w.now-died, leader[0])
		w.advance(50 * quantum)
		for worker := range 2 {
			burstOf(w, 0, worker) // The request of a worker that ticks slowly starts to compile the set.
		}
		w.advance(50 * quantum)
		for worker := range 2 {
			if q := burstOf(w, 0, worker); q != int64(20+round) {
				t.Errorf("worker %d has a burst of %d", worker, q)
			}
		}
		w.advance(5 * time.Second)
	}
}

// A snapshot that is damaged, cut short or of a format of the future is refused: the last good
// snapshot stays in force everywhere, and the next poll names the refused version and the reason.
// The next good snapshot is applied.
func TestBadSnapshots(t *testing.T) {
	good := setOf(limits("api", "local", "10/1m", costHeader))
	other := setOf(limits("api", "local", "20/1m", costHeader), limits("more", "leased", "5/1s"))
	size := len(wire.AppendSnapshot(nil, wire.Snapshot{Version: 2, Set: decode(t, other)}))
	type damage struct {
		name   string
		reason string
		do     func(b []byte) []byte
	}
	damages := []damage{
		{"another protocol", "upgrade the filter", func(b []byte) []byte { b[4] = 99; return wire.Reseal(b) }},
		{"another message", "not a message", func(b []byte) []byte { copy(b, "WRLR"); return b }},
		{"a byte more", "", func(b []byte) []byte { return wire.Reseal(append(b, 0)) }},
		{"too large", "", func(b []byte) []byte { return append(b, make([]byte, wire.MaxSnapshot)...) }},
	}
	for _, n := range []int{0, 1, 4, 5, 12, 13, 20, 21, 36, 37, 50, size - 1} {
		damages = append(damages, damage{fmt.Sprint("cut to ", n), "", func(b []byte) []byte { return b[:n] }})
		if n > 37 { // with the right checksum, so that the content behind it is read
			damages = append(damages, damage{fmt.Sprint("cut to ", n, " and sealed"), "",
				func(b []byte) []byte { return wire.Reseal(b[:n]) }})
		}
	}
	for bit := 0; bit < 8*size; bit += 13 {
		damages = append(damages, damage{fmt.Sprint("bit ", bit), "",
			func(b []byte) []byte { b[bit/8] ^= 1 << (bit % 8); return b }})
	}
	w := newWorld(t, fleet{nodes: 1, workers: 2, set: good})
	for _, d := range damages {
		refusedBefore := w.counter("snapshots.refused")
		var sent uint64
		w.plane.snapshot = func(b []byte) []byte {
			w.plane.snapshot = nil
			b = d.do(b)
			sent = wire.PeekVersion(b)
			return b
		}
		version := w.plane.Version + 1
		w.plane.Version, w.plane.Sets[version] = version, decode(t, other)
		// The bad one only: the node asks again, and must not get the good one yet.
		w.plane.wake()
		w.plane.Version = sent
		w.advance(50 * quantum)
		for worker := range 2 {
			if q := burstOf(w, 0, worker); q != 10 {
				t.Errorf("%s: worker %d has a burst of %d", d.name, worker, q)
			}
		}
		if p := w.plane.lastPoll(0); p.refused != sent && sent != 0 || p.reason == "" && sent != 0 ||
			!strings.Contains(p.reason, d.reason) || p.after != sent {
			t.Errorf("%s: after version %d the poll says %v", d.name, sent, p.query)
		}
		if n := w.counter("snapshots.refused"); n != refusedBefore+1 {
			t.Errorf("%s: counted %d times", d.name, n-refusedBefore)
		}
		w.plane.pushAs(version+1, good)
		w.advance(50 * quantum)
		if p := w.plane.lastPoll(0); p.applied != version+1 || p.refused != 0 || p.reason != "" {
			t.Errorf("%s: after the next good one the poll says %v", d.name, p.query)
		}
	}
	t.Logf("%d kinds of damage", len(damages))
}

// 200 pushes of 1000 policies: memory finds its size, as the collector happens to need it, and is
// flat from there on.
func TestManyPushesKeepMemoryFlat(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 2})
	h := w.nodes[0]
	memory := func() []uint64 {
		return []uint64{h.MemoryBytes(envoytest.Main), h.MemoryBytes(0), h.MemoryBytes(1)}
	}
	var early []uint64
	for round := range 200 {
		var policies []string
		for i := range 1000 {
			policies = append(policies, limits(fmt.Sprintf("policy-%d-of-round-%03d", i, round), "local",
				fmt.Sprintf("%d/1m", 10+round),
				fmt.Sprintf(`"match": {"hosts": ["h%d.example.com"], "paths": ["/v%d/items/{id}", "/r%03d/**"], "methods": ["GET", "POST"]}`, i%50, i, round)))
		}
		policies = append(policies, limits("api", "local", fmt.Sprintf("%d/1m", 1+round), costHeader, `"match": {"paths": ["/v1/items"]}`))
		w.plane.push(setOf(policies...))
		w.advance(50 * quantum)
		for worker := range 2 {
			burstOf(w, 0, worker) // The request of a worker that ticks slowly starts to compile the set.
		}
		w.advance(50 * quantum)
		for worker := range 2 {
			if q := burstOf(w, 0, worker); q != int64(1+round) {
				t.Fatalf("round %d: worker %d has a burst of %d", round, worker, q)
			}
		}
		if round == 49 {
			early = memory()
		}
	}
	t.Logf("main thread and workers have %v bytes", memory())
	if m := slices.Max(early); m > 4<<20 {
		t.Errorf("%d bytes with 1000 policies, want at most 4 MB", m)
	}
	if now := memory(); !slices.Equal(now, early) {
		t.Errorf("memory went from %v after 50 pushes to %v after 200", early, now)
	}
}

// A listener update replaces the root context and keeps the buckets. While the old one drains, both
// are alive.
func TestListenerUpdateKeepsBuckets(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		h := start(t, envoytest.Options{Workers: 2, DrainTime: time.Second,
			PluginConfig: alone(setOf(limits("api", "local", "10/1h")))})
		count(t, h, 0, 4, get("x-key", "a"))
		if err := h.UpdatePlugin(alone(setOf(limits("new", "local", "99/1h", forAll),
			limits("api", "local", "12/1h")))); err != nil {
			t.Fatal(err)
		}
		if n := count(t, h, 1, 20, get("x-key", "a")); n != 8 {
			t.Errorf("%d more passed, want 12 - 4", n)
		}
		h.Advance(2 * time.Second)
		if n := count(t, h, 0, 20, get("x-key", "a")); n != 0 {
			t.Errorf("after the drain %d more passed", n)
		}
	})
	t.Run("with a control plane", func(t *testing.T) {
		w := newWorld(t, fleet{nodes: 1, workers: 2, drain: 5 * time.Second,
			set: setOf(limits("here", "local", "10/1h"), limits("lent", "leased", "50/1h", thenDeny))})
		h := w.nodes[0]
		for i := range 4 {
			w.ask(0, i%2, get("x-key", "a"))
		}
		// One waits while the update comes: it ends under the root context that it began in.
		w.plane.lag = func() (up, down time.Duration) { return 20 * quantum, 10 * quantum }
		held := w.request(0, 0, get("x-key", "a", "x-other", "b"))
		if err := h.UpdatePlugin(w.config(setOf(limits("inline", "local", "1/1h")))); err != nil {
			t.Fatal(err)
		}
		fresh := w.request(0, 1, get("x-key", "a"))
		w.advance(100 * quantum)
		if !held.passed || !fresh.passed {
			t.Errorf("the waiting request passed: %v, the new request: %v", held.passed, fresh.passed)
		}
		w.plane.lag = nil
		passed := 0
		for i := range 20 {
			if a := w.ask(0, i%2, get("x-key", "a")); a.passed {
				passed++
			} else if d := w.decision(a); d.policy != "here" {
				t.Errorf("%+v", d)
			}
		}
		if passed != 4 {
			t.Errorf("%d more passed, want 10 - 6", passed)
		}
		w.advance(10 * time.Second)
		if vms := pollers(h); len(vms) != 1 {
			t.Errorf("after the drain there are polls from %v", vms)
		}
		w.plane.push(setOf(limits("here", "local", "20/1h", costHeader)))
		w.advance(50 * quantum)
		for worker := range 2 {
			if q := burstOf(w, 0, worker); q != 20 {
				t.Errorf("worker %d has a burst of %d", worker, q)
			}
		}
	})
}

// VMs that start late, after a trap or with a new build of the filter, limit from their first
// request on with the policies of the process, also while the control plane is away.
func TestNewVMsKnowThePolicies(t *testing.T) {
	again, err := envoytest.Compile(code)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { again.Close() })
	var tr trap
	w := newWorld(t, fleet{nodes: 1, workers: 2, fail: envoytest.FailReload, onShared: tr.hook,
		set: setOf(limits("here", "local", "20/1h"), limits("lent", "leased", "1000/1h", thenAllow))})
	h := w.nodes[0]
	use := func(n int) (passed int) {
		for i := range n {
			if a := w.ask(0, i%2, get("x-key", "a")); a.passed {
				passed++
			}
		}
		return passed
	}
	if n := use(5); n != 5 {
		t.Fatalf("%d passed", n)
	}
	w.plane.down = true
	tr.armed, tr.vm = true, 0
	w.advance(20 * quantum)
	if h.Alive(0) {
		t.Fatal("the worker is alive")
	}
	w.advance(2 * time.Second)
	if n := use(4); n != 4 {
		t.Errorf("after a trap %d of 4 passed", n)
	}
	if err := h.Upgrade(again, w.config("")); err != nil {
		t.Fatal(err)
	}
	if n := use(40); n != 11 {
		t.Errorf("%d passed after the upgrade, want 20 - 9", n)
	}
	if n := w.counter("requests.before_snapshot"); n != 0 {
		t.Errorf("%d requests passed as if there were no policy set", n)
	}
}

// Before the first snapshot requests pass, counted and logged once for each VM; an inline policy
// set is used until then.
func TestBeforeTheFirstSnapshot(t *testing.T) {
	t.Run("nothing", func(t *testing.T) {
		w := newWorld(t, fleet{nodes: 1})
		for range 7 {
			if a := w.request(0, 0, get("x-key", "a")); !a.passed {
				t.Fatal("a request waits or is refused")
			}
		}
		if n := w.counter("requests.before_snapshot"); n != 7 || w.logged(0, "no policy set yet") != 1 {
			t.Errorf("%d counted, %d times logged", n, w.logged(0, "no policy set yet"))
		}
	})
	t.Run("as soon as one VM has it", func(t *testing.T) {
		w := newWorld(t, fleet{nodes: 1, workers: 3})
		w.plane.push(setOf(limits("api", "local", "5/1h", costHeader)))
		asked := false
		w.run(50*quantum, func() {
			if asked || w.logged(0, "is in force") == 0 {
				return
			}
			asked = true
			for worker := range 3 {
				if q := burstOf(w, 0, worker); q != 5 {
					t.Errorf("worker %d: the burst is %d, want 5", worker, q)
				}
			}
		})
		if n := w.counter("requests.before_snapshot"); !asked || n != 0 {
			t.Errorf("asked %v; %d requests passed as if there were no policy set", asked, n)
		}
	})
	t.Run("inline", func(t *testing.T) {
		w := newWorld(t, fleet{nodes: 1, workers: 2, inline: setOf(limits("api", "local", "3/1h", costHeader))})
		if q := burstOf(w, 0, 1); q != 3 {
			t.Errorf("the burst is %d, want the inline policy's", q)
		}
		w.plane.push(setOf(limits("api", "local", "5/1h", costHeader)))
		w.advance(50 * quantum)
		for worker := range 2 {
			if q := burstOf(w, 0, worker); q != 5 {
				t.Errorf("worker %d: the burst is %d, want the control plane's", worker, q)
			}
		}
	})
}

// A control plane that was set up anew starts again at version 1: its policies count, for the
// buckets too.
func TestControlPlaneStartsAgainAtALowerVersion(t *testing.T) {
	for _, mode := range []string{"local", "leased"} {
		w := newWorld(t, fleet{nodes: 1, workers: 2})
		w.plane.pushAs(40, setOf(limits("api", mode, "10/366d", thenDeny)))
		w.advance(50 * quantum)
		for range 8 {
			if a := w.ask(0, 0, get("x-key", "a")); !a.passed {
				t.Fatalf("%+v", w.decision(a))
			}
		}
		clear(w.plane.Sets)
		clear(w.plane.Ledgers)
		w.plane.pushAs(1, setOf(limits("api", mode, "20/366d", thenDeny)))
		w.advance(31 * time.Second)
		if p := w.plane.lastPoll(0); p.applied != 1 || p.after != 1 {
			t.Errorf("%s: the poll says %v", mode, p.query)
		}
		passed := 0
		for i := range 40 {
			if a := w.ask(0, i%2, get("x-key", "a")); a.passed {
				passed++
			}
		}
		if want := map[string]int{"local": 12, "leased": 20}[mode]; passed != want {
			t.Errorf("%s: %d passed under the new limit, want %d", mode, passed, want)
		}
	}
}

// A control plane that cannot be reached is asked ever more seldom, said once, and found again.
func TestPollsBackOff(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 2, set: setOf(limits("api", "local", "10/1m", costHeader))})
	w.plane.down = true
	for _, c := range w.nodes[0].Calls() {
		c.FailConnection(0)
	}
	heard := len(w.plane.heard)
	w.nodes[0].SetClusters() // not even the cluster is there
	w.advance(60 * time.Second)
	w.nodes[0].SetClusters("weir")
	if n := len(w.plane.heard) - heard; n != 0 || w.logged(0, "the control plane cannot be reached") != 1 {
		t.Errorf("%d polls, %d times logged", n, w.logged(0, "the control plane cannot be reached"))
	}
	failed := w.counter("polls.unsent")
	if failed < 10 || failed > 40 {
		t.Errorf("%d polls failed in 60 s", failed)
	}
	w.plane.down = false
	w.advance(6 * time.Second)
	w.plane.push(setOf(limits("api", "local", strconv.Itoa(11)+"/1m", costHeader)))
	w.advance(50 * quantum)
	if q := burstOf(w, 0, 0); q != 11 || w.logged(0, "the control plane answers again") != 1 {
		t.Errorf("after the recovery the burst is %d", q)
	}
}
