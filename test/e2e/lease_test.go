package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// overloadClients is the number of clients that load one Envoy.
const overloadClients = 32

// overload sends to every Envoy of a world, for a time, more requests than all of them may let
// through. It returns the outcome of all requests together and by Envoy.
func overload(w *world, path string, rate float64, during time.Duration) (all tally, each []tally) {
	var loads []load
	for _, e := range w.envoys {
		loads = append(loads, load{url: e.URL() + path, clients: overloadClients, rate: rate, during: during})
	}
	each = together(w.ctx, loads...)
	return sum(each), each
}

// mustAdmit checks the admitted requests against two bounds. The upper bound is burst + rate·t,
// from the first request sent to the last answer, the longest possible time. The lower bound is a
// share of the requests that a perfect bucket would have admitted. The bucket gets the requests
// that were really sent, at their times: a machine that is too busy to send them lowers the bound.
func mustAdmit(t *testing.T, got tally, burst, rate, share float64) {
	t.Helper()
	if *quick {
		share -= 0.1 // The start weighs more.
	}
	mustAdmitBut(t, got, burst, rate, share, 0)
}

// mustAdmitBut checks the same as mustAdmit, except for some tokens.
func mustAdmitBut(t *testing.T, got tally, burst, rate, share, spare float64) {
	t.Helper()
	got.mustBe(t, 200, 429)
	bound := burst + rate*got.last.Sub(got.first).Seconds()
	admitted := float64(got.statuses[200])
	ideal := perfect(got.sent, burst, rate)
	t.Logf("admitted %.0f of at most %.0f, a perfect bucket %.0f (%.2f %%), %.0f may lack: %s",
		admitted, bound, ideal, 100*admitted/ideal, spare, got)
	if admitted > bound {
		t.Errorf("admitted %.0f, above the bound %.1f", admitted, bound)
	}
	if least := share*ideal - underWay - spare; admitted < least {
		t.Errorf("admitted %.0f, under %.0f: %.0f %% of a perfect bucket", admitted, least, 100*share)
	}
}

// mustLend checks the requests that the Envoys of a world have let through, by leases or by asking
// for each request, against docs/internals/guarantees.md: 98 % of a perfect bucket. Two kinds of
// tokens are not lost. The first are tokens in hand at the end, which last for half the life of a
// lease. The second are tokens of requests for which a busy machine has answered too late: a token
// for each request that was held for longer than Envoys ask ahead. If it answers much too late,
// shares let requests through beside the limit, and are charged later.
func (w *world) mustLend(got tally, burst, rate float64) {
	w.t.Helper()
	const exact, inHand = 0.98, 0.1
	shares := float64(w.decidedByShare())
	mustAdmitBut(w.t, got, burst+shares, rate, exact, inHand*rate+w.heldLong()+2*shares)
}

// heldLong returns the number of requests that the Envoys have held for longer than 25 ms.
func (w *world) heldLong() (n float64) {
	for _, e := range w.envoys {
		stats, err := e.Admin(w.ctx, "/stats/prometheus")
		if err != nil {
			w.t.Fatal(err)
		}
		var all, soon float64
		for line := range strings.Lines(string(stats)) {
			_, _ = fmt.Sscanf(line, `weir_hold_milliseconds_bucket{le="25"} %f`, &soon)
			_, _ = fmt.Sscanf(line, `weir_hold_milliseconds_count{} %f`, &all)
		}
		n += all - soon
	}
	return n
}

// underWay is how many requests of an overload may be on their way to the Envoys. A bucket that
// sees requests arrive can differ by this number from a bucket that sees them leave.
const underWay = 2 * overloadClients

// perfect returns the number of requests that a perfect token bucket admits: it starts full, and
// sees each request when it is sent.
func perfect(sent []time.Time, burst, rate float64) (admitted float64) {
	slices.SortFunc(sent, time.Time.Compare)
	tokens := burst
	for i, at := range sent {
		if i > 0 {
			tokens = min(burst, tokens+rate*at.Sub(sent[i-1]).Seconds())
		}
		if tokens >= 1 {
			tokens--
			admitted++
		}
	}
	return admitted
}

func TestLeasedLimitsHoldOverAllEnvoys(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 2, policies: `
version: weir/v1
policies:
  - name: everyone
    match: {paths: [/leased]}
    partition: []
    limit: {quota: 1000, window: 1s}
    mode: leased
`})
	all, _ := overload(w, "/leased", 1500, full(30*time.Second))
	w.mustLend(all, 1000, 1000)
}

func TestStrictLimitsHoldOverAllEnvoys(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 2, policies: `
version: weir/v1
policies:
  - name: everyone
    match: {paths: [/strict]}
    partition: []
    limit: {quota: 100, window: 1s}
    mode: strict
`})
	all, _ := overload(w, "/strict", 300, full(10*time.Second))
	w.mustLend(all, 100, 100)
}

