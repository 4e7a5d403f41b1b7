package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/redistest"
)

// keyed limits each key to 40 requests a day; a key whose counter cannot be had is refused soon.
const keyed = `
version: weir/v1
policies:
  - name: keyed
    match: {paths: [/keyed]}
    partition: [header:x-key]
    limit: {quota: 40, window: 24h}
    mode: strict
    on_failure: {local_for: 1s, then: deny}
`

// An Envoy that calls only ready replicas, as in Kubernetes, loses nothing but the buckets of the
// dead shard either, also if that is the one with the policies: the keys of the other shards are
// decided to the last token, and the kill switch works.
func TestReadyReplicasServeWithoutTheirPolicies(t *testing.T) {
	// A call whose answer came late on a busy machine has taken a token that no request got.
	const keys, quota, mayBeLost = 30, 40, 4
	cluster := redistest.StartCluster(t, 3, false, "--cluster-require-full-coverage", "no")
	w := start(t, setup{envoys: 2, alone: true, rewrite: func(config string) string {
		for old, by := range map[string]string{"path: /readyz/store": "path: /readyz",
			"healthy_panic_threshold: {value: 1}": "healthy_panic_threshold: {value: 0}"} {
			if strings.Count(config, old) != 1 {
				t.Fatalf("envoy.yaml has no %s", old)
			}
			config = strings.Replace(config, old, by, 1)
		}
		return config
	}})
	w.serve.RedisURL = cluster.URL()
	w.startControlPlane()
	w.awaitApplied(w.apply(keyed))
	send := func(key, times int) int64 {
		t.Helper()
		got := w.sendKeyed(key, times)
		got.mustBe(t, 200, 429)
		return got.statuses[200]
	}
	meta := cluster.Primaries[cluster.Primary(cluster.Slot("weir:{meta}:version"))]
	first := make([]int64, keys)
	for key := range keys {
		w.await("a first token of each key", func(context.Context) error {
			if first[key] += send(key, 1); first[key] == 0 {
				return errors.New("refused")
			}
			return nil
		})
	}
	dead := strings.Count(meta.Do("KEYS", "weir:*"), "}:b:")
	if dead == 0 || dead == keys {
		t.Fatalf("the shard of the policies keeps %d of %d keys", dead, keys)
	}
	meta.Kill()
	w.await("the replica to miss its policies", func(ctx context.Context) error {
		if a, err := w.controlPlane.Call(ctx, http.MethodGet, "/readyz/store", nil); err != nil || a.Status != 503 {
			return fmt.Errorf("%+v, %w", a, err)
		}
		return nil
	})
	if a, err := w.controlPlane.Call(w.ctx, http.MethodGet, "/readyz", nil); err != nil || a.Status != 200 {
		t.Fatalf("/readyz says %d %s, %v", a.Status, a.Body, err)
	}
	var refused, before []int
	w.await("the ladder of the dead shard's keys to end", func(context.Context) error {
		before, refused = refused, nil
		for key := range keys {
			n := send(key, 1)
			if first[key] += n; n == 0 {
				refused = append(refused, key)
			}
		}
		if len(refused) != dead || !slices.Equal(refused, before) {
			return fmt.Errorf("keys %v are refused, before %v, not the same %d", refused, before, dead)
		}
		return nil
	})
	for key := range keys {
		if slices.Contains(refused, key) {
			continue
		}
		if first[key] += send(key, quota); first[key] > quota || first[key] < quota-mayBeLost {
			t.Errorf("key %d of a living shard was given %d of %d", key, first[key], quota)
		}
	}
	w.order(`{"state": "off", "reason": "the store is away"}`)
	w.await("the kill switch to be obeyed", func(context.Context) error {
		if n := w.sendKeyed(0, 4).statuses[200]; n != 4 {
			return fmt.Errorf("%d of 4 passed", n)
		}
		return nil
	})
}

// A shard of a Redis Cluster that dies, without a replica, takes the keys along that it kept, which
// go by their failure ladder as far as its end. All other keys are decided by the control plane to
// the last token, over both Envoys, and so they are after it is back empty.
func TestADeadShardTakesItsOwnKeysAlone(t *testing.T) {
	const keys, quota = 60, 40
	cluster := redistest.StartCluster(t, 3, false, "--cluster-require-full-coverage", "no")
	w := start(t, setup{envoys: 2, alone: true})
	w.serve.RedisURL = cluster.URL()
	w.startControlPlane()
	w.awaitApplied(w.apply(keyed))
	send := func(key, times int) (allowed int64) {
		t.Helper()
		got := w.sendKeyed(key, times)
		got.mustBe(t, 200, 429)
		return got.statuses[200]
	}
	for key := range keys {
		w.await("a first token of each key", func(context.Context) error {
			if send(key, 1) != 1 {
				return errors.New("refused")
			}
			return nil
		})
	}
	meta := cluster.Primary(cluster.Slot("weir:{meta}:version"))
	victim := cluster.Primaries[(meta+1)%3] // The policies are elsewhere.
	dead := 0
	for _, key := range strings.Fields(victim.Do("KEYS", "weir:*")) {
		if strings.Contains(key, "}:b:") {
			dead++
		}
	}
	if dead == 0 || dead == keys {
		t.Fatalf("the victim keeps %d of %d keys", dead, keys)
	}
	victim.Kill()
	w.await("the ladder of the victim's keys to end", func(context.Context) error {
		refused := 0
		for key := range keys {
			if send(key, 1) == 0 {
				refused++
			}
		}
		if refused != dead {
			return fmt.Errorf("%d keys are refused, not %d", refused, dead)
		}
		return nil
	})
	// Whatever the wait above has used of the living: together they give what is left of them and
	// no more.
	exhausted := 0
	for key := range keys {
		send(key, quota)
		if send(key, 2) == 0 {
			exhausted++
		}
	}
	if exhausted != keys {
		t.Errorf("%d of %d keys are used up or refused", exhausted, keys)
	}
	victim.Restart()
	cluster.AwaitWhole()
	// It has lost its state: its keys start half full, and not a token more, whichever of the
	// requests got no answer in time.
	passed := map[int]int64{}
	w.await("the keys of the shard that is back", func(context.Context) error {
		for key := range keys {
			if passed[key] += send(key, quota); passed[key] > quota/2 {
				t.Fatalf("key %d was given %d requests, more than half its burst", key, passed[key])
			}
		}
		given := 0
		for _, n := range passed {
			if n > 0 {
				given++
			}
		}
		if given != dead {
			return fmt.Errorf("%d keys are given something, not %d", given, dead)
		}
		return nil
	})
}

// sendKeyed sends requests of one key through all Envoys by turns.
func (w *world) sendKeyed(key, times int) tally {
	w.t.Helper()
	return load{clients: 4, total: times, request: func(i int) *http.Request {
		r := request(http.MethodPost, w.envoys[i%len(w.envoys)].URL()+"/keyed")
		r.Header.Set("x-key", fmt.Sprint("key ", key))
		return r
	}}.run(w.ctx)
}
