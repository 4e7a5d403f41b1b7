package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A push under load changes the limit on every Envoy within a second and forgets no consumption.
// Each request sees either the old limit or the new limit. Requests without an answer of the
// control plane are refused: a share of each Envoy's own would come on top.
func TestAPushUnderLoadKeepsConsumption(t *testing.T) {
	limit := func(quota int64) string {
		return fmt.Sprintf(`
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - name: per-consumer
    match: {paths: [/pushed]}
    partition: [consumer]
    limit: {quota: %d, window: 24h}
    mode: leased
    on_failure: {local_for: 0s, then: deny}
`, quota)
	}
	w := start(t, setup{envoys: 2, workers: 2, policies: limit(1000)})
	// Others keep both Envoys busy with buckets of their own.
	busy := load{clients: 16, rate: 1000, request: func(i int) *http.Request {
		return request(http.MethodPost, w.envoys[i%2].URL()+"/pushed", "x-api-key", fmt.Sprint("other-", i%50))
	}}.background(w.ctx)
	spend := func(n int) int64 {
		got := load{clients: 10, total: n, request: func(i int) *http.Request {
			return request(http.MethodPost, w.envoys[i%2].URL()+"/pushed", "x-api-key", "alice")
		}}.run(w.ctx)
		got.mustBe(t, 200, 429)
		return got.statuses[200]
	}
	push := func(quota int64) {
		pushed := time.Now()
		w.awaitApplied(w.apply(limit(quota)))
		mustTake(t, fmt.Sprintf("the limit of %d on both Envoys", quota), pushed, time.Now(), time.Second)
	}
	// A token comes once a minute or less, and a few may be leased to the Envoy that is not asked
	// any more.
	mustHavePassed := func(total, want int64) {
		t.Helper()
		late := w.late()
		t.Logf("%d have passed, want %d; %d requests got no answer in time", total, want, late)
		if total > want+1 || total < want-want/50-late {
			t.Errorf("%d have passed, want %d", total, want)
		}
	}
	total := spend(100)
	mustHavePassed(total, 100)
	push(900)
	total += spend(1500)
	mustHavePassed(total, 900)
	push(1500)
	total += spend(1500)
	mustHavePassed(total, 1500)
	push(1200)
	total += spend(200)
	mustHavePassed(total, 1500)
	busy.end().mustBe(t, 200, 429)
}

// manyPolicies returns a policy set of n policies, the number of the push among their limits.
func manyPolicies(n, push int) string {
	var b strings.Builder
	b.WriteString("version: weir/v1\npolicies:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {name: p%d, match: {methods: [POST], paths: [/p%d]}, partition: [client_ip], limit: "+
			"{quota: %d, window: 1m}, mode: leased}\n",
			i, i, 100+push)
	}
	return b.String()
}

func TestManyPushesLeaveMemoryFlat(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 2})
	busy := load{clients: 4, rate: 200, request: func(i int) *http.Request {
		return request(http.MethodPost, fmt.Sprint(w.envoys[i%2].URL(), "/p", i%1000))
	}}.background(w.ctx)
	push := func(from, to int) {
		for i := from; i < to; i++ {
			w.awaitApplied(w.apply(manyPolicies(1000, i)))
		}
	}
	warm, all := full(20), full(120)
	push(0, warm)
	// Envoy keeps a counter of every policy and outcome that it has seen; each is to be there
	// before memory is measured.
	load{clients: 8, total: 2000, request: func(i int) *http.Request {
		return request(http.MethodPost, fmt.Sprint(w.envoys[i%2].URL(), "/p", i/2))
	}}.run(w.ctx).mustBe(t, 200, 429)
	before := []memory{w.memory(w.envoys[0]), w.memory(w.envoys[1])}
	push(warm, all)
	for i, e := range w.envoys {
		after := w.awaitMemory(e, before[i], memory{allocated: 2e6, resident: 8e6})
		t.Logf("%s after %d pushes: %s; after %d: %s", e.Name, warm, before[i], all, after)
	}
	busy.end().mustBe(t, 200, 429)
	// The last push counts, in every VM by its next tick.
	want := fmt.Sprintf("q=%d;", 100+all-1)
	for _, e := range w.envoys {
		w.await(e.Name+" to decide by the last push", func(context.Context) error {
			if a := ask(t, http.MethodPost, e.URL()+"/p999"); !strings.Contains(a.Get("RateLimit-Policy"), want) {
				return fmt.Errorf("RateLimit-Policy is %s, want %s", a.Get("RateLimit-Policy"), want)
			}
			return nil
		})
	}
}

func TestARefusedPolicySetChangesNothing(t *testing.T) {
	t.Parallel()
	w := start(t, setup{policies: `
version: weir/v1
policies:
  - {name: a, match: {paths: [/a]}, partition: [], limit: {quota: 5, window: 24h}, mode: local}
`})
	_, err := w.controlPlane.Apply(w.within(patience), []byte(`
version: weir/v1
policies:
  - {name: a, match: {paths: [/a]}, partition: [], limit: {quota: -1, window: 24h}, mode: elastic}
`))
	for _, want := range []string{"422", "policies[0].limit.quota", "policies[0].mode"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the refusal lacks %s: %v", want, err)
		}
	}
	got := load{url: w.envoys[0].URL() + "/a", clients: 1, total: 10}.run(w.ctx)
	if got.statuses[200] != 5 {
		t.Errorf("of 10 requests: %s; the limit before was 5", got)
	}
}

// Nodes are known by id and version, and a node that is gone is no longer active.
func TestNodesAreListed(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 2, policies: "{version: weir/v1, policies: []}"})
	nodes, err := w.controlPlane.Nodes(w.within(patience))
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes) != 2 || nodes[0].ID != "envoy-1" || nodes[1].ID != "envoy-2" || nodes[0].Applied != 1 ||
		!nodes[0].Active {
		t.Errorf("%+v", nodes)
	}
	w.await("the policy set to pass everything", func(context.Context) error {
		if a := ask(t, http.MethodPost, w.envoys[0].URL()+"/"); a.status != 200 || a.Get("RateLimit") != "" {
			return fmt.Errorf("%d with RateLimit %q", a.status, a.Get("RateLimit"))
		}
		return nil
	})
}
