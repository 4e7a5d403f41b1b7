package wasm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/vtimetest"
)

// quantum is the step of a world: all delays are multiples of it, so whatever happens happens
// exactly at a step.
const quantum = time.Millisecond

// fleet lists the parts of a world. The zero value is no node, and a control plane that answers in
// 2 ms.
type fleet struct {
	nodes, workers int // workers: 0 means 1
	set            string
	inline         string // the plugin's own policy set
	up, down       time.Duration
	keys           int // of the table; 0 means 1024
	fail           envoytest.FailurePolicy
	drain          time.Duration
	seed           uint64
	onShared       func(vm int, op string, key []byte)
}

// world is a control plane and some nodes in one virtual time.
type world struct {
	t     *testing.T
	fleet fleet
	now   time.Duration
	plane *plane
	nodes []*envoytest.Host

	due     vtimetest.Queue[time.Duration]
	waiting []*attempt
}

// attempt is one request and its outcome.
type attempt struct {
	node, worker int
	stream       *envoytest.Stream
	sent, ended  time.Duration
	done, passed bool
}

// newWorld starts all nodes. With a policy set it has been pushed, and has arrived everywhere, at
// time 0.
func newWorld(t *testing.T, f fleet) *world {
	t.Helper()
	if f.up == 0 && f.down == 0 {
		f.up, f.down = quantum, quantum
	}
	f.workers, f.keys = max(f.workers, 1), max(f.keys, 1024)
	w := &world{t: t, fleet: f}
	w.plane = newPlane(w)
	for i := range f.nodes {
		w.nodes = append(w.nodes, w.start(i))
	}
	if f.set != "" {
		w.plane.push(f.set)
		w.advance(100 * time.Millisecond)
	}
	w.now = 0
	return w
}

// config returns the plugin configuration of the nodes.
func (w *world) config(inline string) []byte {
	if inline == "" {
		inline = "null"
	}
	return fmt.Appendf(nil, `{"control_plane": {"cluster": "weir", "token": {"env": "WEIR_NODE_TOKEN"}}, "table": {"keys": %d}, "policyset": %s}`,
		w.fleet.keys, inline)
}

func (w *world) start(i int) *envoytest.Host {
	return start(w.t, envoytest.Options{
		Workers: w.fleet.workers, PluginConfig: w.config(w.fleet.inline), NodeID: fmt.Sprint("node-", i),
		Env: map[string]string{"WEIR_NODE_TOKEN": token}, Clusters: []string{"weir"}, Seed: w.fleet.seed + uint64(i),
		Calls:         func(c *envoytest.Call) { w.plane.handle(i, c) },
		FailurePolicy: w.fleet.fail, DrainTime: w.fleet.drain, OnShared: w.fleet.onShared,
	})
}

// after makes the control plane do something later.
func (w *world) after(d time.Duration, fire func()) {
	w.due.Add(w.now+d, fire)
}

// advance lets time pass on all nodes and at the control plane, step by step.
func (w *world) advance(d time.Duration) { w.run(d, func() {}) }

// run advances, and calls each at the end of each step.
func (w *world) run(d time.Duration, each func()) {
	for end := w.now + d; w.now < end; {
		w.now += quantum
		for _, h := range w.nodes {
			h.Advance(quantum)
		}
		w.fire()
		w.collect()
		each()
	}
}

// fire has all happen that is due.
func (w *world) fire() {
	for e, ok := w.due.Next(w.now); ok; e, ok = w.due.Next(w.now) {
		e.Fire()
	}
}

// skip jumps over a time in which nothing happens: events that were due in it are late.
func (w *world) skip(d time.Duration) {
	for _, h := range w.nodes {
		h.StepMonotonicClock(d)
	}
	w.now += d
}

// collect takes up requests that waited and wait no more.
func (w *world) collect() {
	still := w.waiting[:0]
	for _, a := range w.waiting {
		if w.settle(a); !a.done {
			still = append(still, a)
		}
	}
	clear(w.waiting[len(still):])
	w.waiting = still
}

func (w *world) settle(a *attempt) {
	switch state := a.stream.State(); state {
	case envoytest.Paused:
		return
	case envoytest.Continued:
		a.passed = true
		a.stream.Respond(200, nil)
	case envoytest.Replied, envoytest.Cancelled:
	case envoytest.Failed:
		if w.fleet.fail != envoytest.FailReload {
			w.t.Errorf("at %v a request failed", w.now)
		}
	default:
		w.t.Errorf("at %v a request is %v", w.now, state)
	}
	a.done, a.ended = true, w.now
}

// request sends a request; the attempt is done at once, or in a later step.
func (w *world) request(node, worker int, r envoytest.Request) *attempt {
	a := &attempt{node: node, worker: worker, sent: w.now, stream: w.nodes[node].Worker(worker).Request(r)}
	if w.settle(a); !a.done {
		w.waiting = append(w.waiting, a)
	}
	return a
}

// ask sends a request and lets time pass until it is done.
func (w *world) ask(node, worker int, r envoytest.Request) *attempt {
	w.t.Helper()
	a := w.request(node, worker, r)
	for !a.done {
		if w.now > a.sent+time.Second {
			w.t.Fatalf("a request still waits after %v", w.now-a.sent)
		}
		w.advance(quantum)
	}
	return a
}

// decision returns the decision on a done attempt.
func (w *world) decision(a *attempt) decision {
	w.t.Helper()
	d, ok := readDecision(w.t, a.stream)
	if !ok {
		w.t.Fatalf("there is no decision; the request is %v", a.stream.State())
	}
	return d
}

// counters sums one of the filter's counters over all nodes, after a tick has brought it up to
// date.
func (w *world) counter(name string) uint64 {
	w.advance(20 * time.Millisecond)
	var n uint64
	for _, h := range w.nodes {
		n += counter(h, name)
	}
	return n
}

// logged counts the lines of a node's log that hold text.
func (w *world) logged(node int, text string) int {
	n := 0
	for _, l := range w.nodes[node].Logs() {
		if strings.Contains(l.Text, text) {
			n++
		}
	}
	return n
}
