package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// Answers that cost nothing leave a bucket of tokens full, in each mode, and the counters say so.
// If a response has two costs, it counts as a response without a cost.
func TestGoodAnswersLeaveTheBucketFull(t *testing.T) {
	t.Parallel()
	const answers = 30
	// A bucket earns a thousandth of a token in 26 s: a slow machine changes no figure.
	var set strings.Builder
	set.WriteString("version: weir/v1\npolicies:\n")
	for _, mode := range []string{"local", "leased", "strict"} {
		fmt.Fprintf(&set, `  - name: %s
    match: {paths: [/%s]}
    partition: [client_ip]
    limit: {quota: 100, window: 720h}
    mode: %s
    cost: {reserve: 1, commit: {status: {401: 1, rest: 0}}}
`, mode, mode, mode)
	}
	set.WriteString(`  - name: rows
    match: {paths: [/rows]}
    partition: [client_ip]
    limit: {quota: 100, window: 720h}
    mode: local
    cost: {reserve: 2, commit: {header: x-rows}, missing: 7}
`)
	w := start(t, setup{workers: 2, policies: set.String(), handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			for _, rows := range r.Header.Values("x-sends") {
				w.Header().Add("x-rows", rows)
			}
		})})
	url := w.envoys[0].URL()
	for n, mode := range []string{"local", "leased", "strict"} {
		for range answers {
			if got := ask(t, "GET", url+"/"+mode); got.status != 200 {
				t.Fatalf("%s: %d", mode, got.status)
			}
		}
		w.awaitCounter(w.envoys[0], "weir.costs.refunded_tokens", int64(n*(answers+1)+answers))
		got := ask(t, "GET", url+"/"+mode).Get("RateLimit")
		if !strings.Contains(got, "r=99;t=2592") {
			t.Errorf("%s: after %d answers that cost nothing: %s", mode, answers, got)
		}
		if mode != "local" {
			w.awaitLevel(mode, 100)
		}
		w.awaitCounter(w.envoys[0], "weir.costs.refunded_tokens", int64((n+1)*(answers+1)))
	}
	left := int64(100)
	for _, c := range []struct {
		rows []string
		cost int64
	}{{[]string{"x-sends", "3"}, 3}, {[]string{"x-sends", "3", "x-sends", "50"}, 7}, {nil, 7}} {
		got := ask(t, "GET", url+"/rows", c.rows...)
		if want := fmt.Sprintf(`"rows";r=%d;`, left-2); !strings.Contains(got.Get("RateLimit"), want) {
			t.Errorf("before %v: %s, want %s", c.rows, got.Get("RateLimit"), want)
		}
		left -= c.cost
	}
	if got := ask(t, "GET", url+"/rows"); !strings.Contains(got.Get("RateLimit"), fmt.Sprintf(`r=%d;`, left-2)) {
		t.Errorf("after all: %s, want %d left", got.Get("RateLimit"), left-2)
	}
}
