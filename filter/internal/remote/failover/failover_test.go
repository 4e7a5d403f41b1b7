package failover_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/report"
	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/filter/internal/remote/failover"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const ms = quota.Instant(quota.Millisecond)

// process is some workers of an Envoy over one shared store. The first leads, unless another does.
type process struct {
	t       *testing.T
	now     quota.Instant
	data    shareddatatest.Data
	workers []*worker
	leader  int
	lines   []string

	reports []wire.Ladder
	deaf    bool // reports get no answer
	refuse  error
	done    func(int, []byte)
}

type worker struct {
	*failover.Ladder
	reports *report.Reporter
	trouble failover.Trouble
	rules   ruleset.Rules
	heard   quota.Instant
	hasten  int
}

func (p *process) Now() quota.Instant  { return p.now }
func (p *process) Info(message string) { p.lines = append(p.lines, message) }
func (p *process) Warn(message string) { p.lines = append(p.lines, message) }

func (p *process) Call(_ string, body []byte, _ quota.Span, done func(int, []byte)) error {
	if p.refuse != nil {
		return p.refuse
	}
	m, err := wire.DecodeReport(append([]byte(nil), body...))
	if err != nil || string(m.Node) != "edge" || m.Boot != 7 || m.Sections() != 1<<wire.SectionLadder ||
		m.Ladder.Version != 3 {
		p.t.Errorf("the report %+v: %v", m, err)
	}
	if p.done = done; !p.deaf {
		p.reports = append(p.reports, *m.Ladder)
		done(204, nil)
	}
	return nil
}

// start makes workers with the policies p0, p1, … of a leased set, the last of them local.
func start(t *testing.T, workers, policies int) *process {
	t.Helper()
	p := &process{t: t, now: 1_000_000 * ms}
	for range workers {
		p.workers = append(p.workers, p.worker(policies))
	}
	return p
}

func (p *process) worker(policies int) *worker {
	text := ""
	for i := range policies {
		mode := "leased"
		if i == policies-1 {
			mode = "local"
		}
		text += fmt.Sprintf(`{"name": "p%d", "partition": [], "mode": %q, "limit": {"quota": 1, "window": "1s"}, "on_failure": [{"share": "1s"}, {"allow": "1s"}, "deny"]},`, i, mode)
	}
	doc, err := policy.ParseJSON([]byte(`{"version": "weir/v1", "policies": [` + strings.TrimSuffix(text, ",") + `]}`))
	if err != nil {
		p.t.Fatal(err)
	}
	set, err := policy.Decode(doc)
	if err != nil {
		p.t.Fatal(err)
	}
	w := &worker{Ladder: failover.New(&p.data, [4]byte{'t'}, p)}
	w.reports = report.New(p, p, "edge", 7, 9, report.Parts{wire.SectionLadder: w})
	if err := w.rules.Index.Load(wire.AppendSnapshot(nil, wire.Snapshot{Version: 3, Set: set})); err != nil {
		p.t.Fatal(err)
	}
	w.rules.Steps.Reset(policies)
	return w
}

// tick lets a time pass, in ticks of 10 ms.
func (p *process) tick(span quota.Instant) {
	for end := p.now + span; p.now < end; {
		p.now += 10 * ms
		for i, w := range p.workers {
			p.tickOne(i, w)
		}
	}
}

func (p *process) tickOne(i int, w *worker) {
	heard, hasten := w.Tick(p.now, w.trouble, &w.rules, i == p.leader)
	if w.heard = heard; hasten {
		w.hasten++
	}
	w.reports.Tick(p.now, &w.rules)
}

// fails has a worker's call fail once more, and succeed with its last probe.
func (p *process) fails(i int) {
	t := &p.workers[i].trouble
	if !t.Open {
		t.Open, t.Since = true, p.now
	}
	t.Times++
	t.How = rpc.NoAnswer
}

func (p *process) isAnswered(i int) { p.workers[i].trouble.Open = false }

func (p *process) note(i, policy int, step policy.Step) {
	s := &p.workers[i].rules.Steps
	s.At[policy], s.Changed = step, true
}

func (p *process) is(what string, worst policy.Step, lines ...string) {
	p.t.Helper()
	for i, w := range p.workers {
		if w.Worst() != worst {
			p.t.Errorf("%s: worker %d sees %v, want %v", what, i, w.Worst(), worst)
		}
	}
	for i := range p.lines {
		p.lines[i] = strings.TrimPrefix(p.lines[i], "weir: failure ladder: ")
	}
	if got, want := strings.Join(p.lines, "\n"), strings.Join(lines, "\n"); got != want {
		p.t.Errorf("%s: the log has\n%s\nwant\n%s", what, got, want)
	}
	p.lines = nil
}

