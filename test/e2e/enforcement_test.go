package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// promptly is how soon a kill switch must be obeyed everywhere.
const promptly = 2 * time.Second

// order replaces all orders and returns whether they are stored, and when they were given.
func (w *world) order(orders ...string) (durable bool, given time.Time) {
	w.t.Helper()
	given = time.Now()
	body := `{"orders": [` + strings.Join(orders, ", ") + `]}`
	got, err := w.controlPlane.Call(w.within(patience), http.MethodPut, "/v1/enforcement", []byte(body), "If-Match",
		"*")
	if err != nil || got.Status != http.StatusOK {
		w.t.Fatalf("PUT /v1/enforcement: %d %s %v", got.Status, got.Body, err)
	}
	return w.inForce(got.Body).Durable, given
}

type inForce struct {
	Orders  []struct{ State, Reason string }
	Durable bool
}

func (w *world) inForce(body []byte) (now inForce) {
	w.t.Helper()
	if err := json.Unmarshal(body, &now); err != nil {
		w.t.Fatalf("%s: %v", body, err)
	}
	return now
}

// awaitStatus waits until an Envoy answers a request with a status.
func (w *world) awaitStatus(envoy int, status int, path string, header ...string) {
	w.t.Helper()
	w.await(fmt.Sprintf("%s to answer %d at %s", w.envoys[envoy].Name, status, path), func(context.Context) error {
		if a := ask(w.t, http.MethodPost, w.envoys[envoy].URL()+path, header...); a.status != status {
			return fmt.Errorf("it answers %d", a.status)
		}
		return nil
	})
}

// awaitObeyed waits until every node has acknowledged the orders that are in force.
func (w *world) awaitObeyed() {
	w.t.Helper()
	w.await("every node to obey the orders in force", func(ctx context.Context) error {
		got, err := w.controlPlane.Call(ctx, http.MethodGet, "/v1/nodes", nil)
		if err != nil {
			return err
		}
		var list struct {
			Current uint64 `json:"current_enforcement"`
			Nodes   []struct{ Enforcement uint64 }
		}
		err = json.Unmarshal(got.Body, &list)
		if err != nil || list.Current == 0 || len(list.Nodes) != len(w.envoys) {
			return fmt.Errorf("%s %v", got.Body, err)
		}
		for _, n := range list.Nodes {
			if n.Enforcement != list.Current {
				return fmt.Errorf("%s", got.Body)
			}
		}
		return nil
	})
}

const drained = `
version: weir/v1
policies:
  - {name: drained, partition: [], limit: {quota: 10, window: 24h}, mode: MODE}
`

// under keeps all Envoys busy while something is ordered, and returns how long after the order the
// last answer came that the order forbids, over all Envoys.
func (w *world) under(forbidden int, order func() time.Time) (obeyed time.Duration) {
	w.t.Helper()
	var busy []*background
	for _, e := range w.envoys {
		busy = append(busy, load{url: e.URL() + "/", clients: 8, rate: 500, keep: true}.background(w.ctx))
	}
	time.Sleep(300 * time.Millisecond)
	given := order()
	time.Sleep(promptly + 300*time.Millisecond)
	for i, b := range busy {
		got := b.end()
		got.mustBe(w.t, 200, 429)
		if got.statuses[200] == 0 || got.statuses[429] == 0 {
			w.t.Errorf("%s answered %s", w.envoys[i].Name, got)
		}
		for _, a := range got.answers {
			if a.status == forbidden {
				obeyed = max(obeyed, a.at.Sub(given))
			}
		}
	}
	mustTake(w.t, "the order", given, given.Add(obeyed), promptly)
	return obeyed
}

// The kill switch reaches all workers of all Envoys under load, and so does its end; also while
// Redis is away, and then it is stored when Redis is back.
func TestTheKillSwitchUnderLoad(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 2, workers: 2, policies: strings.Replace(drained, "MODE", "leased", 1)})
	load{clients: 4, total: 200,
		request: func(i int) *http.Request {
			return request(http.MethodPost, w.envoys[i%2].URL()+"/")
		}}.run(w.ctx).mustBe(t, 200, 429)
	const off = `{"state": "off", "reason": "every checkout is refused"}`
	for range 3 {
		t.Logf("off after %d ms", w.under(429, func() time.Time {
			durable, given := w.order(off)
			if !durable {
				t.Error("it is not stored")
			}
			return given
		}).Milliseconds())
		t.Logf("lifted after %d ms", w.under(200, func() time.Time {
			_, given := w.order()
			return given
		}).Milliseconds())
	}
	for name, away := range map[string]struct{ leave, back func() }{
		"dead": {w.redis.Kill, w.redis.Restart}, "silent": {w.redis.Pause, w.redis.Resume},
	} {
		away.leave()
		took := w.under(429, func() time.Time {
			durable, given := w.order(off)
			if durable {
				t.Errorf("Redis is %s, and the order is stored", name)
			}
			return given
		})
		t.Logf("Redis is %s: off after %d ms", name, took.Milliseconds())
		away.back()
		w.await("the order to be stored", func(ctx context.Context) error {
			got, err := w.controlPlane.Call(ctx, http.MethodGet, "/v1/enforcement", nil)
			if err != nil {
				return err
			}
			if now := w.inForce(got.Body); !now.Durable || len(now.Orders) != 1 {
				return fmt.Errorf("%s", got.Body)
			}
			return nil
		})
		if got := statuses(t, 3, w.envoys[0].URL()+"/"); got != "200 200 200" {
			t.Errorf("Redis is back: %s", got)
		}
		w.order()
		w.awaitStatus(0, 429, "/")
		w.awaitStatus(1, 429, "/")
	}
	content, err := w.controlPlane.Call(w.within(patience), http.MethodGet, "/v1/audit?resource=enforcement", nil)
	if n := strings.Count(string(content.Body), `"enforcement.put"`); err != nil || n < 2 {
		t.Errorf("the audit has %d changes: %s %v", n, content.Body, err)
	}
}

