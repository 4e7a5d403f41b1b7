package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// byTenant returns a policy set of 5000 policies by the value of a header. With patterns it has the
// number of policies that fit into a document. The number of the push is among their limits.
func byTenant(patterns bool, push int) string {
	var b strings.Builder
	b.WriteString("version: weir/v1\npolicies:\n")
	for i := range 5000 {
		more := ""
		if patterns {
			more = fmt.Sprintf(`hosts: [a%d.x, "*.b%d.x"], methods: [POST], paths: ["/t%d/{i}", "/u%d/**"], `, i, i, i, i)
		}
		fmt.Fprintf(&b, "  - {name: p%d, match: {%sheaders: [{name: x-t, equals: t%d}]}, partition: [], "+
			"limit: {quota: %d, window: 1m}}\n", i, more, i, 100+push)
	}
	return b.String()
}

// Pushes of 5000 policies under load, the first one too: each arrives, and no request fails. The
// longest time for which a worker did one thing is printed: docs/measured/costs.md has it.
func TestPushesOfManyPoliciesUnderLoad(t *testing.T) {
	for name, patterns := range map[string]bool{"by header": false, "with patterns": true} {
		t.Run(name, func(t *testing.T) {
			w := start(t, setup{workers: 2, rewrite: func(config string) string {
				return "enable_dispatcher_stats: true\n" + config
			}})
			busy := load{clients: 4, rate: 200, request: func(i int) *http.Request {
				return request(http.MethodPost, w.envoys[0].URL()+"/u7/a", "x-t", fmt.Sprint("t", i%5000))
			}}.background(w.ctx)
			for push := range full(6) {
				w.awaitApplied(w.apply(byTenant(patterns, push)))
			}
			t.Logf("a worker did one thing for %v at most", longestLoop(t, w))
			busy.end().mustBe(t, 200, 429)
		})
	}
}

// longestLoop returns the longest time that one turn of a worker's loop has taken, as Envoy has it
// once it has merged its histograms.
func longestLoop(t *testing.T, w *world) (longest time.Duration) {
	t.Helper()
	time.Sleep(6 * time.Second) // Envoy merges them every five seconds.
	body, err := w.envoys[0].Admin(w.ctx, "/stats?filter=worker.*loop_duration&histogram_buckets=summary")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		at := strings.Index(line, "P100(")
		if at < 0 {
			continue
		}
		var last, all float64 // in microseconds
		if _, err := fmt.Sscanf(line[at:], "P100(%g,%g)", &last, &all); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		longest = max(longest, time.Duration(all*float64(time.Microsecond)))
	}
	if longest == 0 {
		t.Errorf("Envoy says of no loop how long it took: %s", body)
	}
	return longest
}
