package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
)

// inHand has two limits. An Envoy that gets many requests for the first holds tokens for a second,
// good for four. Every request for the second asks the control plane.
const inHand = `
version: weir/v1
policies:
  - name: hot
    match: {paths: [/hot]}
    partition: []
    limit: {quota: 80000, window: 80s}
    mode: leased
    on_failure: {then: deny}
  - name: miss
    match: {paths: [/miss]}
    partition: []
    limit: {quota: 100000, window: 1s}
    mode: strict
    on_failure: {then: deny}
` + within

// trouble is something between an Envoy and the control plane.
type trouble struct {
	name          string
	inflict, heal func()
	// slower is the least delay that the trouble adds to most answers of the control plane, if they
	// come at all; 0 if the trouble may go unnoticed.
	slower time.Duration
}

// toxics returns the troubles that a network can have, by toxiproxy's names.
func toxics(where string, p *proxy) (all []trouble) {
	for _, x := range []struct {
		name, kind string
		attributes
		slower time.Duration
	}{
		{"latency 100 ms", "latency", attributes{"latency": 100}, 100 * time.Millisecond},
		{"jitter 20 ± 15 ms", "latency", attributes{"latency": 20, "jitter": 15}, 5 * time.Millisecond},
		{"1 KB/s", "bandwidth", attributes{"rate": 1}, 5 * time.Millisecond},
		{"reset", "reset_peer", attributes{"timeout": 0}, time.Hour},
		{"black hole", "timeout", attributes{"timeout": 0}, time.Hour},
		{"slow close", "slow_close", attributes{"delay": 1000}, 0},
	} {
		all = append(all, trouble{where + ": " + x.name, func() { p.poison(x.kind, x.attributes) }, p.heal, x.slower})
	}
	return all
}

// latencies of the requests of one kind.
type latencies struct{ good, bad []time.Duration }

func (l latencies) String() string {
	return fmt.Sprintf("p50 %v, p99 %v before; p50 %v, p99 %v, at most %v in trouble",
		quantile(l.good, 0.5), quantile(l.good, 0.99), quantile(l.bad, 0.5), quantile(l.bad, 0.99), quantile(l.bad, 1))
}

// Whatever happens between an Envoy and the control plane, or to the control plane: a request whose
// Envoy has a token in hand is decided by it and does not wait. All other requests wait until their
// deadline at most, and then their policy's failure ladder decides.
func TestChaosNoRequestWaitsWithALeaseInHand(t *testing.T) {
	t.Parallel()
	var toPlane *proxy
	w := start(t, setup{envoys: 2, alone: true, ways: func(_ string, port int) []int {
		if toPlane == nil {
			toPlane = startProxy(t, fmt.Sprintf("127.0.0.1:%d", port))
		}
		return []int{toPlane.port}
	}})
	w.redis = redistest.Start(t, "--appendonly", "yes")
	toRedis := startProxy(t, w.redis.Addr())
	w.serve.RedisURL = fmt.Sprintf("redis://127.0.0.1:%d/0", toRedis.port)
	w.startControlPlane()
	w.awaitApplied(w.apply(inHand))
	all := append(toxics("Envoy to control plane", toPlane), toxics("control plane to Redis", toRedis)...)
	all = append(all,
		trouble{"Redis killed", w.redis.Kill, w.redis.Restart, time.Hour},
		trouble{"control plane killed", func() { w.controlPlane.Kill() }, w.startControlPlane, time.Hour})
	var hot, miss latencies
	callers := w.withinLimits(w.envoys[1]) // The first one's requests are counted.
	for range either(1, 10) {
		for i, x := range all {
			if i%2 == 0 {
				w.calm(&hot, &miss)
			}
			w.disturb(x, &hot, &miss)
		}
	}
	noneRefused(t, "between Envoy and the control plane", callers)
	t.Logf("with a lease in hand: %v", hot)
	t.Logf("without: %v", miss)
}

// calm measures a moment without trouble.
func (w *world) calm(hot, miss *latencies) {
	w.t.Helper()
	w.awaitGround()
	w.lease()
	good := w.moment()
	good.hold(w.t, "without trouble")
	hot.good, miss.good = append(hot.good, good.hot.took()...), append(miss.good, good.miss.took()...)
}

// disturb measures a moment of trouble.
func (w *world) disturb(x trouble, hot, miss *latencies) {
	w.t.Helper()
	w.awaitGround()
	w.lease()
	x.inflict()
	bad := w.moment()
	x.heal()
	bad.hold(w.t, x.name)
	hot.bad, miss.bad = append(hot.bad, bad.hot.took()...), append(miss.bad, bad.miss.took()...)
	w.t.Logf("%s: %d calls failed; requests without a lease: %v, at most %v", x.name, failedCalls(bad.counts), bad.miss,
		quantile(bad.miss.took(), 1))
	if failedCalls(bad.counts)+bad.counts["decisions.by_failure_deny"] == 0 &&
		quantile(bad.miss.took(), 0.5) < x.slower {
		w.t.Errorf("%s: it did not happen: %v, %v", x.name, bad.counts, bad.miss)
	}
}

// lease returns as soon as the Envoy has leased anew for more requests than a moment has.
func (w *world) lease() {
	w.t.Helper()
	e := w.envoys[0]
	prime := load{url: e.URL() + "/hot", clients: 8, rate: 300}.background(w.ctx)
	time.Sleep(500 * time.Millisecond) // Until the Envoy knows the demand.
	before := w.measured(e)["leases.answered"]
	w.awaitMetrics(e, "a new lease", func(m map[string]int64) bool { return m["leases.answered"] > before })
	prime.end().mustBe(w.t, 200, 429) // On a busy machine calls may be late at first.
}

// moment is the outcome of some requests with a lease in hand and without.
type moment struct {
	hot, miss tally
	counts    map[string]int64
}

func (w *world) moment() (m moment) {
	w.t.Helper()
	e := w.envoys[0]
	time.Sleep(20 * time.Millisecond) // Earlier counts are reported by now.
	before := w.measured(e)
	during := either(500*time.Millisecond, time.Second)
	tallies := together(w.ctx,
		load{url: e.URL() + "/hot", clients: 8, rate: 150, during: during, keep: true},
		load{url: e.URL() + "/miss", clients: 8, rate: 40, during: during, keep: true})
	m.hot, m.miss = tallies[0], tallies[1]
	total := int64(len(m.hot.answers) + len(m.miss.answers))
	after := w.awaitMetrics(e, "every request to be counted", func(now map[string]int64) bool {
		return now["requests.allowed"]+now["requests.refused"]-before["requests.allowed"]-before["requests.refused"] >=
			total
	})
	m.counts = difference(after, before)
	return m
}

// hold checks that a lease allowed every request with a lease in hand, and that only requests
// without a lease have waited. Some of them may find a token for which an earlier request has
// waited in vain.
func (m moment) hold(t *testing.T, what string) {
	t.Helper()
	m.hot.mustBe(t, 200)
	m.miss.mustBe(t, 200, 429)
	hot, miss := int64(len(m.hot.answers)), int64(len(m.miss.answers))
	if hot == 0 || miss == 0 || m.counts["decisions.by_lease"] < hot || m.counts["requests.waited"] > miss {
		t.Errorf("%s: of %d requests with a lease in hand and %d others, %d were decided by it and %d waited: %v",
			what, hot, miss, m.counts["decisions.by_lease"], m.counts["requests.waited"], m.counts)
	}
}
