package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
)

// dear is an optimistic limit. Each of three Envoys may use 25 tokens of it before the control
// plane knows. For a request that costs more than 12, the Envoy asks.
const dear = `
version: weir/v1
policies:
  - name: dear
    partition: [header:x-caller]
    limit: {quota: 100, window: 1h}
    cost: {header: x-cost, max: 100}
    mode: optimistic
    on_failure: {local_for: 0s, then: deny}
`

// priced sends requests of a cost to the Envoys in turn.
func (w *world) priced(caller string, cost, total, clients int) load {
	return load{clients: clients, total: total, request: func(i int) *http.Request {
		e := w.envoys[i%len(w.envoys)]
		return request(http.MethodPost, e.URL()+"/", "x-caller", caller, "x-cost", strconv.Itoa(cost))
	}}
}

// The control plane decides about a request that costs too much for an Envoy alone. Sent one after
// the other to any Envoys, exactly the bucket's tokens pass, and a refusal names the time to come
// back.
func TestDearRequestsOfAnOptimisticLimit(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 3, policies: dear})
	for _, c := range []struct{ cost, want int }{{30, 3}, {26, 3}, {50, 2}, {100, 1}} {
		lateBefore := w.late()
		got := w.priced(fmt.Sprint("caller ", c.cost), c.cost, 9, 1).run(w.ctx)
		got.mustBe(t, 200, 429)
		late := w.late() - lateBefore
		t.Logf("cost %d: %v, %d calls late", c.cost, got, late)
		if passed := got.statuses[200]; passed > int64(c.want) || passed < int64(c.want)-late {
			t.Errorf("cost %d: %d passed, want %d less %d that were late", c.cost, passed, c.want, late)
		}
		if late > 0 { // The last refusal may be one of on_failure.
			continue
		}
		missing := int64(c.want*c.cost + c.cost - 100) // Each token comes after 36 s.
		wait, err := strconv.ParseInt(got.samples[429].Get("retry-after"), 10, 64)
		if err != nil || wait < missing*36-60 || wait > missing*36+60 {
			t.Errorf("cost %d: a refusal says Retry-After %d (%v), want about %d", c.cost, wait, err, missing*36)
		}
	}
	var asked int64
	for _, e := range w.envoys {
		asked += w.measured(e)["decisions.by_central"]
	}
	if asked == 0 {
		t.Error("no Envoy has asked the control plane")
	}
}
