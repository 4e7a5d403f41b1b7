package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

// drafted returns a policy set with a limit that every request asks the control plane for, and the
// same with leases.
func drafted(quota int) string {
	return fmt.Sprintf(`
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: exact, match: {paths: [/exact]}, partition: [consumer], limit: {quota: %[1]d, window: 24h}, mode: strict, on_failure: {local_for: 0s, then: deny}}
  - {name: leased, match: {paths: [/leased]}, partition: [consumer], limit: {quota: %[1]d, window: 24h}}
`, quota)
}

// A version is rolled out to half of four Envoys and promoted, and a second version is taken back,
// through two replicas of the control plane on one Redis. Each Envoy decides by its version.
// Requests that nodes of either version admit count for both. Nothing is forgotten at any end.
func TestAVersionIsRolledOutToHalfTheEnvoys(t *testing.T) {
	t.Parallel()
	second, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, setup{envoys: 4, alone: true, ways: func(envoy string, port int) []int {
		if envoy == "envoy-1" || envoy == "envoy-2" {
			return []int{port}
		}
		return []int{second}
	}})
	w.serve.RedisURL = redistest.Start(t).URL()
	w.startControlPlane()
	one := w.controlPlane
	w.serve.Port = second
	w.startControlPlane()
	two := w.controlPlane
	w.controlPlane = one
	w.awaitApplied(w.apply(drafted(100)))
	// spend asks for more than is left. It returns how many requests have passed, and how many the
	// failure ladder has refused because an answer was late.
	spend := func(path string, at []*stack.Envoy, n int) (passed, late int64) {
		got := load{clients: 4, total: n, keep: true, request: func(i int) *http.Request {
			return request(http.MethodPost, at[i%len(at)].URL()+path, "x-api-key", "alice")
		}}.run(w.ctx)
		got.mustBe(t, 200, 429)
		return got.statuses[200], got.refusedByLadder()
	}
	shows := func(limit int, at []*stack.Envoy) {
		t.Helper()
		begin := time.Now()
		for _, e := range at {
			w.await(fmt.Sprintf("%s to decide by the limit of %d", e.Name, limit), func(context.Context) error {
				a, err := send(http.DefaultClient, request(http.MethodPost, e.URL()+"/exact", "x-api-key", "nobody"))
				if err == nil && !strings.Contains(a.Get("RateLimit-Policy"), fmt.Sprintf("q=%d;", limit)) {
					err = fmt.Errorf("RateLimit-Policy is %s", a.Get("RateLimit-Policy"))
				}
				return err
			})
		}
		mustTake(t, fmt.Sprintf("the limit of %d at %d Envoys", limit, len(at)), begin, time.Now(), time.Second)
	}
	// must spends tokens of the exact limit, and checks how many of all requests have passed so
	// far. Each request that the ladder has refused may have cost a token.
	var passed, denied int64
	must := func(what string, at []*stack.Envoy, n int, want int64) {
		t.Helper()
		got, late := spend("/exact", at, n)
		passed, denied = passed+got, denied+late
		if passed > want || passed < want-denied {
			t.Errorf("%s: %d have passed by then, want %d; the ladder has refused %d", what, passed, want, denied)
		}
	}
	// lend spends leased tokens, and checks the same. Requests that shares have passed come on top
	// of the limit until the control plane has charged them.
	var leased, refused int64
	lend := func(n int, least, most int64) {
		t.Helper()
		got, late := spend("/leased", w.envoys, n)
		leased, refused = leased+got, refused+late
		shares := w.decidedByShare() - refused
		t.Logf("%d have passed on leased tokens; shares have passed %d and refused %d", leased, shares, refused)
		if leased > most+shares || leased < least-refused {
			t.Errorf("%d have passed on leased tokens, want %d to %d", leased, least, most)
		}
	}
	must("before it", w.envoys, 40, 40)
	lend(40, 40, 40)

	// Half of the nodes have a lower limit.
	w.write(http.MethodPut, "/v1/policyset?nodes=50%", `"1"`, drafted(60))
	first, others := w.halves(2)
	shows(60, first)
	shows(100, others)
	must("the draft's nodes", first, 60, 60)
	must("the others", others, 100, 100)
	lend(200, 0, 100) // The larger limit.
	// The other replica takes it back, and nothing that its nodes were granted is forgotten.
	w.controlPlane = two
	w.write(http.MethodDelete, "/v1/rollout", "*", "")
	shows(100, w.envoys)
	must("taken back", w.envoys, 40, 100)

	// Then a higher limit, which is promoted.
	w.write(http.MethodPut, "/v1/policyset?nodes=50%", `"1"`, drafted(150))
	shows(150, first)
	shows(100, others)
	must("the others", others, 20, 100)
	must("the draft's nodes", first, 30, 130)
	w.write(http.MethodPut, "/v1/rollout", "*", `{"nodes": "100%"}`)
	shows(150, w.envoys)
	must("promoted", w.envoys, 60, 150)
	lend(200, 140, 150)
	if now := w.get("/v1/policyset"); now.ETag != `"3"` {
		t.Errorf("the current version is %s", now.ETag)
	}
}

// halves returns the Envoys that ought to have a draft, and all other Envoys.
func (w *world) halves(draft uint64) (chosen, others []*stack.Envoy) {
	w.t.Helper()
	var list struct {
		Nodes []struct {
			ID     string
			Wanted uint64
		}
	}
	if err := json.Unmarshal(w.get("/v1/nodes").Body, &list); err != nil {
		w.t.Fatal(err)
	}
	wanted := map[string]uint64{}
	for _, n := range list.Nodes {
		wanted[n.ID] = n.Wanted
	}
	for _, e := range w.envoys {
		if wanted[e.Name] == draft {
			chosen = append(chosen, e)
		} else {
			others = append(others, e)
		}
	}
	if len(chosen) == 0 || len(others) == 0 {
		w.t.Fatalf("%d of %d Envoys are in the first half: %v", len(chosen), len(w.envoys), wanted)
	}
	return chosen, others
}

// A draft limit is decided beside the enforced limit, by its own buckets, and changes no answer.
// The Envoy's metrics have both counts side by side.
func TestACandidateIsCountedBesideItsPolicy(t *testing.T) {
	for _, mode := range []string{"local", "leased", "strict", "optimistic"} {
		t.Run(mode, func(t *testing.T) {
			w := start(t, setup{policies: `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: p, partition: [consumer], limit: {quota: 5, window: 24h}, mode: ` + mode + `, candidate: {limit: {quota: 2, window: 24h}}}
`})
			e := w.envoys[0]
			got := load{clients: 1, total: 8,
				request: func(int) *http.Request {
					return request(http.MethodGet, e.URL()+"/", "x-api-key", "a")
				}}.run(w.ctx)
			got.mustBe(t, 200, 429)
			if got.statuses[200] != 5 {
				t.Errorf("%s, want 5 × 200", got)
			}
			for outcome, want := range map[string]int64{"allowed": 5, "refused": 3} {
				w.awaitCounter(e, "weir.policy.p.outcome."+outcome+".decisions", want)
			}
			w.awaitCounter(e, "weir.policy.p.outcome.candidate_allowed.decisions", 2)
			w.awaitCounter(e, "weir.policy.p.outcome.candidate_refused.decisions", 6)
		})
	}
}
