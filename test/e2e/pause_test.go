package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A control plane stands still for up to two seconds, and then executes all calls that have arrived
// meanwhile. It charges each request once: a caller has exactly the rest of its limit afterwards.
func TestAPauseOfTheControlPlaneChargesOnce(t *testing.T) {
	t.Parallel()
	w := start(t, setup{workers: 2, policies: `
version: weir/v1
policies:
  - {name: strict, match: {paths: [/strict]}, partition: [header:x-caller], limit: {quota: 10, window: 1d}, mode: strict}
  - {name: leased, match: {paths: [/leased]}, partition: [header:x-caller], limit: {quota: 10, window: 1d}, mode: leased}
  - {name: optimistic, match: {paths: [/optimistic]}, partition: [header:x-caller], limit: {quota: 10, window: 1d}, mode: optimistic}
`})
	for _, pause := range []time.Duration{300 * time.Millisecond, 600 * time.Millisecond, 2 * time.Second} {
		for _, mode := range []string{"strict", "leased", "optimistic"} {
			w.pause(mode, pause)
		}
	}
}

// pause stops the control plane while a caller of a mode sends four of its ten requests. On a busy
// machine calls are late after the pause too: each may cost a token in vain.
func (w *world) pause(mode string, pause time.Duration) {
	w.t.Helper()
	passes := func(when string, n, want int) {
		w.t.Helper()
		late, counts := int64(0), when != "meanwhile"
		if counts {
			late = w.lateCalls()
		}
		got := load{clients: n, total: n, request: func(int) *http.Request {
			return request(http.MethodGet, w.envoys[0].URL()+"/"+mode, "x-caller", fmt.Sprint(pause))
		}}.run(w.ctx)
		got.mustBe(w.t, 200, 429)
		if counts {
			late = w.lateCalls() - late
		}
		if passed := got.statuses[200]; passed < int64(want)-late || passed > int64(want)+late {
			w.t.Errorf("%s, a pause of %s, %s: of %d requests %d passed, want %d but for %d late calls", mode, pause,
				when, n, passed, want, late)
		}
	}
	passes("before", 1, 1)
	time.Sleep(200 * time.Millisecond)
	if err := w.controlPlane.Signal(syscall.SIGSTOP); err != nil {
		w.t.Fatal(err)
	}
	w.awaitStopped(w.controlPlane.PID())
	stopped := time.Now()
	passes("meanwhile", 4, 4)
	time.Sleep(pause - time.Since(stopped))
	if err := w.controlPlane.Signal(syscall.SIGCONT); err != nil {
		w.t.Fatal(err)
	}
	w.awaitGround()
	time.Sleep(1500 * time.Millisecond) // A second charge would be made by then.
	passes("afterwards", 5, 5)
	passes("beyond the limit", 1, 0)
}

// awaitStopped waits until no thread of a process runs any more: a call that is with Redis when the
// control plane stops ends without an answer, and would be charged twice.
func (w *world) awaitStopped(pid int) {
	w.t.Helper()
	w.await("the process to stop", func(context.Context) error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		for _, thread := range threads {
			status, _ := os.ReadFile(thread)
			if !strings.Contains(string(status), "State:\tT") {
				return fmt.Errorf("%s runs", thread)
			}
		}
		return err
	})
}