func (p *process) wantReports(what, want string) {
	p.t.Helper()
	got := ""
	for _, r := range p.reports {
		got += fmt.Sprint(r.Worst)
		for _, s := range r.Steps {
			got += fmt.Sprint(" ", s.Policy, ":", s.Step)
		}
		got += "; "
	}
	if p.reports = nil; got != want {
		p.t.Errorf("%s: reported %q, want %q", what, got, want)
	}
}

// A failure from its first sign to its end, as the whole process sees it.
func TestAFailure(t *testing.T) {
	p := start(t, 3, 9)
	p.tick(1000 * ms)
	p.is("before", policy.StepGround)
	p.wantReports("before", "")
	p.fails(1)
	p.tick(20 * ms)
	p.is("begun", policy.StepLeases,
		"entered leases after 10 ms without an answer of the control plane (no answer in time)")
	p.wantReports("begun", "leases 0:leases 1:leases 2:leases 3:leases 4:leases 5:leases 6:leases 7:leases; ")
	if w := p.workers[2]; w.heard != p.now-20*ms {
		t.Errorf("worker 2 heard of %d", w.heard)
	}
	for i := range 7 {
		p.note(i%3, i, policy.StepShare)
	}
	p.note(2, 0, policy.StepShare)
	p.tick(1000 * ms)
	p.is("shares", policy.StepShare, "entered share after 30 ms without an answer of the control plane: p0, p3, p6")
	p.wantReports("shares", "share 0:share 1:share 2:share 3:share 4:share 5:share 6:share 7:leases; ")
	for i := range 7 {
		p.note(1, i, policy.StepDeny)
	}
	p.note(0, 3, policy.StepShare) // A worker that lags.
	p.tick(2000 * ms)
	p.is("denies", policy.StepDeny,
		"left share after 1030 ms without an answer of the control plane",
		"entered deny after 1030 ms without an answer of the control plane (no answer in time): p0, p1, p2, p3, p4 "+
			"and 2 more")
	p.wantReports("denies", "deny 0:deny 1:deny 2:deny 3:deny 4:deny 5:deny 6:deny 7:leases; ")
	p.fails(1)
	p.isAnswered(1)
	p.tick(1000 * ms)
	p.is("over", policy.StepGround,
		"entered normal after 3030 ms without an answer of the control plane",
		"left leases after 3030 ms without an answer of the control plane",
		"left deny after 3030 ms without an answer of the control plane")
	p.wantReports("over", "normal; ")
	for i, w := range p.workers {
		if w.heard != 0 {
			t.Errorf("worker %d still hears of a failure", i)
		}
		for j, s := range w.rules.Steps.At {
			if s != policy.StepGround {
				t.Errorf("worker %d keeps policy %d on %v", i, j, s)
			}
		}
	}
	p.tick(60_000 * ms)
	p.wantReports("a minute later", "")
	// The next failure starts from the ground.
	p.fails(2)
	p.note(2, 1, policy.StepAllow)
	p.tick(20 * ms)
	p.is("again", policy.StepAllow,
		"entered leases after 10 ms without an answer of the control plane (no answer in time)",
		"entered allow after 10 ms without an answer of the control plane (no answer in time): p1")
}

// A worker that is answered ends it for all. A worker that is not answered looks at once, and
// reports it if it fails again.
func TestAWorkerThatFailsLonger(t *testing.T) {
	p := start(t, 2, 3)
	p.fails(0)
	p.fails(1)
	p.note(1, 0, policy.StepShare)
	p.tick(100 * ms)
	p.isAnswered(0)
	p.tick(100 * ms)
	if p.workers[1].hasten != 1 || p.workers[0].hasten != 0 || p.workers[1].Worst() != policy.StepGround {
		t.Fatalf("the other worker looks %d times, on %v", p.workers[1].hasten, p.workers[1].Worst())
	}
	p.fails(1)
	p.tick(100 * ms)
	if p.workers[0].Worst() != policy.StepShare || p.workers[1].hasten != 1 {
		t.Errorf("it fails still: on %v", p.workers[0].Worst())
	}
	p.isAnswered(1)
	p.tick(100 * ms)
	if p.workers[0].Worst() != policy.StepGround {
		t.Errorf("at last on %v", p.workers[0].Worst())
	}
}

