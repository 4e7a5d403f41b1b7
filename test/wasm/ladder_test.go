package wasm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// report is a node's report about its failure ladder: the worst step, and policies by name.
type report struct {
	node  int
	at    time.Duration
	worst policy.Step
	steps map[string]string
}

// handleReport takes in a report, section by section.
func (c *plane) handleReport(node int, call *envoytest.Call) {
	m, err := wire.DecodeReport(append([]byte(nil), call.Body...))
	if err != nil || string(m.Node) != fmt.Sprint("node-", node) || m.Boot == 0 {
		c.w.t.Errorf("a report: %+v: %v", m, err)
		return
	}
	if m.Decisions != nil {
		c.hearDecisions(call, len(call.Body), m.Decisions)
	}
	if m.Measures != nil {
		c.hearMeasures(m.Measures)
	}
	if m.Offences != nil {
		c.offences++
	}
	if m.Ladder != nil && !c.down {
		c.hearLadder(node, m.Ladder)
	}
	switch {
	case c.down:
	case c.unjust && m.Offences != nil:
		call.Respond(c.w.fleet.down, 202, nil, nil)
	default:
		call.Respond(c.w.fleet.down, 204, nil, nil)
	}
}

func (c *plane) hearLadder(node int, m *wire.Ladder) {
	if m.Version != c.Version {
		c.w.t.Errorf("a ladder of version %d: %+v", m.Version, m)
		return
	}
	r := report{node: node, at: c.w.now, worst: m.Worst, steps: map[string]string{}}
	for _, s := range m.Steps {
		r.steps[c.Sets[m.Version].Policies[s.Policy].Name] = s.Step.String()
	}
	c.reports = append(c.reports, r)
}

// lastReport returns the last report as text.
func (c *plane) lastReport() string {
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
	if got := w.plane.lastReport(); got != "deny map[allows:share denies:deny idle:leases shares:share]" {
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
	if got := w.plane.lastReport(); got != full {
		t.Errorf("after local_for: %s", got)
	}
	// It is reported again every ten seconds, also when no request comes any more.
	before := len(w.plane.reports)
	w.advance(30 * time.Second)
	if n := len(w.plane.reports) - before; n != 3 && n != 2 || w.plane.lastReport() != full {
		t.Errorf("%d reports in 30 s, at last %s", n, w.plane.lastReport())
	}
	// The way back needs no request either, and is reported once.
	w.plane.lease = nil
	before = len(w.plane.reports)
	w.advance(20 * time.Second)
	if n := len(w.plane.reports) - before; n > 2 || w.plane.lastReport() != "normal map[]" ||
		w.step() != policy.StepGround {
		t.Errorf("after the recovery: %d reports, at last %s; the process is on %v", n, w.plane.lastReport(), w.step())
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

// A policy set that comes while the control plane has lost its store names other policies: reports
// are about those.
func TestAPushOnTheLadder(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 2,
		set: setOf(limits("one", "leased", "100/1s", thenDeny), limits("two", "leased", "100/1s", thenAllow))})
	w.plane.silence()
	each := func() { w.request(0, int(w.now/quantum)%2, get("x-key", fmt.Sprint(w.now%5))) }
	w.run(2*time.Second, each)
	if got := w.plane.lastReport(); !strings.HasPrefix(got, "deny map[one:deny") {
		t.Errorf("before: %s", got)
	}
	w.plane.push(setOf(limits("zero", "leased", "100/1s", `"on_failure": {"then": "local"}`)))
	w.run(2500*time.Millisecond, each)
	if got := w.plane.lastReport(); got != "share map[zero:share]" || w.step() != policy.StepShare {
		t.Errorf("after: %s, on %v", got, w.step())
	}
}