// An order ends by itself on a node whose control plane is away, and a worker that starts meanwhile
// obeys it too.
func TestAnOrderEndsWithoutTheControlPlane(t *testing.T) {
	t.Parallel()
	w := start(t, setup{embedded: true, policies: strings.Replace(drained, "MODE", "local", 1)})
	e := w.envoys[0]
	load{url: e.URL() + "/", clients: 2, total: 20}.run(w.ctx).mustBe(t, 200, 429)
	end := time.Now().Add(4 * time.Second)
	w.order(`{"state": "off", "reason": "for a moment", "expires_at": "` + end.Format(time.RFC3339Nano) + `"}`)
	w.awaitStatus(0, 200, "/")
	w.controlPlane.Stop()
	got := load{url: e.URL() + "/", clients: 4, rate: 200, during: 6 * time.Second, keep: true}.run(w.ctx)
	got.mustBe(t, 200, 429)
	var last, first time.Time // the last that passed, the first that was refused
	for _, a := range got.answers {
		if a.status == 200 && a.at.After(last) {
			last = a.at
		}
		if a.status == 429 && (first.IsZero() || a.at.Before(first)) {
			first = a.at
		}
	}
	t.Logf("the last passed %d ms after the end, the first was refused %d ms after it", last.Sub(end).Milliseconds(),
		first.Sub(end).Milliseconds())
	if first.Before(end.Add(-50*time.Millisecond)) || first.IsZero() {
		t.Error("that is before it was to end")
	}
	mustTake(t, "the end of the order", end, last, promptly)
}

// A share of the keys is the same keys on every Envoy and at every larger share.
func TestAShareOfTheKeysIsSwitchedOff(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 2, embedded: true, policies: `
version: weir/v1
policies:
  - {name: keys, match: {paths: [/keys]}, partition: ["header:x-key"], limit: {quota: 1, window: 24h}, mode: local}
`})
	const keys = 400
	off := func(envoy int) map[int]bool {
		passed := map[int]bool{}
		for i := range keys {
			got := statuses(t, 2, w.envoys[envoy].URL()+"/keys", "x-key", fmt.Sprint(i))
			passed[i] = strings.HasSuffix(got, "200")
		}
		return passed
	}
	before := map[int]bool{}
	for _, percent := range []int{30, 60} {
		w.order(fmt.Sprintf(`{"state": "off", "percent": %d, "reason": "gently"}`, percent))
		w.awaitObeyed()
		time.Sleep(50 * time.Millisecond) // The workers read at their tick.
		first, second := off(0), off(1)
		n := 0
		for i := range keys {
			if first[i] != second[i] || before[i] && !first[i] {
				t.Errorf("%d %%: key %d is off on one Envoy: %v, on the other: %v, before: %v", percent, i, first[i],
					second[i], before[i])
			}
			if first[i] {
				n++
			}
		}
		t.Logf("at %d %% %d of %d keys are off", percent, n, keys)
		if share := n * 100 / keys; share < percent-12 || share > percent+12 {
			t.Errorf("that is %d %%", share)
		}
		before = first
	}
}

// Only an order that switches everything off lifts bans. The requests that it lets pass are
// counted.
func TestOffForEverythingLiftsBans(t *testing.T) {
	t.Parallel()
	w := start(t, setup{embedded: true,
		policies: "{version: weir/v1, banned: {client_ips: [127.0.0.1]}, policies: [{name: a, partition: [], limit: " +
			"{quota: 1, window: 24h}}]}"})
	w.awaitStatus(0, 403, "/")
	for _, order := range []string{`{"state": "shadow", "reason": "x"}`, `{"state": "off", "policy": "a", "reason": "x"}`, `{"state": "off", "percent": 99, "reason": "x"}`} {
		w.order(order)
		w.awaitLog(w.envoys[0], "weir: ")
		if got := statuses(t, 2, w.envoys[0].URL()+"/"); got != "403 403" {
			t.Errorf("%s: %s", order, got)
		}
	}
	w.order(`{"state": "off", "reason": "x"}`)
	w.awaitStatus(0, 200, "/")
	if got := statuses(t, 3, w.envoys[0].URL()+"/"); got != "200 200 200" {
		t.Errorf("%s", got)
	}
	w.awaitCounter(w.envoys[0], "weir.requests.bypassed", 4)
	w.awaitCounter(w.envoys[0], "weir.enforcement.orders", 1)
	w.order()
	w.awaitStatus(0, 403, "/")
	w.awaitCounter(w.envoys[0], "weir.enforcement.orders", 0)
}