// A worker that has ended leaves no trouble behind; a living worker renews its trouble.
func TestAFailureMustBeConfirmed(t *testing.T) {
	p := start(t, 3, 2)
	p.fails(2)
	for range 10 {
		p.tick(2000 * ms)
		p.fails(2)
	}
	p.tick(10 * ms)
	if p.workers[0].Worst() != policy.StepLeases {
		t.Fatalf("with a living worker that fails: %v", p.workers[0].Worst())
	}
	p.workers = p.workers[:2]
	p.tick(4020 * ms)
	if p.workers[0].Worst() != policy.StepGround || p.workers[1].heard != 0 {
		t.Errorf("its worker is gone for 4 s: %v", p.workers[0].Worst())
	}
}

// One failed call takes its request to the ladder, but is no failure of the control plane.
func TestASingleFailureIsNone(t *testing.T) {
	p := start(t, 2, 2)
	p.note(0, 0, policy.StepShare)
	p.tick(100 * ms)
	p.is("one request", policy.StepGround)
	if p.data.Len() != 0 || p.workers[0].rules.Steps.At[0] != policy.StepGround {
		t.Error("it left something behind")
	}
}

// Off the ground the leader tells every ten seconds; a new leader goes on, also with the good news.
func TestReportsAreRepeated(t *testing.T) {
	p := start(t, 2, 2)
	p.fails(0)
	for range 31 {
		p.tick(1000 * ms)
		p.fails(0)
	}
	p.wantReports("in 31 s", strings.Repeat("leases 0:leases; ", 4))
	p.deaf = true
	p.isAnswered(0)
	p.tick(100 * ms)
	p.leader, p.deaf = 1, false // The first leader is gone with its report.
	p.tick(100 * ms)
	p.wantReports("the new leader", "normal; ")
}

// A report that cannot be sent is tried again after growing pauses, and then the newest is sent.
func TestReportsThatFail(t *testing.T) {
	p := start(t, 1, 2)
	p.refuse = errors.New("no healthy host")
	p.fails(0)
	for range 10 {
		p.tick(1000 * ms)
		p.fails(0)
	}
	if n := p.workers[0].reports.Failed[wire.SectionLadder]; n < 10 || n > 20 {
		t.Errorf("%d tries in 10 s", n)
	}
	p.refuse = nil
	p.note(0, 0, policy.StepShare)
	p.isAnswered(0)
	p.tick(2010 * ms)
	p.wantReports("at last", "normal; ")
	if p.workers[0].reports.Taken[wire.SectionLadder] != 1 {
		t.Errorf("%d arrived", p.workers[0].reports.Taken[wire.SectionLadder])
	}
}

// However workers come between each other, each step is entered and left once.
func TestWorkersWriteAtOnce(t *testing.T) {
	p := start(t, 4, 5)
	within := false
	p.data.Before = func(op string, _ []byte) {
		if op == "set" && !within { // All others tick just before a worker stores.
			within = true
			for i, w := range p.workers[1:] {
				p.tickOne(i+1, w)
			}
			within = false
		}
	}
	for i := range p.workers {
		p.fails(i)
		p.note(i, i, policy.StepShare)
	}
	p.tick(50 * ms)
	p.wantReports("all fail", "share 0:share 1:share 2:share 3:share; ")
	for i := range p.workers {
		p.isAnswered(i)
	}
	p.tick(100 * ms)
	var entered, left [policy.Steps]uint64
	for _, w := range p.workers {
		for s := range policy.Steps {
			entered[s] += w.Entered[s]
			left[s] += w.Left[s]
		}
	}
	if want := [policy.Steps]uint64{1, 1, 1}; entered != want || left != want {
		t.Errorf("entered %v, left %v", entered, left)
	}
}

// Bytes that are no record, as another version might leave them, count as the ground.
func TestDamage(t *testing.T) {
	p := start(t, 1, 3)
	p.data.Put([]byte{'t', 0, 0, 0, 'f'}, []byte("damage"))
	p.tick(10 * ms)
	p.is("damaged", policy.StepGround)
	p.fails(0)
	p.note(0, 1, policy.StepShare)
	p.tick(10 * ms)
	if p.workers[0].Worst() != policy.StepShare {
		t.Errorf("then on %v", p.workers[0].Worst())
	}
}
