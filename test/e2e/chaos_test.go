package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/weir-proxy/weir/tools/stack"
)

// The tests named TestChaos break real processes and the connections between them while clients go
// on, and check the admitted requests against the bounds of docs/internals/guarantees.md. `make
// test` runs the short form of the tests, `make chaos` the long form.
var long = flag.Bool("long", false, "let the tests named TestChaos run for minutes each, as `make chaos` does")

// either returns n in the short form of a test and more in the long form.
func either[T time.Duration | int](n, more T) T {
	if *long {
		return more
	}
	return n
}

// proxy is a TCP proxy that can be poisoned.
type proxy struct {
	t    *testing.T
	port int
	*toxiproxy.Proxy
}

func startProxy(t *testing.T, upstream string) *proxy {
	t.Helper()
	port, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return startProxyAt(t, "127.0.0.1", port, upstream)
}

func startProxyAt(t *testing.T, host string, port int, upstream string) *proxy {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &proxy{t, port, toxiproxy.NewProxy(server, t.Name(), fmt.Sprintf("%s:%d", host, port), upstream)}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

// attributes are the attributes of a toxic, by toxiproxy's names.
type attributes map[string]int

// poison adds a toxic to the answers through all connections, present and future, until heal.
func (p *proxy) poison(kind string, a attributes) {
	p.t.Helper()
	toxic, err := json.Marshal(map[string]any{"type": kind, "attributes": a})
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.Toxics.AddToxicJson(strings.NewReader(string(toxic))); err != nil {
		p.t.Fatal(err)
	}
}

func (p *proxy) heal() { p.Toxics.ResetToxics(context.Background()) }

// sendTo ends all connections and leads those to come somewhere else.
func (p *proxy) sendTo(upstream string) {
	p.t.Helper()
	p.Stop()
	p.Upstream = upstream
	if err := p.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// measured returns the filter's metrics of an Envoy now; they are up to 10 ms old, gauges of the
// leader up to 250.
func (w *world) measured(e *stack.Envoy) map[string]int64 {
	w.t.Helper()
	m, err := w.metricsOf(w.ctx, e)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// late returns the number of requests that the control plane answered too late, of policies that
// deny then, as happens on a busy machine. Each may have been granted a token, which is lost: one
// request fewer passes.
func (w *world) late() int64 {
	w.t.Helper()
	return w.overAll("decisions.by_failure_deny")
}

// overAll returns a counter of the filter, summed over all Envoys.
func (w *world) overAll(counter string) (n int64) {
	w.t.Helper()
	time.Sleep(20 * time.Millisecond) // Earlier counts are reported by now.
	for _, e := range w.envoys {
		n += w.measured(e)[counter]
	}
	return n
}

// difference returns the counts between two measurements.
func difference(after, before map[string]int64) map[string]int64 {
	d := map[string]int64{}
	for name, n := range after {
		if d[name] = n - before[name]; d[name] == 0 {
			delete(d, name)
		}
	}
	return d
}

// failedCalls returns the number of calls for tokens without a useful answer.
func failedCalls(m map[string]int64) int64 {
	return m["leases.no_answer"] + m["leases.unavailable"] + m["leases.unsent"]
}

// leaseItems returns the number of buckets that nodes have asked a control plane about since it
// started.
func (w *world) leaseItems(c *stack.ControlPlane) (n int64) {
	w.t.Helper()
	a, err := c.Call(w.ctx, http.MethodGet, "/metrics", nil)
	if err != nil || a.Status != http.StatusOK {
		w.t.Fatalf("GET /metrics: %d %s %v", a.Status, a.Body, err)
	}
	for line := range strings.Lines(string(a.Body)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(name,
			"weir_lease_items_total{") {
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				w.t.Fatal(err)
			}
			n += int64(f)
		}
	}
	return n
}

// awaitGround waits until the failure ladder of each Envoy is on the ground, and returns how long
// that took.
func (w *world) awaitGround() time.Duration {
	w.t.Helper()
	begin := time.Now()
	for _, e := range w.envoys {
		w.awaitMetrics(e, "the failure ladder to be left", func(m map[string]int64) bool {
			return m["ladder.step"] == 0
		})
	}
	return time.Since(begin)
}

// climbs returns the number of times that policies of an Envoy have climbed above their leases. It
// only grows, so that no climb is missed.
func climbs(m map[string]int64) int64 { return m["ladder.entered_share"] + m["ladder.entered_deny"] }

// awaitClimb has something happen that brings each Envoy above its leases, waits until it has, and
// returns how long that took.
func (w *world) awaitClimb(happen func()) time.Duration {
	w.t.Helper()
	before := map[*stack.Envoy]int64{}
	for _, e := range w.envoys {
		before[e] = climbs(w.measured(e))
	}
	begin := time.Now()
	happen()
	for _, e := range w.envoys {
		w.awaitMetrics(e, "the failure ladder to be taken", func(m map[string]int64) bool {
			return climbs(m) > before[e] || m["ladder.step"] >= 2 // A busy machine may have brought it there before.
		})
	}
	return time.Since(begin)
}

// crowd is a load of one policy on every Envoy.
type crowd struct {
	path  string
	loads []*background
}

// crowd sends rate requests a second to each Envoy until the crowd ends.
func (w *world) crowd(path string, rate float64) *crowd {
	c := &crowd{path: path}
	for _, e := range w.envoys {
		c.loads = append(c.loads, load{url: e.URL() + path, clients: 24, rate: rate}.background(w.ctx))
	}
	return c
}

func (c *crowd) end() tally {
	for _, l := range c.loads {
		l.cancel()
	}
	var all []tally
	for _, l := range c.loads {
		all = append(all, l.end())
	}
	return sum(all)
}

// mustHold checks the requests that a limit of a burst and a rate let through. The limit may let
// extra tokens through in addition. It must let through at least a share of the rate, so that a
// limit that refuses everything does not pass. mustHold returns the distance to the bound.
func mustHold(t *testing.T, what string, got tally, burst, rate, extra, share float64) (rest float64) {
	t.Helper()
	got.mustBe(t, 200, 429)
	earned := rate * got.last.Sub(got.first).Seconds()
	exact := burst + earned
	admitted := float64(got.statuses[200])
	t.Logf("%s: admitted %.0f of at most %.0f = %.0f + %.0f (%.1f %%): %s", what, admitted, exact+extra, exact, extra,
		100*admitted/(exact+extra), got)
	if admitted > exact+extra {
		t.Errorf("%s: admitted %.0f, above the bound %.0f", what, admitted, exact+extra)
	}
	if admitted < share*earned {
		t.Errorf("%s: admitted %.0f, under %.0f %% of the %.0f that the rate gave", what, admitted, 100*share, earned)
	}
	if got.statuses[429] == 0 {
		t.Errorf("%s: nothing was refused, so the limit was not tested", what)
	}
	return exact + extra - admitted
}

// quantile of some durations.
func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// took returns the times for which the requests of a load waited for their answers.
func (t tally) took() (all []time.Duration) {
	for _, a := range t.answers {
		all = append(all, a.took)
	}
	return all
}
