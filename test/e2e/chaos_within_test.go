package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/weir-proxy/weir/tools/stack"
)

// within are limits of which each caller of withinLimits uses a tenth, to be appended to a policy
// set. They fall back to the Envoy's share, since a policy's deny would refuse in a failure.
const within = `
  - name: within-leased
    match: {paths: [/within/leased]}
    partition: [header:x-caller]
    limit: {quota: 100, window: 10s}
    mode: leased
    on_failure: {then: local}
  - name: within-strict
    match: {paths: [/within/strict]}
    partition: [header:x-caller]
    limit: {quota: 100, window: 10s}
    mode: strict
    on_failure: {then: local}
  - name: within-optimistic
    match: {paths: [/within/optimistic]}
    partition: [header:x-caller]
    limit: {quota: 6000, window: 10s}
    mode: optimistic
    on_failure: {then: local}
`

// withinLimits sends the requests of callers that stay within their limits: once a second each, in
// turn to each of some Envoys. By docs/internals/guarantees.md no failure refuses a caller whose
// use over all Envoys fits in a fourth of one Envoy's share, which is 1.25 a second of two, and 12
// at once.
func (w *world) withinLimits(envoys ...*stack.Envoy) *background {
	modes := []string{"leased", "strict", "optimistic"}
	callers := 3 * len(modes)
	return load{clients: callers * len(envoys), rate: float64(callers), request: func(i int) *http.Request {
		caller, envoy := i%callers, envoys[i/callers%len(envoys)]
		return request(http.MethodPost, envoy.URL()+"/within/"+modes[caller%len(modes)], "x-caller", fmt.Sprint(caller))
	}}.background(w.ctx)
}

// noneRefused ends the callers of withinLimits, and wants all their requests to have passed.
func noneRefused(t *testing.T, what string, callers *background) {
	t.Helper()
	got := callers.end()
	got.mustBe(t, 200)
	t.Logf("%s: callers within their limits: %s", what, got)
	if got.statuses[200] == 0 {
		t.Errorf("%s: no caller within its limit has asked", what)
	}
}
