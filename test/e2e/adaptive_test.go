package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// crowded is a service with a limited number of places, for which requests queue.
type crowded struct {
	places chan struct{}
	takes  time.Duration
	// report, if not empty, is the service's report about itself.
	report string
	// served counts by class.
	served [4]atomic.Int64
}

// classNames are the classes of the policy set, as in the header x-class.
var classNames = [4]string{"critical", "normal", "reads", "bulk"}

func (c *crowded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for class, name := range classNames {
		if r.Header.Get("x-class") == name {
			c.served[class].Add(1)
		}
	}
	c.places <- struct{}{}
	time.Sleep(c.takes)
	<-c.places
	if c.report != "" {
		w.Header().Set("endpoint-load-metrics", c.report)
	}
	w.WriteHeader(http.StatusOK)
}

const guarding = `
version: weir/v1
identity: {consumer: [{header: x-key}]}
priorities:
  - {name: critical, match: {headers: [{name: x-class, equals: critical, trusted: true}]}}
  - {name: normal, match: {headers: [{name: x-class, equals: normal}]}}
  - {name: reads, match: {headers: [{name: x-class, equals: reads}]}}
  - {name: bulk}
policies:
  - {name: worker, partition: [upstream], adaptive: {min: 10, max: 2000}, shed_by: [latency, orca], mode: local}
`

// offer sends requests of all classes: 5 % critical, 15 % normal, 30 % reads and 50 % bulk. It
// counts the sent requests.
func (w *world) offer(rate float64, clients int, during time.Duration, sent *[4]atomic.Int64) tally {
	share := [20]int{0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}
	return load{clients: clients, rate: rate, during: during, request: func(i int) *http.Request {
		class := share[i*7919/3%20]
		sent[class].Add(1)
		return request(http.MethodGet, w.envoys[0].URL()+"/", "x-class", classNames[class], "x-key", fmt.Sprint(i%997))
	}}.run(w.ctx)
}

// gauge reads a metric of the policy worker with its labels.
func (w *world) gauge(metric string) (n int64) {
	w.t.Helper()
	stats, err := w.envoys[0].Admin(w.ctx, "/stats/prometheus?filter=wasmcustom")
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(string(stats)) {
		if value, ok := strings.CutPrefix(line, metric+" "); ok {
			fmt.Sscan(value, &n)
		}
	}
	return n
}

// An upstream of 40 places gets three times the requests that it can serve. The lowest class is
// shed first, critical is served, and a push in the middle does not begin the limit anew. Neither
// before nor after is any request shed.
func TestAnUpstreamIsGuarded(t *testing.T) {
	service := &crowded{places: make(chan struct{}, 40), takes: 200 * time.Millisecond}
	w := start(t, setup{embedded: true, workers: 2, handler: service, policies: guarding})
	var sent [4]atomic.Int64
	w.offer(20, 10, 2*time.Second, &sent).mustBe(t, 200)

	over := make(chan tally)
	go func() { over <- w.offer(600, 400, 14*time.Second, &sent) }()
	time.Sleep(5 * time.Second)
	var sentBefore, servedBefore [4]int64
	for class := range classNames {
		sentBefore[class], servedBefore[class] = sent[class].Load(), service.served[class].Load()
	}
	time.Sleep(3 * time.Second)
	const limit = `weir_adaptive_limit{weir_policy="worker"}`
	before := w.gauge(limit)
	w.awaitApplied(w.apply(guarding +
		"  - {name: more, partition: [], limit: {quota: 1000000, window: 1m}, mode: local}\n"))
	least := before
	for range 10 {
		least = min(least, w.gauge(limit))
		time.Sleep(50 * time.Millisecond)
	}
	if before <= 20 || least < before/2 {
		t.Errorf("the limit was %d, and fell to %d with a new policy set", before, least)
	}
	got := <-over
	got.mustBe(t, 200, 503)
	if a := got.samples[503]; !strings.Contains(a.body, "#temporary-reduced-capacity") || a.Get("Retry-After") == "" {
		t.Errorf("shed with %v\n%s", a.Header, a.body)
	}
	var shed [4]float64
	for class := range classNames {
		came, passed := sent[class].Load()-sentBefore[class], service.served[class].Load()-servedBefore[class]
		shed[class] = 1 - float64(passed)/float64(came)
	}
	t.Logf("shed of %v: %.3f; limit %d", classNames, shed, before)
	if shed[0] > 0.02 || shed[3] < 0.5 || shed[1] > shed[2]+0.05 || shed[2] > shed[3]+0.05 {
		t.Errorf("shed of %v: %.3f", classNames, shed)
	}
	if n := w.gauge(`weir_shed_requests{weir_policy="worker",weir_class="bulk"}`); n == 0 {
		t.Error("the counter of requests of class bulk that were shed is 0")
	}

	time.Sleep(2 * time.Second)
	w.offer(20, 10, 2*time.Second, &sent).mustBe(t, 200)
	w.await("nothing in flight", func(context.Context) error {
		if n := w.gauge(`weir_in_flight_requests{weir_policy="worker"}`); n != 0 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}

// A service that says that it is busy is asked for less, though it is as quick as ever, and its
// critical requests are served.
func TestABusyReportSheds(t *testing.T) {
	t.Parallel()
	service := &crowded{places: make(chan struct{}, 40), report: "TEXT cpu_utilization=1.0"}
	w := start(t, setup{embedded: true, workers: 2, handler: service, policies: guarding})
	var sent [4]atomic.Int64
	w.offer(50, 20, 6*time.Second, &sent).mustBe(t, 200, 503)
	if critical, bulk := service.served[0].Load(), service.served[3].Load(); critical < sent[0].Load() ||
		bulk > sent[3].Load()*9/10 {
		t.Errorf("%d of %d critical were served, %d of %d of bulk", critical, sent[0].Load(), bulk, sent[3].Load())
	}
}
