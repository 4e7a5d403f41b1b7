package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

const ofAlice = `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: tokens, match: {paths: [/tokens]}, partition: [consumer], limit: {quota: 40, window: 24h}, mode: strict}
  - {name: leased, match: {paths: [/leased]}, partition: [consumer], limit: {quota: 40, window: 24h}, mode: leased}
  - {name: windows, match: {paths: [/windows]}, partition: [consumer], limit: {quota: 5, window: 24h}, algorithm: fixed_window, mode: strict}
  - {name: here, match: {paths: [/here]}, partition: [consumer], limit: {quota: 5, window: 24h}, mode: local}
`

type held struct {
	Buckets []struct{ Level, Used, Leased, Given int64 }
	Ban     *struct{ Reason string }
	Durable bool
}

// key looks at a key of the consumer alice, or changes it.
func (w *world) key(method, path, body string) (k held) {
	w.t.Helper()
	got, err := w.controlPlane.Call(w.within(patience), method, "/v1/keys/"+path+"?partition=consumer:alice",
		[]byte(body))
	if err == nil && got.Status == http.StatusOK {
		err = json.Unmarshal(got.Body, &k)
	}
	if err != nil || got.Status != http.StatusOK {
		w.t.Fatalf("%s %s: %d %s %v", method, path, got.Status, got.Body, err)
	}
	return k
}

