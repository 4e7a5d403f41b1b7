package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

// standing is where a node says that it is on its failure ladder.
type standing struct {
	ID    string            `json:"id"`
	State string            `json:"state"`
	Steps map[string]string `json:"steps"`
}

// awaitStandings waits until each Envoy's newest process is listed as right says it should be.
func (w *world) awaitStandings(what string, right func(standing) error) {
	w.t.Helper()
	var last error // The error of the last look before the deadline.
	w.await(what, func(ctx context.Context) error {
		answer, err := w.controlPlane.Call(ctx, http.MethodGet, "/v1/nodes", nil)
		if err != nil {
			return errors.Join(err, last)
		}
		var list struct {
			Nodes []standing `json:"nodes"`
		}
		if err := json.Unmarshal(answer.Body, &list); err != nil || answer.Status != http.StatusOK ||
			len(list.Nodes) != len(w.envoys) {
			last = fmt.Errorf("GET /v1/nodes: %d %s %v", answer.Status, answer.Body, err)
			return last
		}
		var wrong []error
		for _, n := range list.Nodes {
			if err := right(n); err != nil {
				wrong = append(wrong, fmt.Errorf("%s is listed as %s %v: %w", n.ID, n.State, n.Steps, err))
			}
		}
		last = errors.Join(wrong...)
		return last
	})
}

func (w *world) awaitNormal() {
	w.t.Helper()
	w.awaitStandings("every node to be listed as normal", func(n standing) error {
		if n.State != "normal" || len(n.Steps) != 0 {
			return errors.New("it should be normal")
		}
		return nil
	})
}

// metricsOf returns the filter's counters and gauges of an Envoy, and Envoy's own count of
// requests.
func (w *world) metricsOf(ctx context.Context, e *stack.Envoy) (map[string]int64, error) {
	content, err := e.Admin(ctx, "/stats?filter=^(wasmcustom\\.weir\\.|http\\.ingress\\.downstream_rq_total)")
	if err != nil {
		return nil, err
	}
	values := map[string]int64{}
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if strings.HasPrefix(value, "P0(") || value == "No recorded values" {
			continue // A histogram has no one value.
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the statistic %q: %w", line, err)
		}
		name = strings.TrimPrefix(name, "wasmcustom.")
		values[strings.TrimPrefix(nameInWasm(name), "weir.")] = n
	}
	return values, nil
}

// While Redis is away the control plane shows on which step each policy of each node is, and normal
// again after; meanwhile no client sees a failure, and at the end every request that Envoy counted
// has been counted by the filter, once.
func TestTheLadderIsShownAndEveryRequestCounted(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 2, workers: 2, alone: true})
	// It remembers the nodes; an empty one knows them at their next poll.
	w.redis = redistest.Start(t, "--appendonly", "yes")
	w.serve.RedisURL = w.redis.URL()
	w.startControlPlane()
	w.awaitApplied(w.apply(ladder))
	busy := w.steady()
	w.awaitRecovered()
	for range 2 {
		w.redis.Kill()
		want := map[string]string{"allows": "allow", "denies": "deny", "shares": "share"}
		w.awaitStandings("the steps of every policy", func(n standing) error {
			for policy, step := range want {
				if n.Steps[policy] != step {
					return fmt.Errorf("%s should be on %s", policy, step)
				}
			}
			if n.State != "deny" || len(n.Steps) != len(want) {
				return errors.New("its state should be deny, and no other policy on a step")
			}
			return nil
		})
		for _, e := range w.envoys {
			w.awaitMetrics(e, "the ladder's step to be 4",
				func(m map[string]int64) bool { return m["ladder.step"] == 4 })
		}
		w.redis.Restart()
		w.awaitNormal()
		w.awaitRecovered()
	}
	got := busy.end()
	got.mustBe(t, 200, 429)
	t.Log(got)
	steps := []string{"leases", "share", "allow", "deny", "normal"}
	for _, e := range w.envoys {
		m := w.awaitMetrics(e, "every request to be counted", func(m map[string]int64) bool {
			var sum int64
			for _, end := range []string{"allowed", "refused", "unlimited", "banned", "exempt", "before_snapshot",
				"unreadable", "gone"} {
				sum += m["requests."+end]
			}
			for _, step := range steps {
				if m["ladder.entered_"+step] != m["ladder.left_"+step] {
					return false
				}
			}
			return sum == m["http.ingress.downstream_rq_total"] && sum > 0 && m["requests.waiting"] == 0 &&
				m["ladder.step"] == 0
		})
		if m["leases.unavailable"]+m["leases.no_answer"] == 0 || m["reports.answered"] < 4 ||
			m["snapshot.age_seconds"] > 30 {
			t.Errorf("the metrics of %s are %v", e.Name, m)
		}
		for _, step := range steps {
			entered := m["ladder.entered_"+step]
			logged := int64(strings.Count(e.Stderr.String(), "failure ladder: entered "+step+" "))
			if entered < 2 || logged != entered {
				t.Errorf("%s entered %s %d times, and logged it %d times", e.Name, step, entered, logged)
			}
		}
		t.Logf("%s failed %d times", e.Name, m["ladder.entered_leases"])
	}
}

