package wasm

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
)

// finding returns a policy set with an adaptive limit.
func finding(fields string) string {
	return setOf(`{"name": "worker", "partition": [], "mode": "local", ` + fields + `}`)
}

// answerAll sends 50 requests a second for some seconds to the workers in turn, each answered after
// 20 ms.
func (f *flight) answerAll(seconds int, headers [][2]string, status int) {
	for i := range seconds * 50 {
		for f.begin(i % f.host.Workers()); len(f.open) > 0; {
			s := f.open[0]
			f.open = f.open[1:]
			f.host.Advance(20 * time.Millisecond)
			s.Respond(status, headers)
		}
	}
}

func (f *flight) metric(name string, want uint64) {
	f.t.Helper()
	if got, _ := f.host.Metric("weir.policy.worker." + name); got != want {
		f.t.Errorf("%s is %d, want %d", name, got, want)
	}
}

// Answers of the upstream raise the limit, of all workers together, and a new configuration does
// not begin it anew. Errors and answers of Envoy itself raise nothing.
func TestALimitThatFindsItself(t *testing.T) {
	small := finding(`"adaptive": {"min": 2, "max": 100}`)
	f := &flight{t: t, host: start(t, envoytest.Options{Workers: 2, PluginConfig: alone(small)})}
	if n := f.fill(0); n != 2 {
		t.Errorf("%d at first, want 2", n)
	}
	reply := f.host.Worker(1).Request(get()).Reply()
	if reply == nil || reply.Status != 503 || reply.Header("retry-after") == "" || reply.Header("ratelimit") != "" {
		t.Errorf("%+v", reply)
	}
	f.endAll()
	f.answerAll(3, nil, 500)
	f.metric("adaptive.limit", 2)
	f.answerAll(3, nil, 200)
	if err := f.host.UpdatePlugin(alone(finding(`"adaptive": {"min": 2, "max": 90}, "response": {"status": 430}`))); err != nil {
		t.Fatal(err)
	}
	f.host.Advance(30 * time.Millisecond)
	found := uint64(f.fill(1))
	f.endAll()
	f.host.Advance(30 * time.Millisecond)
	if found < 4 {
		t.Errorf("the limit is %d", found)
	}
	f.metric("adaptive.limit", found)
	f.metric("in_flight.requests", 0)
	if n, _ := f.host.Metric("weir.policy.worker.class.all.shed.requests"); n < 3 {
		t.Errorf("%d were shed", n)
	}
}

// An upstream that says that it is busy is asked for less.
func TestAReportOfTheUpstream(t *testing.T) {
	config := alone(finding(`"adaptive": {"min": 20, "max": 100}, "shed_by": ["latency", "orca"]`))
	for header, sheds := range map[string]bool{"TEXT cpu_utilization=1": true, `JSON {"cpu_utilization":1}`: true, "TEXT cpu_utilization=0.1": false} {
		h := start(t, envoytest.Options{Workers: 1, PluginConfig: config})
		for i := range 300 {
			r := get()
			r.Source = fmt.Sprintf("10.0.0.%d:4000", i%100) // Each caller is shed or not.
			s := h.Worker(0).Request(r)
			h.Advance(20 * time.Millisecond)
			if s.State() == envoytest.Continued {
				s.Respond(200, [][2]string{{"endpoint-load-metrics", header}})
			}
		}
		if n, _ := h.Metric("weir.policy.worker.class.all.shed.requests"); n > 50 != sheds || !sheds && n > 0 {
			t.Errorf("%s: %d were shed", header, n)
		}
	}
}