// unleased returns alice's bucket of a policy as soon as none of its tokens is leased: tokens of
// waiting requests count as leased for 50 ms.
func (w *world) unleased(policy string) (k held) {
	w.t.Helper()
	err := stack.Await(w.within(patience), "the end of all leases", func(context.Context) error {
		if k = w.key(http.MethodGet, policy, ""); k.Buckets[0].Leased != 0 {
			return fmt.Errorf("%s holds %+v", policy, k)
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

// spend has alice use up a policy at both Envoys and returns how many requests passed.
func (w *world) spend(path string, n int) int64 {
	w.t.Helper()
	got := load{clients: 2, total: n, request: func(i int) *http.Request {
		return request(http.MethodPost, w.envoys[i%2].URL()+path, "x-api-key", "alice")
	}}.run(w.ctx)
	got.mustBe(w.t, 200, 429)
	return got.statuses[200]
}

// Tokens that are granted to the bucket of an optimistic limit pass at an Envoy that knew it to be
// empty for hours, and no more than these tokens.
func TestAGrantReachesAnOptimisticLimit(t *testing.T) {
	t.Parallel()
	w := start(t, setup{policies: `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: o, match: {paths: [/o]}, partition: [consumer], limit: {quota: 10, window: 24h}, mode: optimistic}
`})
	url := w.envoys[0].URL() + "/o"
	passed := func(n int) (count int) {
		for range n {
			if ask(t, http.MethodGet, url, "x-api-key", "alice").status == http.StatusOK {
				count++
			}
		}
		return count
	}
	if n := passed(20); n != 10 {
		t.Fatalf("%d of 10 passed", n)
	}
	w.await("the report", func(context.Context) error {
		if b := w.key(http.MethodGet, "o", "").Buckets[0]; b.Level != 0 {
			return fmt.Errorf("%+v", b)
		}
		return nil
	})
	if b := w.key(http.MethodPost, "o/grant", `{"tokens": 4, "reason": "sorry"}`).Buckets[0]; b.Given != 4 || b.Level != 4 {
		t.Errorf("after a grant of 4 %+v", b)
	}
	w.awaitStatus(0, 200, "/o", "x-api-key", "alice")
	if n := 1 + passed(20); n != 4 {
		t.Errorf("after a grant of 4 %d have passed", n)
	}
}

// A client that has used everything up may go on at once after its key is reset, also at Envoys
// that had refused it for a day. A grant gives it exactly the granted tokens.
func TestKeysAreResetAndGranted(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 2, policies: ofAlice})
	for _, policy := range []string{"tokens", "windows"} {
		path := "/" + policy
		quota := map[string]int64{"tokens": 40, "windows": 5}[policy]
		first := w.spend(path, 100)
		if first > quota {
			t.Errorf("%s: %d have passed", policy, first)
		}
		before := w.unleased(policy)
		t.Logf("%s: %d passed, %+v", policy, first, before)
		if b := before.Buckets[0]; b.Level != 0 || b.Used != quota {
			t.Errorf("%s holds %+v", policy, b)
		}
		begin := time.Now()
		after := w.key(http.MethodPost, policy+"/reset", `{"reason": "the client was fixed"}`)
		if b := after.Buckets[0]; b.Level+b.Leased != quota {
			t.Errorf("%s: after the reset %+v", policy, after)
		}
		for i := range w.envoys {
			w.awaitStatus(i, 200, path, "x-api-key", "alice")
		}
		t.Logf("%s: both Envoys let the client pass %d ms after the reset", policy, time.Since(begin).Milliseconds())
		if passed := 2 + w.spend(path, 100); passed > quota || passed < quota/2 {
			t.Errorf("%s: after the reset %d have passed", policy, passed)
		}
		left := w.unleased(policy).Buckets[0]
		given := w.key(http.MethodPost, policy+"/grant", `{"tokens": 4, "reason": "sorry"}`).Buckets[0]
		if given.Given != 4 || given.Level != left.Level+4 {
			t.Errorf("%s: %+v, and after a grant of 4 %+v", policy, left, given)
		}
		w.awaitStatus(0, 200, path, "x-api-key", "alice")
		if passed := 1 + w.spend(path, 50); passed < 3 || passed > 4+left.Leased {
			t.Errorf("%s: after a grant of 4 %d have passed", policy, passed)
		}
	}
	// It is unknown which of the tokens that were leased lately are used: a reset leaves them out.
	// On a busy machine a lease may end before the reset: then the next one is looked at.
	w.await("a reset with leases out", func(context.Context) error {
		w.spend("/leased", 4)
		b := w.key(http.MethodPost, "leased/reset", `{"reason": "too early"}`).Buckets[0]
		if b.Level != 40-b.Leased {
			t.Errorf("with leases out a reset leaves %+v", b)
		}
		if b.Leased == 0 {
			return fmt.Errorf("no lease was out: %+v", b)
		}
		return nil
	})
	w.spend("/here", 40)
	w.key(http.MethodPost, "here/reset", `{"reason": "again"}`)
	for i := range w.envoys {
		w.awaitStatus(i, 200, "/here", "x-api-key", "alice")
	}
}

// A ban reaches both Envoys under load within two seconds, whatever tokens they hold, and so does
// its end; it also works while Redis is away.
func TestAKeyIsBannedUnderLoad(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 2, workers: 2, policies: `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: api, partition: [consumer], limit: {quota: 1000000, window: 24h}, mode: leased}
`})
	busy := func(forbidden int, order func()) time.Duration {
		t.Helper()
		var all []*background
		for _, e := range w.envoys {
			all = append(all, load{clients: 8, rate: 400, keep: true, request: func(i int) *http.Request {
				return request(http.MethodPost, e.URL()+"/", "x-api-key", "alice")
			}}.background(w.ctx))
		}
		time.Sleep(300 * time.Millisecond)
		given := time.Now()
		order()
		time.Sleep(promptly)
		var obeyed time.Duration
		for _, b := range all {
			got := b.end()
			got.mustBe(t, 200, 403, 429) // The failure ladder may refuse without Redis.
			for _, a := range got.answers {
				if a.status == forbidden {
					obeyed = max(obeyed, a.at.Sub(given))
				}
			}
		}
		mustTake(t, "the order", given, given.Add(obeyed), promptly)
		return obeyed
	}
	took := busy(200, func() { w.key(http.MethodPost, "api/ban", `{"reason": "abuse"}`) })
	t.Logf("banned after %d ms", took.Milliseconds())
	if a := ask(t, http.MethodPost, w.envoys[0].URL()+"/", "x-api-key", "bob"); a.status != 200 {
		t.Errorf("another consumer is answered %d", a.status)
	}
	took = busy(403, func() { w.key(http.MethodDelete, "api/ban", "") })
	t.Logf("lifted after %d ms", took.Milliseconds())
	w.redis.Kill()
	took = busy(200, func() {
		if k := w.key(http.MethodPost, "api/ban", `{"reason": "abuse"}`); k.Durable || k.Ban == nil {
			t.Errorf("without Redis: %+v", k)
		}
	})
	t.Logf("without Redis banned after %d ms", took.Milliseconds())
	w.redis.Restart()
	w.await("the ban to be stored", func(context.Context) error {
		if k := w.key(http.MethodGet, "api", ""); !k.Durable || k.Ban == nil {
			return fmt.Errorf("%+v", k)
		}
		return nil
	})
}
