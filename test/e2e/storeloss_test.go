package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
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
// dead shard either, also if that is the shard with the policies. The keys of all other shards are
// decided to the last token, and the kill switch works.
func TestReadyReplicasServeWithoutTheirPolicies(t *testing.T) {
	t.Parallel()
	// A call whose answer came late on a busy machine has taken a token that no request got, and
	// the share has let a request through that is charged later.
	const keys, quota, mayBeLost = 30, 40, 4
	c := startKeyed(t, keys, setup{rewrite: func(config string) string {
		for old, by := range map[string]string{"path: /readyz/store": "path: /readyz",
			"healthy_panic_threshold: {value: 1}": "healthy_panic_threshold: {value: 0}"} {
			if strings.Count(config, old) != 1 {
				t.Fatalf("envoy.yaml has no %s", old)
			}
			config = strings.Replace(config, old, by, 1)
		}
		return config
	}})
	w := c.w
	dead := c.kill(c.cluster.Primary(c.cluster.Slot("weir:{meta}:version")))
	w.await("the replica to miss its policies", func(ctx context.Context) error {
		if a, err := w.controlPlane.Call(ctx, http.MethodGet, "/readyz/store", nil); err != nil || a.Status != 503 {
			return fmt.Errorf("%+v, %w", a, err)
		}
		return nil
	})
	if a, err := w.controlPlane.Call(w.ctx, http.MethodGet, "/readyz", nil); err != nil || a.Status != 200 {
		t.Fatalf("/readyz says %d %s, %v", a.Status, a.Body, err)
	}
	refused := c.awaitRefused(dead)
	for key := range keys {
		if slices.Contains(refused, key) {
			continue
		}
		late, shared := w.lateCalls(), w.decidedByShare()
		c.send(key, quota)
		late, shared = w.lateCalls()-late, w.decidedByShare()-shared
		if n := c.passed[key]; n > quota+shared || n < quota-mayBeLost-late {
			t.Errorf("key %d of a living shard was given %d of %d; %d calls were late, the share decided %d",
				key, n, quota, late, shared)
		}
	}
	w.order(`{"state": "off", "reason": "the store is away"}`)
	w.await("the kill switch to be obeyed", func(context.Context) error {
		if n := c.send(0, 4); n != 4 {
			return fmt.Errorf("%d of 4 passed", n)
		}
		return nil
	})
}

// A shard of a Redis Cluster dies, without a replica. Its own keys follow their failure ladder to
// its end. The control plane decides all other keys to the last token, over both Envoys, also after
// the shard is back empty.
func TestADeadShardTakesItsOwnKeysAlone(t *testing.T) {
	t.Parallel()
	// mayBeLost is as above.
	const keys, quota, mayBeLost = 60, 40, 4
	c := startKeyed(t, keys, setup{})
	meta := c.cluster.Primary(c.cluster.Slot("weir:{meta}:version"))
	victim := (meta + 1) % 3 // The policies are elsewhere.
	dead := c.awaitRefused(c.kill(victim))
	// Shares have let requests of the dead shard's keys through, which are charged later.
	debts := map[int]int64{}
	for _, key := range dead {
		debts[key] = c.passed[key] - 1
	}
	// However much the wait above has used of the living shards' keys, together they give exactly
	// the rest.
	exhausted := 0
	for key := range keys {
		c.send(key, quota)
		if c.send(key, 2) == 0 {
			exhausted++
		}
	}
	if exhausted != keys {
		t.Errorf("%d of %d keys are used up or refused", exhausted, keys)
	}
	c.cluster.Primaries[victim].Restart()
	c.cluster.AwaitWhole()
	unanswered := func() (n int64) {
		for _, e := range c.w.envoys {
			n += c.w.measured(e)["leases.no_answer"]
		}
		return n
	}
	before := unanswered()
	// It has lost its state: its keys start half full, and not a token more, whichever of the
	// requests got no answer in time. All of the half is granted, except for the requests that
	// shares let through.
	passed := map[int]int64{}
	c.w.await("the keys of the shard that is back", func(context.Context) (err error) {
		for key := range keys {
			passed[key] += c.send(key, quota)
		}
		lost := mayBeLost + unanswered() - before
		for key := range keys {
			debt, ofDead := debts[key]
			most, least := int64(0), int64(0)
			if ofDead {
				most, least = quota/2, max(1, quota/2-debt-lost)
			}
			if passed[key] > most {
				t.Fatalf("key %d was given %d requests, more than %d", key, passed[key], most)
			}
			if passed[key] < least {
				err = fmt.Errorf("key %d was given %d requests, fewer than %d; shares let %d through",
					key, passed[key], least, debt)
			}
		}
		return err
	})
}

// callers are keys under the policy set keyed, whose buckets are spread over three shards of a
// Redis Cluster, and how many requests of each have passed over two Envoys.
type callers struct {
	w       *world
	cluster *redistest.Cluster
	passed  []int64
}

// startKeyed starts everything, and takes a first token of each key.
func startKeyed(t *testing.T, keys int, s setup) *callers {
	t.Helper()
	s.envoys, s.alone = 2, true
	cluster := redistest.StartCluster(t, 3, false, "--cluster-require-full-coverage", "no")
	c := &callers{start(t, s), cluster, make([]int64, keys)}
	c.w.serve.RedisURL = cluster.URL()
	c.w.startControlPlane()
	c.w.awaitApplied(c.w.apply(keyed))
	for key := range keys {
		c.w.await("a first token of each key", func(context.Context) error {
			if c.send(key, 1) != 1 {
				return errors.New("refused")
			}
			return nil
		})
	}
	return c
}

// send sends requests of one key through both Envoys by turns, and returns how many passed.
func (c *callers) send(key, times int) int64 {
	c.w.t.Helper()
	return c.sendTo(key, times, c.w.envoys)
}

// sendTo sends requests of one key through some Envoys by turns, and returns how many passed.
func (c *callers) sendTo(key, times int, envoys []*stack.Envoy) int64 {
	c.w.t.Helper()
	got := load{clients: 4, total: times, request: func(i int) *http.Request {
		r := request(http.MethodPost, envoys[i%len(envoys)].URL()+"/keyed")
		r.Header.Set("x-key", fmt.Sprint("key ", key))
		return r
	}}.run(c.w.ctx)
	got.mustBe(c.w.t, 200, 429)
	c.passed[key] += got.statuses[200]
	return got.statuses[200]
}

// kill kills a shard, and returns how many of the keys it kept.
func (c *callers) kill(shard int) int {
	c.w.t.Helper()
	victim := c.cluster.Primaries[shard]
	dead := strings.Count(victim.Do("KEYS", "weir:*"), "}:b:")
	if dead == 0 || dead == len(c.passed) {
		c.w.t.Fatalf("the shard keeps %d of %d keys", dead, len(c.passed))
	}
	victim.Kill()
	return dead
}

// awaitRefused waits until the failure ladder of a dead shard's keys has ended, and returns them:
// that many, and the same ones twice in a row. It asks ten times a second at most, so that shares
// let few requests of each key through before.
func (c *callers) awaitRefused(dead int) []int {
	c.w.t.Helper()
	var refused, before []int
	c.w.await("the ladder of the dead shard's keys to end", func(context.Context) error {
		time.Sleep(100 * time.Millisecond)
		before, refused = refused, nil
		for key := range c.passed {
			if c.send(key, 1) == 0 {
				refused = append(refused, key)
			}
		}
		if len(refused) != dead || !slices.Equal(refused, before) {
			return fmt.Errorf("keys %v are refused, before %v, not the same %d", refused, before, dead)
		}
		return nil
	})
	return refused
}
