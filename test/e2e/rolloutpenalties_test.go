package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/weir-proxy/weir/tools/stack"
)

// A version that is too strict is tried on some Envoys. The penalties that its Envoys begin refuse
// no caller at the other Envoys. So the rule sees the version's effect, and takes it back, and the
// penalties with it. Once such a version is promoted, all Envoys obey them.
func TestPenaltiesOfARolledOutVersion(t *testing.T) {
	t.Parallel()
	const callers, each, before, after = 20, 12, 100, 2
	w := start(t, setup{envoys: 4, embedded: true})
	set := func(quota int) string {
		return fmt.Sprintf("version: weir/v1\nidentity: {consumer: [{header: x-api-key}]}\npolicies:\n"+
			"  - {name: api, match: {paths: [/api]}, partition: [consumer], mode: local, "+
			"limit: {quota: %d, window: 24h}, penalty: {after: {refusals: 5, within: 1h}, for: 1h}}\n", quota)
	}
	current := w.apply(set(before))
	w.awaitApplied(current)
	begin := func(query string) (chosen, others *stack.Envoy) {
		t.Helper()
		version, _ := w.write(http.MethodPut, "/v1/policyset?nodes=50%25"+query, fmt.Sprintf(`"%d"`, current), set(after))
		w.await("its nodes to have it", func(context.Context) error {
			if got, found := w.compared(); !found || got.Applied != got.Chosen || got.Chosen == 0 {
				return fmt.Errorf("%+v", got)
			}
			return nil
		})
		its, theirs := w.halves(version)
		return its[0], theirs[0]
	}
	ask := func(at *stack.Envoy, caller string) (answer, error) {
		return send(http.DefaultClient, request(http.MethodGet, at.URL()+"/api", "x-api-key", caller))
	}
	// spend sends the requests of each caller, and counts the admitted requests and the requests
	// that a penalty refuses.
	spend := func(at *stack.Envoy, kind string) (admitted, penalised int) {
		t.Helper()
		for n := range callers * each {
			got, err := ask(at, fmt.Sprint(kind, n%callers))
			switch {
			case err != nil:
				t.Fatal(err)
			case got.status == http.StatusOK:
				admitted++
			case inPenalty(got):
				penalised++
			}
		}
		return admitted, penalised
	}
	awaitStatus := func(at *stack.Envoy, caller string, penalised bool) {
		t.Helper()
		w.await(at.Name+" to answer "+caller, func(context.Context) error {
			got, err := ask(at, caller)
			if err == nil && inPenalty(got) != penalised {
				err = fmt.Errorf("%d %s", got.status, got.body)
			}
			return err
		})
	}

	chosen, others := begin("&abort_if=" + url.QueryEscape("refused > 2x over 100"))
	if admitted, penalised := spend(chosen, "bot-"); penalised == 0 || admitted > callers*each/2 {
		t.Fatalf("the version's Envoy admitted %d and penalised %d", admitted, penalised)
	}
	w.await("the penalties to be listed", func(context.Context) error {
		if n := w.listed(""); n < callers {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	if admitted, _ := spend(others, "bot-"); admitted != callers*each {
		t.Errorf("the other Envoy admitted %d of %d", admitted, callers*each)
	}
	// Requests of the first seconds are compared with nothing: other nodes count requests from
	// before the rollout.
	more := 0
	w.awaitComparison("the rollout to be taken back", func(context.Context) error {
		for n := range 20 {
			more++
			_, err := ask(others, fmt.Sprint("user-", more))
			if _, also := ask(chosen, fmt.Sprint("bot-", n%callers)); err != nil || also != nil {
				return errors.Join(err, also)
			}
		}
		if got, found := w.compared(); found {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	awaitStatus(chosen, "bot-0", false)
	w.await("no penalty to be listed", func(context.Context) error {
		if n := w.listed(""); n > 0 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})

	chosen, others = begin("")
	spend(chosen, "crawler-")
	if got, err := ask(others, "crawler-0"); err != nil || got.status != http.StatusOK {
		t.Errorf("%d %s %v", got.status, got.body, err)
	}
	w.write(http.MethodPut, "/v1/rollout", "*", `{"nodes": "100%"}`)
	awaitStatus(others, "crawler-0", true)
	awaitStatus(chosen, "crawler-0", true)
}
