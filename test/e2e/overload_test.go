package e2e

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"
)

// More callers come than the control plane can answer in time, on whatever machine this is: none
// has used 1 % of its limit, and none is refused.
func TestAnOverloadedControlPlaneRefusesNoRequestWithinTheLimit(t *testing.T) {
	for _, mode := range []string{"leased", "strict"} {
		w := start(t, setup{workers: 2, policies: `
version: weir/v1
policies:
  - {name: api, partition: [header:x-key], limit: {quota: 1000, window: 1m}, mode: ` + mode + `}
`})
		before := w.measured(w.envoys[0])
		got := load{clients: 128, rate: 5000, during: either(4*time.Second, 20*time.Second),
			request: func(i int) *http.Request {
				r := request(http.MethodGet, w.envoys[0].URL()+"/")
				r.Header.Set("x-key", fmt.Sprint(i*7919%100_000))
				return r
			}}.run(w.ctx)
		d := difference(w.measured(w.envoys[0]), before)
		t.Logf("%s: %s; %d asked, %d by the share; calls: %d answered, %d without an answer, %d overloaded; the "+
			"ladder was entered %d times",
			mode, got, d["decisions.by_central"], d["decisions.by_share"], d["leases.answered"],
			d["leases.no_answer"], d["leases.overloaded"], d["ladder.entered_leases"])
		got.mustBe(t, 200)
	}
}

// All streams of one connection wait when the control plane stops answering. Then all of them are
// decided at once, which is more than Envoy can carry out in one go: it answers each request within
// the answer to the request before.
func TestManyStreamsThatWaitAreAllAnswered(t *testing.T) {
	w := start(t, setup{workers: 1, policies: `
version: weir/v1
policies:
  - {name: api, partition: [], limit: {quota: 100, window: 1h}, mode: strict, on_failure: [deny]}
`})
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: &h2}}
	if err := w.controlPlane.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	statuses := make(chan int, 900)
	for range cap(statuses) {
		go func() {
			answer, err := client.Do(request(http.MethodGet, w.envoys[0].URL()+"/").WithContext(w.ctx))
			if err != nil {
				t.Error(err)
				statuses <- 0
				return
			}
			_ = answer.Body.Close()
			statuses <- answer.StatusCode
		}()
	}
	for range cap(statuses) {
		if status := <-statuses; status != http.StatusTooManyRequests {
			t.Fatalf("status %d, want 429", status)
		}
	}
}
