package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

// change is an audit entry as the test reads it.
type change struct {
	Action, Resource string
	RequestID        string `json:"request_id"`
	Before, After    json.RawMessage
}

// told is what an entry says of a policy set, or of a consumer.
type told struct {
	Version uint64
	Tier    string
}

// read is what an entry says, in the form of v; what it does not say stays zero.
func read[T any](t *testing.T, text json.RawMessage) (v T) {
	t.Helper()
	if len(text) > 0 {
		if err := json.Unmarshal(text, &v); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return v
}

// reasons are those of orders.
func reasons(t *testing.T, text json.RawMessage) (all string) {
	t.Helper()
	for _, o := range read[[]struct{ Reason string }](t, text) {
		all += o.Reason
	}
	return all
}

const crashPolicies = "version: weir/v1\ntiers: [t0, t1, t2]\nidentity: {consumer: [{header: x-key}], tier: [assignment], default_tier: t0}\n" +
	"policies:\n  - {name: p, partition: [], limit: {quota: %d, window: 1h}}\n"

// writes makes changes of the policy set, of one consumer and of the orders, one after the other, until the control plane is gone. It returns the
// request ids of those that were answered.
func writes(c *stack.ControlPlane, random *rand.Rand, count *atomic.Int64) (answered []string) {
	for {
		n := count.Add(1)
		id := fmt.Sprintf("change-%06d", n)
		method, path, body := http.MethodPut, "/v1/policyset", fmt.Sprintf(crashPolicies, n)
		switch random.IntN(3) {
		case 0:
			path, body = "/v1/enforcement", fmt.Sprintf(`{"orders": [{"state": "shadow", "policy": "p", "reason": %q}]}`, id)
		case 1:
			path, body = "/v1/consumers/alice", fmt.Sprintf(`{"tier": "t%d"}`, random.IntN(3))
			if random.IntN(4) == 0 {
				method, body = http.MethodDelete, ""
			}
		}
		answer, err := c.Call(context.Background(), method, path, []byte(body), "If-Match", "*", "X-Request-Id", id)
		if err != nil {
			return answered
		}
		if answer.Status/100 == 2 {
			answered = append(answered, id)
		}
	}
}

// history is all audit entries, oldest first.
func (w *world) history() (all []change) {
	w.t.Helper()
	for token := ""; ; {
		var page struct {
			Entries []change
			Next    string `json:"next_page_token"`
		}
		if err := json.Unmarshal(w.get("/v1/audit?page_size=200&page_token="+token).Body, &page); err != nil {
			w.t.Fatal(err)
		}
		for _, e := range page.Entries {
			all = append([]change{e}, all...)
		}
		if token = page.Next; token == "" {
			return all
		}
	}
}

// agree checks that the audit tells exactly how the state came to be: each change begins where the last one ended, the last one ended in
// what there is, and every change that was answered is there once.
func (w *world) agree(seed uint64, answered []string) {
	w.t.Helper()
	var version uint64
	tier, order, seen := "", "", map[string]int{}
	for _, e := range w.history() {
		seen[e.RequestID]++
		switch {
		case e.Resource == "policyset":
			before, after := read[told](w.t, e.Before), read[told](w.t, e.After)
			if before.Version != version || after.Version != version+1 {
				w.t.Fatalf("seed %d: after version %d comes %s %s → %s", seed, version, e.RequestID, e.Before, e.After)
			}
			version = after.Version
		case strings.HasPrefix(e.Resource, "consumers/"):
			before, after := read[told](w.t, e.Before), read[told](w.t, e.After)
			if before.Tier != tier || e.Action == "consumer.delete" != (after.Tier == "") {
				w.t.Fatalf("seed %d: after tier %q comes %s %s → %s", seed, tier, e.RequestID, e.Before, e.After)
			}
			tier = after.Tier
		case e.Resource == "enforcement":
			if before := reasons(w.t, e.Before); before != order {
				w.t.Fatalf("seed %d: after the order %q comes %s %s → %s", seed, order, e.RequestID, e.Before, e.After)
			}
			order = reasons(w.t, e.After)
		}
	}
	if now := w.get("/v1/policyset").ETag; now != fmt.Sprintf(`"%d"`, version) {
		w.t.Errorf("seed %d: the policy set is %s, by the audit it is version %d", seed, now, version)
	}
	held := struct{ Tier string }{}
	if answer := w.call(http.MethodGet, "/v1/consumers/alice", "", ""); answer.Status == http.StatusOK {
		if err := json.Unmarshal(answer.Body, &held); err != nil {
			w.t.Fatal(err)
		}
	}
	if held.Tier != tier {
		w.t.Errorf("seed %d: alice has the tier %q, by the audit %q", seed, held.Tier, tier)
	}
	orders := read[struct{ Orders json.RawMessage }](w.t, w.get("/v1/enforcement").Body).Orders
	if now := reasons(w.t, orders); now != order {
		w.t.Errorf("seed %d: the order is %q, by the audit %q", seed, now, order)
	}
	for _, id := range answered {
		if seen[id] != 1 {
			w.t.Errorf("seed %d: %s was answered and is %d times in the audit", seed, id, seen[id])
		}
	}
	for id, n := range seen {
		if n != 1 {
			w.t.Errorf("seed %d: %s is %d times in the audit", seed, id, n)
		}
	}
}

// Whenever the control plane is killed, there is no change without its audit entry and no entry without its change, on both stores.
func TestAKilledControlPlaneLeavesChangesWithTheirEntries(t *testing.T) {
	for name, redis := range map[string]bool{"embedded": false, "redis": true} {
		t.Run(name, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Log("seed", seed)
			w := start(t, setup{alone: true})
			if redis {
				w.serve.RedisURL = redistest.Start(t).URL()
			}
			random := rand.New(rand.NewPCG(seed, 1))
			var count atomic.Int64
			var answered []string
			w.startControlPlane()
			w.apply(fmt.Sprintf(crashPolicies, 1))
			for range full(15) {
				done := make(chan []string)
				source := rand.New(rand.NewPCG(random.Uint64(), 2))
				go func() { done <- writes(w.controlPlane, source, &count) }()
				time.Sleep(time.Duration(random.Int64N(int64(60 * time.Millisecond)))) // Until a moment that nobody chose.
				w.controlPlane.Kill()
				answered = append(answered, <-done...)
				w.startControlPlane()
			}
			w.agree(seed, answered)
			t.Logf("%d changes begun, %d answered", count.Load(), len(answered))
			if len(answered) == 0 {
				t.Error("nothing was changed")
			}
		})
	}
}
