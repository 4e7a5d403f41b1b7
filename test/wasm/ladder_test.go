package wasm

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// report is what a node said of its failure ladder: the worst step, and policies by name.
type report struct {
	node  int
	at    time.Duration
	worst policy.Step
	steps map[string]string
}

func (c *plane) handleReport(node int, call *envoytest.Call) {
	var m wire.Report
	if err := wire.DecodeReport(call.Body, &m); err != nil || string(m.Node) != fmt.Sprint("node-", node) ||
		m.Boot == 0 || m.Version != c.version {
		c.w.t.Errorf("a report: %+v: %v", m, err)
		return
	}
	if c.down {
		return
	}
	r := report{node: node, at: c.w.now, worst: m.Worst, steps: map[string]string{}}
	for _, s := range m.Steps {
		r.steps[c.sets[m.Version].Policies[s.Policy].Name] = s.Step.String()
	}
	c.reports = append(c.reports, r)
	call.Respond(c.w.fleet.down, 204, nil, nil)
}

// toldLast is the last report, as text.
func (c *plane) toldLast() string {
	if len(c.reports) == 0 {
		return "nothing"
	}
	r := c.reports[len(c.reports)-1]
	return fmt.Sprint(r.worst, " ", r.steps)
}

// silence lets lease requests alone go unanswered, as a control plane does that has lost its store.
func (c *plane) silence() {
	c.lease = func(*envoytest.Call, wire.LeaseRequest) bool { return true }
}

func (w *world) step() policy.Step {
	w.advance(250 * time.Millisecond) // By then the leader has looked.
	return policy.Step(w.counter("ladder.step"))
}

// Where a node is on the ladder, policy by policy, is reported to the control plane when it changes
// and every ten seconds, and logged and counted once for the process, however many workers and
// requests there are.
func TestTheLadderIsReported(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 3, set: setOf(
		limits("shares", "leased", "100/1s", `"match": {"paths": ["/shares"]}`, `"on_failure": {"then": "local"}`),
		limits("allows", "leased", "100/1s", `"match": {"paths": ["/allows"]}`, `"on_failure": {"local_for": "5s", "then": "allow"}`),
		limits("denies", "strict", "100/1s", `"match": {"paths": ["/denies"]}`, thenDeny),
		limits("idle", "leased", "100/1s", `"match": {"paths": ["/idle"]}`),
		limits("local", "local", "100/1s", `"match": {"paths": ["/local"]}`),
		limits("off", "leased", "100/1s", `"match": {"paths": ["/off"]}`, `"enforcement": "off"`),
	)})
	all := func(paths ...string) func() {
		n := 0
		return func() {
			if n++; w.now%(10*quantum) == 0 {
				for i, path := range paths {
					r := get("x-key", fmt.Sprint(n%7))
					r.Headers[1][1] = path
					w.request(0, (n+i)%3, r)
				}
			}
		}
	}
	everything := all("/shares", "/allows", "/denies", "/local")
	w.run(time.Second, everything)
	if len(w.plane.reports) != 0 || w.step() != policy.StepGround {
		t.Fatalf("on the ground: step %v, %+v", w.step(), w.plane.reports)
	}
	w.plane.silence()
	failed := w.now
	w.run(1500*time.Millisecond, everything)
	if got := w.plane.toldLast(); got != "deny map[allows:share denies:deny idle:leases shares:share]" {
		t.Errorf("after 1.5 s: %s", got)
	}
	if first := w.plane.reports[0].at - failed; first > 500*time.Millisecond {
		t.Errorf("first reported after %v", first)
	}
	if w.step() != policy.StepDeny {
		t.Errorf("the process is on %v", w.step())
	}
	w.run(5*time.Second, everything)
	const full = "deny map[allows:allow denies:deny idle:leases shares:share]"
	if got := w.plane.toldLast(); got != full {
		t.Errorf("after local_for: %s", got)
	}
	// It is reported again every ten seconds, also when no request comes any more.
	before := len(w.plane.reports)
	w.advance(30 * time.Second)
	if n := len(w.plane.reports) - before; n != 3 && n != 2 || w.plane.toldLast() != full {
		t.Errorf("%d reports in 30 s, at last %s", n, w.plane.toldLast())
	}
	// The way back needs no request either, and is reported once.
	w.plane.lease = nil
	before = len(w.plane.reports)
	w.advance(20 * time.Second)
	if n := len(w.plane.reports) - before; n > 2 || w.plane.toldLast() != "normal map[]" ||
		w.step() != policy.StepGround {
		t.Errorf("after the recovery: %d reports, at last %s; the process is on %v", n, w.plane.toldLast(), w.step())
	}
	for step := policy.StepGround; step < policy.Steps; step++ {
		entered, left := w.counter("ladder.entered_"+step.String()), w.counter("ladder.left_"+step.String())
		if entered != 1 || left != 1 {
			t.Errorf("%v was entered %d times and left %d times", step, entered, left)
		}
		if n := w.logged(0, "failure ladder: entered "+step.String()); n != 1 {
			t.Errorf("%v was logged %d times", step, n)
		}
	}
	for _, want := range []string{"entered leases after ", "(no answer in time)", ": denies", ": allows"} {
		if w.logged(0, want) == 0 {
			t.Errorf("the log lacks %q:\n%s", want, warnings(w.nodes[0]))
		}
	}
	if n := w.counter("reports.answered"); n != uint64(len(w.plane.reports)) {
		t.Errorf("%d reports counted, %d came", n, len(w.plane.reports))
	}
}

