package e2e

import (
	"fmt"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// One of two Envoys loses its way to the control plane. It goes on with its share of the limit; the
// other has all of it. Once the way is back, the Envoys do not ask more than they did before.
func TestChaosHalfOfTheNodesAreCutOff(t *testing.T) {
	t.Parallel()
	ways := map[string]*proxy{}
	w := start(t, setup{envoys: 2, policies: chaotic, ways: func(envoy string, port int) []int {
		ways[envoy] = startProxy(t, fmt.Sprintf("127.0.0.1:%d", port))
		return []int{ways[envoy].port}
	}})
	for range either(1, 3) {
		w.cutOff(ways["envoy-1"])
	}
}

func (w *world) cutOff(way *proxy) {
	w.t.Helper()
	before := w.measured(w.envoys[0])
	shares, callers := w.crowd("/shares", 100), w.withinLimits(w.envoys...)
	time.Sleep(2 * time.Second) // Until nothing is left of the burst.
	span := either(4*time.Second, 20*time.Second)
	calls := func() float64 {
		began, n := time.Now(), w.leaseItems(w.controlPlane)
		time.Sleep(span)
		return float64(w.leaseItems(w.controlPlane)-n) / time.Since(began).Seconds()
	}
	steady := calls()
	begin := time.Now()
	way.poison("timeout", attributes{"timeout": 0})
	w.awaitMetrics(w.envoys[0], "its share to decide", func(m map[string]int64) bool { return m["ladder.step"] == 2 })
	if m := w.measured(w.envoys[1]); m["ladder.step"] != 0 {
		w.t.Errorf("the other Envoy is on its ladder too: %v", m)
	}
	time.Sleep(either(10*time.Second, time.Minute))
	way.heal()
	recovered := w.awaitGround()
	away := time.Since(begin)
	after := calls()
	w.t.Logf("cut off for %v, back after %v; %.1f calls/s before, %.1f after", away.Round(time.Millisecond),
		recovered.Round(time.Millisecond), steady, after)
	if spike := 1.2*steady + 3*math.Sqrt(steady/span.Seconds()); after > spike {
		w.t.Errorf("after the way was back there were %.1f calls/s; before, %.1f", after, steady)
	}
	noneRefused(w.t, "one of two cut off", callers)
	// A share starts at the level that the Envoy knows of the bucket, at most with all of the
	// share.
	extra := chaoticRate/2*away.Seconds() + chaoticBurst/2
	mustHold(w.t, "one of two cut off", shares.end(), chaoticBurst, chaoticRate, extra, 0.8)
	if d := difference(w.measured(w.envoys[0]), before); d["decisions.by_share"] == 0 || failedCalls(d) == 0 {
		w.t.Errorf("the share decided nothing: %v", d)
	}
}

// stopped is a limit whose leases last a second.
const stopped = `
version: weir/v1
policies:
  - name: stopped
    match: {paths: [/stopped]}
    partition: []
    limit: {quota: 1000, window: 20s}
    mode: leased
    on_failure: {then: deny}
` + within

// An Envoy that stood still for longer than its leases last uses none of them when it goes on. Were
// it otherwise, they would come on top of a whole burst, which the bucket has again by then.
func TestChaosAnEnvoyStandsStill(t *testing.T) {
	t.Parallel()
	const burst, rate = 1000, 50
	w := start(t, setup{envoys: 2, policies: stopped})
	for round := range either(1, 10) {
		if round > 0 {
			time.Sleep(burst / rate * time.Second) // Until the bucket is full.
		}
		w.stand(burst, rate)
	}
}

func (w *world) stand(burst, rate float64) {
	w.t.Helper()
	still, other := w.envoys[0], w.envoys[1]
	callers := w.withinLimits(other) // The other answers none meanwhile.
	urls := []string{still.URL() + "/stopped", other.URL() + "/stopped"}
	// It has tokens in hand, and clients that wait for an answer when it goes on.
	busy := load{url: urls[0], clients: 16, rate: 300, keep: true}.background(w.ctx)
	time.Sleep(700 * time.Millisecond)
	w.signal(still, syscall.SIGSTOP)
	begin := time.Now()
	left := remaining(w.t, ask(w.t, "POST", urls[1]))
	time.Sleep(100 * time.Millisecond)
	if !isStopped(w.t, still.PID()) {
		w.t.Error("the Envoy does not stand still")
	}
	// Until the bucket is full again: every lease has ended then, too.
	time.Sleep(time.Until(begin.Add(time.Duration((burst-left)/rate*float64(time.Second)))) + time.Second)
	began := time.Now()
	w.signal(still, syscall.SIGCONT)
	got := sum(together(w.ctx, load{url: urls[0], clients: 16, total: 1000},
		load{url: urls[1], clients: 16, total: 1000}))
	waiting := busy.end()
	waiting.mustBe(w.t, 200, 429)
	used := 0.0
	for _, a := range waiting.answers {
		switch {
		case a.status == 200 && a.at.Before(began):
			used++
		case a.status == 200:
			got.statuses[200]++
		}
	}
	got.first, got.last = began, waiting.last
	held := burst - left + rate*begin.Sub(waiting.first).Seconds() - used
	w.t.Logf("it stood still for %v and had about %.0f tokens in hand when it began to",
		began.Sub(begin).Round(time.Millisecond), held)
	if held < 10 {
		w.t.Errorf("it had %.0f tokens in hand when it was stopped, so there was nothing to use too late", held)
	}
	noneRefused(w.t, "beside an Envoy that stands still", callers)
	mustHold(w.t, "after standing still", got, burst, rate, 0, 1)
}

// remaining returns the rest of the limit that an answer announces.
func remaining(t *testing.T, a answer) float64 {
	t.Helper()
	_, text, _ := strings.Cut(a.Get("RateLimit"), "r=")
	var n float64
	if _, err := fmt.Sscanf(text, "%g", &n); err != nil {
		t.Fatalf("RateLimit is %q: %v", a.Get("RateLimit"), err)
	}
	return n
}

func (w *world) signal(e *stack.Envoy, s syscall.Signal) {
	w.t.Helper()
	if err := e.Signal(s); err != nil {
		w.t.Fatal(err)
	}
}

// isStopped reports whether the kernel holds a process.
func isStopped(t *testing.T, pid int) bool {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "T")
}