func (w *world) awaitMetrics(e *stack.Envoy, what string, right func(map[string]int64) bool) (m map[string]int64) {
	w.t.Helper()
	var last error
	w.await(fmt.Sprintf("on %s, %s", e.Name, what), func(ctx context.Context) (err error) {
		if m, err = w.metricsOf(ctx, e); err != nil {
			return errors.Join(err, last)
		}
		if last = nil; !right(m) {
			last = fmt.Errorf("its metrics are %v", m)
		}
		return last
	})
	return m
}

// Without the control plane no report arrives. The filter counts the reports that it could not
// send, follows the ladder, and reports its state as soon as a control plane answers.
func TestTheLadderIsReportedAfterTheControlPlaneWasAway(t *testing.T) {
	t.Parallel()
	w := start(t, setup{policies: ladder})
	busy := w.steady()
	w.awaitRecovered()
	w.controlPlane.Kill()
	w.awaitFailing()
	w.awaitMetrics(w.envoys[0], "reports to fail",
		func(m map[string]int64) bool { return m["reports.failed"] > 2 && m["ladder.step"] == 4 })
	began := time.Now()
	w.startControlPlane()
	w.awaitRecovered()
	w.awaitNormal()
	t.Logf("normal again %v after the control plane was started", time.Since(began).Round(100*time.Millisecond))
	busy.end().mustBe(t, 200, 429)
}

// A node goes up its ladder for as long as the control plane cannot count. No probe is answered
// while Redis is gone, whatever the node last asked for, or while Redis only takes no writes.
func TestTheLadderIsClimbedForAsLongAsRedisFails(t *testing.T) {
	t.Parallel()
	w := start(t, setup{alone: true})
	w.redis = redistest.Start(t, "--appendonly", "yes")
	w.serve.RedisURL = w.redis.URL()
	w.startControlPlane()
	limit := func(memory string) func() {
		return func() {
			if got := w.redis.Do("CONFIG", "SET", "maxmemory", memory); !strings.HasPrefix(got, "+OK") {
				w.t.Fatalf("maxmemory %s: %s", memory, got)
			}
		}
	}
	for _, c := range []struct {
		mode, what    string
		inflict, heal func()
	}{
		{"strict", "is full", limit("1"), limit("0")},
		{"optimistic", "is full", limit("1"), limit("0")},
		{"optimistic", "is gone", w.redis.Kill, w.redis.Restart},
	} {
		t.Run(c.mode+", Redis "+c.what, func(t *testing.T) {
			outer := w.t
			w.t = t
			defer func() { w.t = outer }()
			w.awaitApplied(w.apply(`
version: weir/v1
policies:
  - name: climbs
    partition: []
    limit: {quota: 100, window: 1s}
    mode: ` + c.mode + `
    on_failure: [{share: 3s}, deny]
`))
			busy := load{clients: 4, rate: 100, request: func(int) *http.Request {
				return request(http.MethodGet, w.envoys[0].URL()+"/")
			}}.background(w.ctx)
			c.inflict()
			w.awaitStandings("the last step", func(n standing) error {
				if n.Steps["climbs"] != "deny" {
					return errors.New("it should be on deny")
				}
				return nil
			})
			c.heal()
			w.awaitNormal()
			busy.end().mustBe(t, 200, 429)
		})
	}
}
