package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// permitLease is for how long an Envoy's permits last.
	permitLease = 10 * time.Second
	fleetLimit  = 20
)

// These are a limit over all Envoys. With deny it holds also where the control plane is taken for
// away.
const (
	sharedPlaces = `
version: weir/v1
policies:
  - name: places
    partition: []
    limit: {in_flight: 20}
    mode: leased
`
	fleetPlaces = sharedPlaces + "    on_failure: [deny]\n"
)

// towards sends half of the clients to one Envoy and half to the other Envoy. An Envoy may be
// replaced meanwhile.
type towards struct {
	mu   sync.Mutex
	urls [2]string
}

func (w *world) towards() *towards {
	return &towards{urls: [2]string{w.envoys[0].URL(), w.envoys[1].URL()}}
}

func (to *towards) of(client int) (url string, envoy int) {
	to.mu.Lock()
	defer to.mu.Unlock()
	return to.urls[client%2], client % 2
}

func (to *towards) set(envoy int, url string) {
	to.mu.Lock()
	defer to.mu.Unlock()
	to.urls[envoy] = url
}

// awaitUsed waits until the control plane counts want of the limit's places as in use.
func (w *world) awaitUsed(limit, want int64) {
	w.t.Helper()
	var last error // The error of the last look before the deadline.
	w.await(fmt.Sprint(want, " places to be in use"), func(ctx context.Context) error {
		got, err := w.controlPlane.Call(ctx, http.MethodGet, "/v1/keys/places", nil)
		if err != nil {
			return errors.Join(err, last)
		}
		var key struct {
			Buckets []struct{ Burst, Used int64 }
		}
		if err := json.Unmarshal(got.Body, &key); err != nil {
			return err
		}
		if len(key.Buckets) != 1 || key.Buckets[0].Burst != limit || key.Buckets[0].Used != want {
			last = fmt.Errorf("the key is %s", got.Body)
			return last
		}
		return nil
	})
}

// Two Envoys with clients that ask more than the limit, a third of which go away, never have more
// requests at the upstream than the limit says, and use its places nearly as long as one exact
// counter would. At rest no permit is held.
func TestNeverMoreInFlightOverEnvoys(t *testing.T) {
	up := &rushUpstream{}
	w := start(t, setup{envoys: 2, workers: 2, handler: up, policies: fleetPlaces})
	c := up.rush(w.within(full(20*time.Second)), 200, w.towards().of)
	used, exact := c.inUse(fleetLimit)
	t.Logf("%v; places were in use for %v, with one exact counter for %v", c, used, exact)
	if most := up.atMost(); most > fleetLimit {
		t.Errorf("%d at once at the upstream, the limit is %d", most, fleetLimit)
	}
	if 100*used < 95*exact {
		t.Errorf("places were in use for %v, less than 95 %% of %v", used, exact)
	}
	if c.refused == 0 || c.failed > 0 {
		t.Errorf("%v: the limit was not reached, or requests failed", c)
	}
	w.awaitUsed(fleetLimit, 0)
}

// rushing is a rush that goes on while something happens.
type rushing struct {
	*world
	up   *rushUpstream
	to   *towards
	done chan rushed
	end  context.CancelFunc
}

func (w *world) rushing(up *rushUpstream) *rushing {
	ctx, cancel := context.WithCancel(w.ctx)
	r := &rushing{world: w, up: up, to: w.towards(), done: make(chan rushed, 1), end: cancel}
	w.t.Cleanup(cancel)
	go func() { r.done <- up.rush(ctx, 200, r.to.of) }()
	return r
}

// watch lets time pass and checks the peak of requests at the upstream: at least `least`, at most
// `most`.
func (r *rushing) watch(what string, span time.Duration, least, most int) {
	r.t.Helper()
	r.up.atMost()
	time.Sleep(span)
	got := r.up.atMost()
	r.t.Logf("%s: at most %d at the upstream", what, got)
	if got < least || got > most {
		r.t.Errorf("%s: at most %d at the upstream, want %d to %d", what, got, least, most)
	}
}

// An Envoy that is killed costs its places for one lease at most, and its replacement has none of
// them.
func TestPermitsOfAKilledEnvoyComeBack(t *testing.T) {
	t.Parallel()
	up := &rushUpstream{}
	w := start(t, setup{envoys: 2, workers: 2, handler: up, policies: fleetPlaces})
	r := w.rushing(up)
	r.watch("before", 5*time.Second, fleetLimit-3, fleetLimit)
	old := w.envoys[0]
	w.envoys = w.envoys[1:]
	old.Kill()
	up.leaveAll(0)
	killed := time.Now()
	w.startEnvoy(old.Name)
	w.awaitPolicies()
	up.replaced(0)
	r.to.set(0, w.envoys[1].URL())
	r.watch("after an Envoy was killed", time.Until(killed.Add(permitLease)), 0, fleetLimit)
	r.watch("a lease later", 5*time.Second, fleetLimit-3, fleetLimit)
	if now, _ := up.through(0); now == 0 {
		t.Error("the new Envoy serves nothing")
	}
	r.end()
	<-r.done
	w.awaitUsed(fleetLimit, 0)
}

// An Envoy that is cut off from the control plane has its share beside the limit, as `weir check`
// prints, and its requests in flight. Once it is back the limit holds again.
func TestPermitsOfAnEnvoyThatIsCutOff(t *testing.T) {
	t.Parallel()
	check := exec.Command(controlPlanePath, "check", "--nodes", "2", "-")
	check.Stdin = strings.NewReader(sharedPlaces)
	const printed = "by its share it has up to 10 (with 2 Envoys)"
	if out, err := check.CombinedOutput(); err != nil || !strings.Contains(string(out), printed) {
		t.Errorf("weir check does not print %q: %v\n%s", printed, err, out)
	}
	ways := map[string]*proxy{}
	up := &rushUpstream{}
	w := start(t, setup{envoys: 2, workers: 2, handler: up, policies: sharedPlaces,
		ways: func(envoy string, port int) []int {
			ways[envoy] = startProxy(t, fmt.Sprintf("127.0.0.1:%d", port))
			return []int{ways[envoy].port}
		}})
	for range 2 { // Each Envoy learns how many there are before it needs its share.
		for _, e := range w.envoys {
			ask(t, "GET", e.URL()+"/?ms=1")
		}
	}
	r := w.rushing(up)
	r.watch("before", 5*time.Second, fleetLimit-3, fleetLimit)
	ways["envoy-1"].poison("timeout", attributes{"timeout": 0})
	_, had := up.through(0)
	r.watch("cut off", permitLease, fleetLimit-3, fleetLimit+max(had, 10))
	r.watch("cut off for longer than a lease", 3*time.Second, fleetLimit, fleetLimit+max(had, 10))
	ways["envoy-1"].heal()
	w.awaitMetrics(w.envoys[0], "it to be off the ladder",
		func(m map[string]int64) bool { return m["ladder.step"] == 0 })
	time.Sleep(permitLease)
	r.watch("back for a lease", 5*time.Second, fleetLimit-3, fleetLimit)
	r.end()
	<-r.done
	w.awaitUsed(fleetLimit, 0)
}