// Many answers of the control plane come a little before or after the end of the wait for them.
// Without shares no bucket gives more than its quota, and only late answers and tokens that lie
// idle at an Envoy cost tokens.
func TestLateAnswersGiveNoTokenTwice(t *testing.T) {
	t.Parallel()
	const quota, callers, envoys = 20, 15, 3
	ways := map[string]*proxy{}
	w := start(t, setup{envoys: envoys, alone: true, workers: 2, ways: func(envoy string, port int) []int {
		ways[envoy] = startProxy(t, fmt.Sprintf("127.0.0.1:%d", port))
		return []int{ways[envoy].port}
	}})
	w.startControlPlane()
	w.awaitApplied(w.apply(fmt.Sprintf(`
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: leased, partition: [consumer], limit: {quota: %d, window: 24h}, on_failure: {local_for: 0s, then: deny}}
`, quota)))
	for _, way := range ways {
		way.poison("latency", attributes{"latency": 24, "jitter": 27})
	}
	passed := make([]atomic.Int64, callers)
	caller := func(i int) int { return i / envoys % callers }
	got := load{clients: 8, total: quota * callers * 5, keep: true, request: func(i int) *http.Request {
		return request(http.MethodPost, w.envoys[i%envoys].URL()+"/", "x-api-key", fmt.Sprint("c", caller(i)))
	}, note: func(i int, a answer) {
		if a.status == 200 {
			passed[caller(i)].Add(1)
		}
	}}.run(w.ctx)
	got.mustBe(t, 200, 429)
	for i := range passed {
		if n := passed[i].Load(); n > quota {
			t.Errorf("of caller %d %d requests have passed, above the quota of %d", i, n, quota)
		}
	}
	late, all := got.refusedByLadder(), int64(quota*callers)
	t.Logf("%d of %d have passed, the ladder has refused %d: %s", got.statuses[200], all, late, got)
	if late == 0 {
		t.Error("no answer was late: the test shows nothing")
	}
	if got.statuses[200]+late < all*9/10 {
		t.Errorf("%d have passed of %d, although the ladder has refused only %d", got.statuses[200], all, late)
	}
}

// Optimistic limits may be passed by half their burst; over a while that is paid back.
func TestOptimisticLimitsHoldOverAllEnvoys(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 2, policies: `
version: weir/v1
policies:
  - name: everyone
    match: {paths: [/optimistic]}
    partition: []
    limit: {quota: 400, window: 1s}
    mode: optimistic
`})
	all, _ := overload(w, "/optimistic", 600, full(10*time.Second))
	mustAdmit(t, all, 400+200, 400, 0.85)
}

// Bursts of callers with full buckets all pass, at an Envoy that knows nothing yet and at several
// Envoys: requests beyond the slack wait for the control plane. No penalty begins.
func TestOptimisticBursts(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 4, workers: 2, policies: `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: hour, match: {paths: [/hour]}, partition: [consumer], limit: {quota: 100, window: 1h}, mode: optimistic,
     penalty: {after: {refusals: 1, within: 1m}, for: 10m}}
  - {name: few, match: {paths: [/few]}, partition: [consumer], limit: {quota: 10, window: 1h}, mode: optimistic,
     penalty: {after: {refusals: 1, within: 1m}, for: 10m}}
`})
	burst := func(path string, callers, each int) {
		t.Helper()
		for round := range 2 { // Cold, then warm.
			var all sync.WaitGroup
			answers := make(chan answer, callers*each)
			for i := range callers * each {
				url := w.envoys[i%callers%len(w.envoys)].URL() + path
				all.Go(func() { answers <- ask(t, "GET", url, "x-api-key", fmt.Sprint("c", i%callers)) })
			}
			all.Wait()
			close(answers)
			refused, usedUp, last := 0, 0, ""
			for a := range answers {
				if a.status != 200 {
					refused++
					last = a.body
					if !strings.Contains(a.body, "#temporary-reduced-capacity") {
						usedUp++
					}
				}
			}
			// On a busy machine an answer may take longer than 50 ms. Then shares decide, which
			// admit less, and say so.
			if share := w.decidedByShare(); usedUp > 0 || refused > 0 && share == 0 {
				t.Errorf("%s, round %d: %d refused, %d of them as used up, %d decided by a share: %s", path, round,
					refused, usedUp, share, last)
			}
		}
	}
	burst("/hour", 8, 8)
	burst("/few", 10, 5)
}

func TestLocalLimitsHoldOnEachEnvoy(t *testing.T) {
	w := start(t, setup{envoys: 2, workers: 2, policies: `
version: weir/v1
policies:
  - name: everyone
    match: {paths: [/local]}
    partition: []
    limit: {quota: 200, window: 1s, burst: 100}
    mode: local
`})
	_, each := overload(w, "/local", 500, full(5*time.Second))
	for _, got := range each {
		mustAdmitBut(t, got, 100, 200, 0.98, 0)
	}
}

// Prometheus gets the time that requests are held for their decision as a histogram. Its count is
// the number of requests that waited.
func TestTheTimeHeldIsAHistogram(t *testing.T) {
	t.Parallel()
	w := start(t, setup{policies: `
version: weir/v1
policies:
  - {name: each, match: {paths: [/strict]}, partition: [], limit: {quota: 1000, window: 1h}, mode: strict}
`})
	const sent = 20
	for range sent {
		ask(t, "GET", w.envoys[0].URL()+"/strict")
	}
	w.await("the histogram", func(ctx context.Context) error {
		stats, err := w.envoys[0].Admin(ctx, "/stats/prometheus")
		if err != nil {
			return err
		}
		for _, line := range []string{
			"# TYPE weir_hold_milliseconds histogram", `weir_hold_milliseconds_bucket{le="+Inf"} ` + fmt.Sprint(sent),
			`weir_hold_milliseconds_bucket{le="25"} `, `weir_hold_milliseconds_bucket{le="50"} `,
			"weir_requests_waited{} " + fmt.Sprint(sent), "weir_hold_milliseconds_count{} " + fmt.Sprint(sent),
		} {
			if !strings.Contains(string(stats), line) {
				_, has, _ := strings.Cut(string(stats), "# TYPE weir_hold")
				return fmt.Errorf("there is no %q; weir_hold%.2000s", line, has)
			}
		}
		return nil
	})
}
