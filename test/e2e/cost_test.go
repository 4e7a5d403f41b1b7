package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// logins is an upstream that lets the right password in, and takes its time with a wrong one.
type logins struct{ wrong, right atomic.Int64 }

func (u *logins) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("x-password") == "right" {
		u.right.Add(1)
		return
	}
	u.wrong.Add(1)
	select {
	case <-time.After(300 * time.Millisecond):
		w.WriteHeader(http.StatusUnauthorized)
	case <-r.Context().Done():
	}
}

// costPage is the policy set that docs/cost.md begins with.
func costPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/cost.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	policies, _, found := strings.Cut(rest, "```\n")
	if !found {
		t.Fatal("docs/cost.md has no policy set")
	}
	return policies
}

// awaitLevel waits until the bucket of this machine holds so many tokens.
func (w *world) awaitLevel(want int64) {
	w.t.Helper()
	w.await(fmt.Sprint(want, " tokens in the bucket"), func(context.Context) error {
		var held struct {
			Buckets []struct{ Level int64 }
		}
		body := w.get("/v1/keys/failed-logins?partition=client_ip:127.0.0.1").Body
		if err := json.Unmarshal(body, &held); err != nil {
			return err
		}
		if len(held.Buckets) != 1 || held.Buckets[0].Level != want {
			return fmt.Errorf("the bucket: %s", body)
		}
		return nil
	})
}

// guess sends so many wrong passwords at once, to the Envoys in turn.
func (w *world) guess(n int) tally {
	all := load{clients: n, total: n, request: func(i int) *http.Request {
		return request(http.MethodPost, w.envoys[i%len(w.envoys)].URL()+"/login", "x-password", fmt.Sprint(i))
	}}
	return all.run(w.ctx)
}

// Two Envoys of two workers each: log-ins that succeed never count, and of a hundred guesses at
// once five reach the upstream.
func TestOnlyFiveGuessesReachTheUpstream(t *testing.T) {
	up := &logins{}
	w := start(t, setup{envoys: 2, workers: 2, handler: up, policies: costPage(t)})
	for i := range 30 {
		if got := ask(t, "POST", w.envoys[i%2].URL()+"/login", "x-password", "right"); got.status != 200 {
			t.Fatalf("log-in %d: %d %s", i, got.status, got.body)
		}
		w.awaitLevel(5)
	}
	first := w.guess(100)
	first.mustBe(t, 401, 429)
	if up.wrong.Load() != 5 || first.statuses[401] != 5 {
		t.Errorf("%d guesses reached the upstream: %v", up.wrong.Load(), first.statuses)
	}
	w.guess(20).mustBe(t, 429)
	if got := ask(t, "POST", w.envoys[0].URL()+"/login", "x-password", "right"); got.status != 429 || up.wrong.Load() != 5 {
		t.Errorf("after five failures: %d, %d guesses reached the upstream", got.status, up.wrong.Load())
	}
	for _, e := range w.envoys {
		w.awaitCounter(e, "weir.costs.refunded_tokens", 15)
	}
}

// The same without a control plane: each Envoy keeps the limit for itself.
func TestOnlyFiveGuessesAlone(t *testing.T) {
	up := &logins{}
	w := start(t, setup{alone: true, workers: 2, handler: up, plugin: `{"policyset": {"version": "weir/v1", "policies": [` +
		`{"name": "failed-logins", "partition": ["client_ip"], "algorithm": "sliding_log", "limit": {"quota": 5, "window": "15m"}, ` +
		`"cost": {"reserve": 1, "commit": {"status": {"401": 1, "rest": 0}}}, "mode": "local"}]}}`})
	for i := range 50 {
		if got := ask(t, "POST", w.envoys[0].URL()+"/login", "x-password", "right"); got.status != 200 {
			t.Fatalf("log-in %d: %d %s", i, got.status, got.body)
		}
	}
	first := w.guess(100)
	first.mustBe(t, 401, 429)
	if up.wrong.Load() != 5 || first.statuses[401] != 5 {
		t.Errorf("%d guesses reached the upstream: %v", up.wrong.Load(), first.statuses)
	}
}
