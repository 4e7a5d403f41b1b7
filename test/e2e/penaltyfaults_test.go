package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// awaitPenalty waits until an Envoy refuses a caller by a penalty, or no longer does.
func (w *world) awaitPenalty(envoy int, caller string, want bool) {
	w.t.Helper()
	w.await(fmt.Sprintf("%s at %s: penalty %v", caller, w.envoys[envoy].Name, want), func(context.Context) error {
		a := ask(w.t, http.MethodPost, w.envoys[envoy].URL()+"/api", "x-api-key", caller)
		if inPenalty(a) != want {
			return fmt.Errorf("%d %s", a.status, a.body)
		}
		return nil
	})
}

// An order that switches the policy off or into shadow, or all policies off, frees callers with a
// penalty, on both Envoys. When it is lifted, the penalty goes on to its earlier end.
func TestPenaltiesUnderAnOrder(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 2, workers: 2, policies: strings.Replace(penalised, "FIRST", "5m", 1)})
	bots := offenders(3)
	w.offend(bots, 2, 5*time.Minute)
	for _, order := range []string{`"off", "policy": "api"`, `"shadow", "policy": "api"`, `"off"`} {
		w.order(`{"state": ` + order + `, "reason": "a test"}`)
		for i := range w.envoys {
			w.awaitStatus(i, 200, "/api", "x-api-key", bots[0].name)
		}
		w.order()
		for i := range w.envoys {
			w.awaitPenalty(i, bots[0].name, true)
		}
		w.underPenalty(bots, 5*time.Minute)
	}
}

// offendAt makes one Envoy refuse every caller three times. It must then refuse them by a penalty.
func (w *world) offendAt(envoy int, all []offender) {
	w.t.Helper()
	url := w.envoys[envoy].URL() + "/api"
	w.each(all, func(client *http.Client, o *offender) error {
		var got answer
		for n := range 6 {
			begin := time.Now()
			var err error
			if got, err = send(client, request(http.MethodPost, url, "x-api-key", o.name)); err != nil {
				return err
			}
			if n == 4 {
				o.from, o.to = begin, time.Now()
			}
		}
		if !inPenalty(got) {
			return fmt.Errorf("%s: %d %s", o.name, got.status, got.body)
		}
		return nil
	})
}

// Without Redis the known penalties go on everywhere, a new penalty holds on the Envoy where it
// began, and a good caller is not touched. Once Redis is back, all Envoys have the penalty to the
// same end, and then it outlives the Envoys.
func TestPenaltiesWithoutRedis(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 2, workers: 2, policies: strings.Replace(penalised, "FIRST", "5m", 1)})
	known, fresh, good := offenders(3), offenders(6)[3:], []offender{{name: "alice"}, {name: "bob"}}
	w.offend(known, 2, 5*time.Minute)
	w.redis.Kill()
	w.underPenalty(known, 5*time.Minute)
	w.offendAt(0, fresh)
	w.polite(good)
	w.redis.Restart()
	w.await("Redis to have the penalties", func(context.Context) error {
		got, err := w.controlPlane.Call(w.within(patience), http.MethodGet, "/v1/penalties?page_size=1", nil)
		if err == nil && (got.Status != 200 || !strings.Contains(string(got.Body), `"count":6`)) {
			err = fmt.Errorf("%d %s", got.Status, got.Body)
		}
		return err
	})
	w.underPenalty(append(known, fresh...), 5*time.Minute)
	w.restartEnvoy()
	w.restartEnvoy()
	w.awaitPolicies()
	w.underPenalty(append(known, fresh...), 5*time.Minute)
	w.polite(good)
}
