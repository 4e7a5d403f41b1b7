package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

// compared is how a rollout stands.
type compared struct {
	Chosen, Applied int
	Verdict         string
	Its, Others     sideOf
	Policies        []struct {
		Policy      string
		Its, Others sideOf
	}
}

type sideOf struct {
	Requests, Refused, Errors int64
}

// The nodes of a rollout refuse far more than all other nodes. Its rule takes it back, through the
// replica that is left after the replica that began it was killed. A rollout whose nodes are no
// worse goes on, and shows exactly the decisions of both sides.
func TestARolloutIsStoppedByItsRule(t *testing.T) {
	t.Parallel()
	second, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, setup{envoys: 4, alone: true, ways: func(_ string, port int) []int { return []int{port, second} }})
	w.serve.RedisURL = redistest.Start(t).URL()
	w.startControlPlane()
	one := w.controlPlane
	w.serve.Port = second
	w.startControlPlane()
	set := func(quota int) string {
		return fmt.Sprintf("version: weir/v1\npolicies:\n"+
			"  - {name: api, match: {paths: [/api]}, partition: [], mode: local, "+
			"limit: {quota: %d, window: 24h}}\n", quota)
	}
	w.awaitApplied(w.apply(set(100_000)))
	begin := func(base, quota int) (chosen, others []*stack.Envoy) {
		t.Helper()
		rule := url.QueryEscape("refused > 2x over 100")
		version, _ := w.write(http.MethodPut, "/v1/policyset?nodes=50%25&abort_if="+rule,
			fmt.Sprintf(`"%d"`, base), set(quota))
		w.await("its nodes to have it", func(context.Context) error {
			got, found := w.compared()
			if !found || got.Applied != got.Chosen || got.Chosen == 0 {
				return fmt.Errorf("%+v", got)
			}
			return nil
		})
		return w.halves(version)
	}
	spend := func(at []*stack.Envoy, n int) (got tally) {
		got = load{clients: 4, total: n, request: func(i int) *http.Request {
			return request(http.MethodGet, at[i/2%len(at)].URL()+[]string{"/api", "/free"}[i%2])
		}}.run(w.ctx)
		got.mustBe(t, 200, 429)
		return got
	}

	// No worse: neither without traffic, nor by the refusals of both sides.
	chosen, others := begin(1, 90_000)
	if got, _ := w.compared(); got.Verdict != "too few requests" || got.Its.Requests+got.Others.Requests != 0 {
		t.Errorf("without traffic: %+v", got)
	}
	askedOfIts, askedOfOthers := int64(0), int64(0)
	w.awaitComparison("both sides to be compared", func(context.Context) error {
		const n = 40
		its, theirs := spend(chosen, n), spend(others, n)
		askedOfIts, askedOfOthers = askedOfIts+n, askedOfOthers+n
		if its.statuses[429]+theirs.statuses[429] > 0 {
			t.Fatalf("refused: %s and %s", its, theirs)
		}
		got, found := w.compared()
		if !found {
			t.Fatal("a rollout that is no worse was taken back")
		}
		// A report may be missing, none is counted twice. A worker that has not switched yet
		// decides by the version before, and says so.
		if got.Its.Requests > askedOfIts || got.Its.Requests+got.Others.Requests > askedOfIts+askedOfOthers ||
			got.Its.Refused+got.Others.Refused+got.Its.Errors+got.Others.Errors > 0 {
			t.Fatalf("of %d and %d: %+v", askedOfIts, askedOfOthers, got)
		}
		if len(got.Policies) != 1 || got.Verdict != "kept" || got.Policies[0].Its.Requests == 0 {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	w.write(http.MethodDelete, "/v1/rollout", "*", "")

	// Far worse, and the replica that began it is gone.
	w.controlPlane, one = one, w.controlPlane
	chosen, others = begin(1, 10)
	w.controlPlane.Kill()
	w.controlPlane = one
	w.awaitComparison("the rollout to be taken back", func(context.Context) error {
		spend(others, 40)
		spend(chosen, 40)
		if got, found := w.compared(); found {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	for _, e := range w.envoys {
		w.await(e.Name+" to decide by the version before", func(context.Context) error {
			a, err := send(http.DefaultClient, request(http.MethodGet, e.URL()+"/api"))
			if err == nil && a.status != http.StatusOK {
				err = fmt.Errorf("status %d", a.status)
			}
			return err
		})
	}
	entry := string(w.get("/v1/audit?resource=rollout&page_size=1").Body)
	for _, part := range []string{`"action":"rollout.abort"`, `refused \u003e 2x: `, " were refused, on the others 0 % (0 of "} {
		if !strings.Contains(entry, part) && !strings.Contains(entry, strings.ReplaceAll(part, `\u003e`, ">")) {
			t.Errorf("the audit lacks %s: %s", part, entry)
		}
	}
}

// awaitComparison waits for a thing that both sides of a rollout must be compared for. Reports come
// each five seconds, and the reports of the first six seconds are left out.
func (w *world) awaitComparison(what string, ready func(context.Context) error) {
	w.t.Helper()
	if err := stack.Await(w.within(4*patience), what, ready); err != nil {
		w.t.Fatal(err)
	}
}

// compared returns the rollout under way; false if there is none.
func (w *world) compared() (got compared, found bool) {
	w.t.Helper()
	a := w.call(http.MethodGet, "/v1/rollout", "", "")
	if a.Status == http.StatusNotFound {
		return got, false
	}
	if err := json.Unmarshal(a.Body, &got); err != nil || a.Status != http.StatusOK {
		w.t.Fatalf("%d %s: %v", a.Status, a.Body, err)
	}
	return got, true
}
