package scenariotest

import (
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
	"github.com/weir-proxy/weir/shared/wire"
)

// Latency is how long a message to the control plane takes, and one from it.
const Latency = time.Millisecond

// process drives the filter's code in Go.
type process struct {
	*filtertest.Process
	t       *testing.T
	plane   *Plane
	workers int
	now     quota.Instant
	due     vtimetest.Queue[quota.Instant]
	// gathers are workers that must send their gathered calls.
	gathers map[int]bool
	calls   int
	version uint64
	asked   []*asked
}

// asked is a request at a process.
type asked struct {
	of      *process
	worker  int
	stream  uint32
	decided bool
	outcome Outcome
}

// StartProcess starts a node of the filter's code in Go.
func StartProcess(t *testing.T, s Scenario) Driver {
	p := &process{t: t, workers: max(s.Workers, 1), now: quota.Instant(1000 * quota.Second), gathers: map[int]bool{}}
	p.plane = NewPlane(func() quota.Instant { return 1<<50 + p.now })
	p.Process = filtertest.Start(filtertest.Options{
		Name: "node", Boot: 1, Random: 1, Workers: p.workers, Answers: true,
		Now: func() quota.Instant { return p.now },
		Call: func(_ int, body []byte, timeout quota.Span, done func(int, []byte)) error {
			return p.call(body, timeout, done)
		},
		Decided: p.decided,
		Gathers: func(worker int) { p.gathers[worker] = true },
	})
	return p
}

func (p *process) Plane() *Plane { return p.plane }
func (p *process) Calls() int    { return p.calls }

func (p *process) after(d time.Duration, fire func()) {
	p.due.Add(p.now+quota.Instant(d.Microseconds()), fire)
}

// call takes a request to the control plane. It ends with the answer, or at its timeout without.
func (p *process) call(body []byte, timeout quota.Span, end func(int, []byte)) error {
	p.calls++
	req, err := wire.DecodeLeaseRequest(body)
	if err != nil {
		return err
	}
	var once sync.Once
	done := func(status int, reply []byte) { once.Do(func() { end(status, reply) }) }
	p.after(time.Duration(timeout)*time.Microsecond, func() { done(0, nil) })
	if p.plane.Status < 0 {
		return nil
	}
	p.after(Latency, func() {
		status, reply := p.plane.Status, []byte(nil)
		if status == 0 {
			status, reply = 200, wire.AppendLeaseReply(nil, p.plane.Grant(0, req))
		}
		p.after(Latency, func() { done(status, reply) })
	})
	return nil
}

func (p *process) Push(set string) {
	p.version++
	decoded := Decode(p.t, set)
	p.plane.Push(p.version, decoded)
	for worker := range p.workers {
		snapshot := wire.AppendSnapshot(nil, wire.Snapshot{Version: p.version, Set: decoded})
		if err := p.Apply(worker, snapshot, p.version); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *process) Advance(d time.Duration) {
	const step = quota.Instant(quota.Millisecond)
	for end := p.now + quota.Instant(d.Microseconds()); p.now < end; {
		p.now = min(p.now+step, end)
		for worker := range p.gathers {
			delete(p.gathers, worker)
			p.Flush(worker)
		}
		for e, ok := p.due.Next(p.now); ok; e, ok = p.due.Next(p.now) {
			e.Fire()
		}
		for worker := range p.workers {
			if p.now%(10*step) == 0 || p.NextDue(worker) <= p.now {
				p.Tick(worker)
			}
		}
	}
}

func (p *process) Ask(worker int, headers ...string) Request {
	a := &asked{of: p, worker: worker, stream: uint32(len(p.asked))}
	p.asked = append(p.asked, a)
	if !p.Request(worker, a.stream, "/v1/items", headers...) {
		a.decided = true
	}
	return a
}

func (p *process) decided(d filtertest.Decision) {
	a := p.asked[d.Stream]
	a.decided = true
	a.outcome = Outcome{Log: d.Answer.Log, Status: int(d.Answer.Status),
		Header: func(name string) string { return d.Answer.Headers[name] }}
}

func (a *asked) Outcome() (Outcome, bool) {
	return a.outcome, a.decided && !a.of.Delayed(a.worker, a.stream)
}

func (a *asked) End(status string, headers ...string) {
	a.of.Respond(a.worker, a.stream, status, headers...)
}

// Leave withdraws the request, or breaks its response off.
func (a *asked) Leave() {
	a.of.Cancel(a.worker, a.stream)
	a.of.Process.End(a.worker, a.stream)
}
