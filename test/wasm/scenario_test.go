package wasm

import (
	"strconv"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/filter/scenariotest"
	"github.com/weir-proxy/weir/shared/wire"
)

// Timelines that the filter's code in Go plays, too (filter/internal/decide/limiter).
func TestScenarios(t *testing.T) {
	scenariotest.Run(t, scenariotest.All(), func(t *testing.T, s scenariotest.Scenario) scenariotest.Driver {
		w := newWorld(t, fleet{nodes: 1, workers: s.Workers, up: scenariotest.Latency, down: scenariotest.Latency})
		w.plane.lease = func(call *envoytest.Call, _ wire.LeaseRequest) bool {
			if w.plane.Status > 0 {
				call.Respond(w.fleet.up+w.fleet.down, w.plane.Status, nil, nil)
			}
			return w.plane.Status != 0
		}
		return node{w}
	})
}

// node is the built module as scenarios drive it.
type node struct{ *world }

func (n node) Plane() *scenariotest.Plane { return n.plane.Plane }
func (n node) Calls() int                 { return n.plane.requests }
func (n node) Push(set string)            { n.plane.push(set) }
func (n node) Advance(d time.Duration)    { n.advance(d) }

func (n node) Counted(name string) uint64 { return counter(n.nodes[0], name) }

func (n node) Ask(worker int, headers ...string) scenariotest.Request {
	return asked{n.nodes[0].Worker(worker).Request(get(headers...))}
}

// asked is a request of a scenario.
type asked struct{ stream *envoytest.Stream }

func (a asked) Outcome() (o scenariotest.Outcome, done bool) {
	log, _ := a.stream.FilterState("wasm.weir.decision")
	o.Log = string(log)
	switch a.stream.State() {
	case envoytest.Paused:
		return o, false
	case envoytest.Failed:
		o.Log = "failed" // Its VM has trapped.
	}
	o.Status = 200
	if reply := a.stream.Reply(); reply != nil {
		o.Status = reply.Status
	}
	o.Header = func(name string) string {
		a.End("200") // The client has no header before.
		return a.stream.Reply().Header(name)
	}
	return o, true
}

func (a asked) End(status string, headers ...string) {
	if a.stream.State() != envoytest.Continued {
		return
	}
	code, _ := strconv.Atoi(status)
	var all [][2]string
	for i := 0; i < len(headers); i += 2 {
		all = append(all, [2]string{headers[i], headers[i+1]})
	}
	a.stream.Respond(code, all)
}

func (a asked) Leave() { a.stream.Cancel() }

// A request that a VM fails for is no request without a limit.
func TestAFailedRequestIsNoOutcome(t *testing.T) {
	var tr trap
	w := newWorld(t, fleet{
		nodes: 1, fail: envoytest.FailReload, onShared: tr.hook, set: setOf(limits("p", "local", "9/1h")),
	})
	tr = trap{armed: true, vm: 0}
	if o, done := (node{w}).Ask(0, "x-key", "a").Outcome(); o.Log != "failed" || !done {
		t.Errorf("%q, done %v", o.Log, done)
	}
}