// While no control plane hears reports they are tried again, seldom, and the last one says where
// the node is by then.
func TestReportsFailSilently(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 2, set: setOf(limits("api", "leased", "100/1s", thenDeny))})
	w.plane.down = true
	n := 0
	w.run(20*time.Second, func() {
		n++
		w.request(0, n%2, get("x-key", fmt.Sprint(n)))
	})
	failed := w.counter("reports.failed")
	if failed < 4 || failed > 20 || w.logged(0, "report") != 0 {
		t.Errorf("%d reports failed, %d lines of the log", failed, w.logged(0, "report"))
	}
	w.plane.down = false
	w.advance(6 * time.Second)
	if w.plane.toldLast() != "normal map[]" || w.step() != policy.StepGround {
		t.Errorf("at last %s, on %v", w.plane.toldLast(), w.step())
	}
	if w.counter("leases.no_answer") == 0 {
		t.Error("calls without an answer are not counted")
	}
}

// What one worker has found out keeps the requests of the others from waiting; and once one of them
// is answered, all soon are.
func TestWorkersHearOfEachOthersFailures(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 4, set: setOf(limits("api", "leased", "100/1h", thenDeny))})
	w.plane.silence()
	for i := range 3 {
		w.ask(0, 0, get("x-key", fmt.Sprint(i)))
	}
	w.advance(20 * quantum) // a tick of worker 0, and one of the others
	calls := w.plane.requests
	for worker := 1; worker < 4; worker++ {
		if a := w.request(0, worker, get("x-key", "a")); !a.done || w.decision(a).reason != "failure" {
			t.Errorf("a request of worker %d waits", worker)
		}
	}
	if w.plane.requests != calls {
		t.Errorf("%d more calls", w.plane.requests-calls)
	}
	w.advance(time.Minute)
	for worker := range 4 {
		if a := w.request(0, worker, get("x-key", "a")); !a.done || a.passed {
			t.Errorf("after a minute a request of worker %d waits", worker)
		}
	}
	w.plane.lease = nil
	w.advance(3 * time.Second)
	for worker := range 4 {
		if a := w.ask(0, worker, get("x-key", "a")); !a.passed {
			t.Errorf("after the recovery worker %d decides %+v", worker, w.decision(a))
		}
	}
}

// No request finds out for the others that the control plane is back, or is not: while it is away
// none waits.
func TestNoRequestIsAProbe(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 2, set: setOf(limits("api", "strict", "1000000/1s", thenAllow))})
	w.plane.silence()
	n, waited := 0, 0
	each := func() {
		n++
		if a := w.request(0, n%2, get("x-key", fmt.Sprint(n%50))); !a.done {
			waited++
		}
	}
	w.run(500*time.Millisecond, each)
	waited = 0
	w.run(30*time.Second, each)
	if waited != 0 {
		t.Errorf("%d of %d requests waited for a control plane that is away", waited, n)
	}
	for _, g := range w.plane.granted {
		if g.item.Waiting+g.item.Keep == 0 && g.Grant.Waiting+g.Grant.Keep > 0 {
			t.Errorf("a probe was granted %+v", g)
		}
	}
	w.plane.lease = nil
	back := w.now
	w.run(4*time.Second, each)
	first := slices.IndexFunc(w.plane.granted, func(g granted) bool { return g.at > back && g.item.Waiting > 0 })
	if first < 0 || w.plane.granted[first].at-back > 3*time.Second {
		t.Errorf("%v after the recovery no worker asks", w.now-back)
	}
}

// A policy set that comes while the control plane has lost its store names other policies: reports
// are about those.
func TestAPushOnTheLadder(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 2,
		set: setOf(limits("one", "leased", "100/1s", thenDeny), limits("two", "leased", "100/1s", thenAllow))})
	w.plane.silence()
	each := func() { w.request(0, int(w.now/quantum)%2, get("x-key", fmt.Sprint(w.now%5))) }
	w.run(2*time.Second, each)
	if got := w.plane.toldLast(); !strings.HasPrefix(got, "deny map[one:deny") {
		t.Errorf("before: %s", got)
	}
	w.plane.push(setOf(limits("zero", "leased", "100/1s", `"on_failure": {"then": "local"}`)))
	w.run(2500*time.Millisecond, each)
	if got := w.plane.toldLast(); got != "share map[zero:share]" || w.step() != policy.StepShare {
		t.Errorf("after: %s, on %v", got, w.step())
	}
}
