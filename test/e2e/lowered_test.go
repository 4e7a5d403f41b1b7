package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// hall is an upstream that keeps each request until it lets one out.
type hall struct {
	came, out chan struct{}
}

func (h *hall) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/held") {
		return
	}
	h.came <- struct{}{}
	select {
	case <-h.out:
	case <-r.Context().Done():
	}
}

// guests are requests at the upstream, through all Envoys in turn.
type guests struct {
	*world
	hall *hall

	open     sync.WaitGroup
	mu       sync.Mutex
	statuses map[int]int
}

// hold sends n more requests, one after the other, and returns how many have reached the upstream.
func (w *guests) hold(n int) (admitted int) {
	w.t.Helper()
	for i := range n {
		refused := make(chan struct{})
		w.open.Go(func() {
			status := ask(w.t, "GET", w.envoys[i%len(w.envoys)].URL()+"/held").status
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.statuses[status]++; status != 200 {
				close(refused)
			}
		})
		select {
		case <-w.hall.came:
			admitted++
		case <-refused:
		case <-w.within(patience).Done():
			w.t.Fatal("a request neither came nor was refused")
		}
	}
	return admitted
}

// hallSet limits the requests in the hall. The headers of /mark name the set that a worker uses.
func hallSet(limit int) string {
	return fmt.Sprintf(`
version: weir/v1
policies:
  - {name: places, match: {paths: [/held]}, partition: [], limit: {in_flight: %d}, mode: leased, on_failure: [deny]}
  - {name: mark, match: {paths: [/mark]}, partition: [], limit: {quota: %d, window: 1s}, mode: local}
`, limit, 1000+limit)
}

// lower lowers the limit, and waits until all workers use the new limit, as far as twenty
// connections in a row to each Envoy show. The worker that polls has it a tick before the other
// workers, or earlier still on a machine that lets these wait.
func (w *guests) lower(limit int) {
	w.t.Helper()
	w.awaitApplied(w.apply(hallSet(limit)))
	mark := fmt.Sprintf("q=%d;", 1000+limit)
	for _, e := range w.envoys {
		w.await("the workers of "+e.Name+" to use the new limit", func(context.Context) error {
			for range 20 {
				if by := ask(w.t, "GET", e.URL()+"/mark").Get("ratelimit-policy"); !strings.Contains(by, mark) {
					return fmt.Errorf("a worker uses %q", by)
				}
			}
			return nil
		})
	}
}

// A policy set that lowers the limit below the number of requests in flight ends no request. Once
// each Envoy has renewed its permits, neither Envoy admits a request until there is room again,
// also when the control plane is killed and started anew meanwhile.
func TestALimitBelowWhatIsInFlight(t *testing.T) {
	t.Parallel()
	h := &hall{came: make(chan struct{}), out: make(chan struct{})}
	w := &guests{
		world: start(t, setup{envoys: 2, workers: 2, handler: h, policies: hallSet(20)}), hall: h,
		statuses: map[int]int{},
	}
	if n := w.hold(12); n != 12 {
		t.Fatalf("%d of 12 admitted below the limit of 20", n)
	}
	w.lower(5)
	if n := w.hold(10); n != 0 {
		t.Errorf("%d admitted beside 12 in flight, the limit is 5 now", n)
	}
	w.awaitUsed(5, 12)
	w.controlPlane.Kill()
	w.startControlPlane()
	if n := w.hold(10); n != 0 {
		t.Errorf("%d admitted after the control plane was killed", n)
	}
	for range 8 {
		h.out <- struct{}{}
	}
	// Four are in flight, so there is one place. An Envoy learns of it with one of its next claims.
	w.await("a request to be admitted", func(context.Context) error {
		if w.hold(2) == 0 {
			return fmt.Errorf("none is, with 4 in flight of 5")
		}
		return nil
	})
	if n := w.hold(10); n != 0 {
		t.Errorf("%d admitted beside 5 in flight", n)
	}
	for range 5 {
		h.out <- struct{}{}
	}
	w.open.Wait()
	if w.statuses[200] != 13 || len(w.statuses) != 2 || w.statuses[429] == 0 {
		t.Errorf("by status: %v, want 13 answers of 200 and refusals", w.statuses)
	}
}
