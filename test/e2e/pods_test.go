//go:build pods

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/kubetest"
	"github.com/weir-proxy/weir/tools/stack"
)

// The chart's own pods, run by a kubelet, and an Envoy that has its endpoints from the Service's
// EndpointSlices and calls only ready endpoints, as under Istio and Envoy Gateway. The shard of the
// store with the policies is away, and then the whole store. Meanwhile the pods stay ready. That
// Envoy decides the same callers as exactly, hears of bans and orders as well, and gets policies
// like an Envoy with envoy.yaml. In between, the narrower question is the readinessProbe, which
// cuts that Envoy off: so the test would notice it.
func TestPodsServeEnvoysWhileTheStoreIsAway(t *testing.T) {
	p := startPods(t)
	_ = t.Run("a shard", p.loseAShard) && t.Run("asked by the readinessProbe", p.loseReadiness) &&
		t.Run("all of it", p.loseAll)
}

// podKeys is how many callers there are, podQuota how many requests each has a day.
const podKeys, podQuota = 60, 40

func (p *pods) loseAShard(t *testing.T) {
	c := p.startCallers(t, "shard")
	w := c.w
	seen := p.look(t)
	meta := c.cluster.Primary(c.cluster.Slot("weir:{meta}:version"))
	dead := p.kill(t, meta)
	p.awaitProbes(t, seen)
	p.mustHaveStayedReady(t, seen)
	living := c.living(dead)
	banned, living := living[0], living[1:]

	w.startEnvoyBySlices("eds-late", p)
	w.awaitPolicies()
	c.mustBeDecided(t, "shard", living, false)
	c.awaitAt(t, "a key with tokens", banned, 2)
	p.eachPlane(w, func() { c.ban(t, "shard", banned) })
	c.awaitBanned(t, banned)
	c.mustObeyOrders(t, p, living[0])
	c.mustHaveFoundPods(t)
	p.mustHaveStayedReady(t, seen)

	c.cluster.Primaries[meta].Restart()
	c.cluster.AwaitWhole()
	p.awaitProbe(t, "/readyz/store", http.StatusOK)

	// Any other shard may be away while policies are pushed.
	other := c.cluster.Primaries[(meta+1)%len(c.cluster.Primaries)]
	other.Kill()
	w.awaitApplied(w.apply(strings.Replace(policiesOf("shard"), "quota: 40", "quota: 41", 1)))
	c.mustHaveFoundPods(t)
	p.mustHaveStayedReady(t, seen)
	other.Restart()
	c.cluster.AwaitWhole()
}

func (p *pods) loseReadiness(t *testing.T) {
	p.setReadinessProbe(t, "/readyz/store")
	c := p.startCallers(t, "asked")
	meta := c.cluster.Primary(c.cluster.Slot("weir:{meta}:version"))
	dead := p.kill(t, meta)
	w := c.w
	w.await("the endpoints to be taken away", func(context.Context) error {
		if n := len(p.ready()); n != 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
	living := c.living(dead)
	before := w.measured(w.envoys[1])["leases.unsent"]
	c.mustBeDecided(t, "asked", living, true)
	if w.measured(w.envoys[1])["leases.unsent"] == before {
		t.Error("the Envoy without endpoints has sent each call")
	}
	c.cluster.Primaries[meta].Restart()
	c.cluster.AwaitWhole()
	p.setReadinessProbe(t, "/readyz")
}

func (p *pods) loseAll(t *testing.T) {
	c := p.startCallers(t, "all")
	w := c.w
	seen := p.look(t)
	for _, s := range c.cluster.Primaries {
		s.Kill()
	}
	p.awaitProbes(t, seen)
	p.mustHaveStayedReady(t, seen)
	w.startEnvoyBySlices("eds-later", p)
	w.awaitPolicies()
	c.awaitAt(t, "the end of the ladder", 0, 0)
	c.mustObeyOrders(t, p, 0)
	c.mustHaveFoundPods(t)
	p.mustHaveStayedReady(t, seen)
	for _, s := range c.cluster.Primaries {
		s.Restart()
	}
	c.cluster.AwaitWhole()
	p.awaitProbe(t, "/readyz/store", http.StatusOK)
	w.awaitApplied(w.apply(strings.Replace(policiesOf("all"), "quota: 40", "quota: 41", 1)))
}

// startCallers starts an Envoy with envoy.yaml and an Envoy that follows the EndpointSlices. Each
// key of a policy of that name gets its first token.
func (p *pods) startCallers(t *testing.T, policy string) *callers {
	t.Helper()
	w := p.startWorld(t)
	w.rewrite = p.byAddresses(t)
	w.startEnvoy("plain-" + policy)
	w.startEnvoyBySlices("eds-"+policy, p)
	w.awaitApplied(w.apply(policiesOf(policy)))
	c := &callers{w, p.redis, make([]int64, podKeys)}
	p.others = p.buckets()
	for key := range podKeys {
		w.await("a first token of each key", func(ctx context.Context) error {
			c.send(key, 1)
			now, err := c.at(ctx, policy, key)
			if err == nil && now.Used == 0 {
				err = errors.New("the Envoy's share has decided")
			}
			return err
		})
	}
	return c
}

// buckets returns the buckets in each shard of Redis.
func (p *pods) buckets() (all []map[string]bool) {
	p.t.Helper()
	for _, s := range p.redis.Primaries {
		names := map[string]bool{}
		for name := range strings.FieldsSeq(s.Do("KEYS", "weir:*")) {
			if strings.Contains(name, "}:b:") {
				names[name] = true
			}
		}
		all = append(all, names)
	}
	return all
}

// kill kills a shard, and returns how many buckets it has of the keys that have just got a token.
func (p *pods) kill(t *testing.T, shard int) (dead int) {
	t.Helper()
	for name := range p.buckets()[shard] {
		if !p.others[shard][name] {
			dead++
		}
	}
	if dead == 0 || dead >= podKeys {
		t.Fatalf("the shard keeps %d of %d keys", dead, podKeys)
	}
	p.redis.Primaries[shard].Kill()
	return dead
}

// startWorld starts an upstream, and calls the control plane of a pod.
func (p *pods) startWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, ctx: t.Context(), setup: setup{nodeToken: p.nodeToken}, controlPlane: p.planes()[0]}
	var err error
	if w.upstream, err = stack.StartUpstream(nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.upstream.Stop)
	return w
}

func (w *world) startEnvoyBySlices(id string, p *pods) {
	w.t.Helper()
	w.rewrite = p.bySlices(w.t)
	w.startEnvoy(id)
}

// policiesOf returns keyed under another name, and so with other buckets.
func policiesOf(policy string) string {
	return strings.Replace(keyed, "name: keyed", "name: "+policy, 1)
}

// living waits until the ladder of a dead shard's keys has ended, and returns the other keys.
func (c *callers) living(dead int) (keys []int) {
	c.w.t.Helper()
	refused := c.awaitRefused(dead)
	for key := range c.passed {
		if !slices.Contains(refused, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// through sends requests of one key through one Envoy, and returns how many passed.
func (c *callers) through(e *stack.Envoy, key, times int) int64 {
	c.w.t.Helper()
	return c.sendTo(key, times, []*stack.Envoy{e})
}

// mustBeDecided makes both Envoys use up each key, half of it each, exactly to the last token that
// the control plane has of it. With cut the first Envoy does so alone; the second Envoy has no
// control plane and must decide by the ladder. Without cut it skips a key for which the ladder
// decided: on a busy machine an answer comes too late, and a token may be lost.
func (c *callers) mustBeDecided(t *testing.T, policy string, keys []int, cut bool) {
	t.Helper()
	exact, looked := [2]int{}, 0
	for _, key := range keys {
		left := c.left(t, policy, key)
		if left < 2 {
			continue
		}
		want := [2]int64{left - left/2, left / 2}
		if cut {
			want[0] = left
		}
		got, laddered := c.useUp(key, want)
		if laddered[0] || laddered[1] && !cut {
			continue
		}
		looked++
		for i := range exact {
			if got[i] == want[i] && !laddered[i] {
				exact[i]++
			}
		}
	}
	want := [2]int{looked, looked}
	if cut {
		want[1] = 0
	}
	for i, e := range c.w.envoys[:2] {
		t.Logf("%s decides %d of %d callers exactly; %d were not looked at", e.Name, exact[i], looked, len(keys)-looked)
		if exact[i] != want[i] || looked == 0 {
			t.Errorf("%s decides %d callers exactly and not %d", e.Name, exact[i], want[i])
		}
	}
}

// useUp sends want requests of a key through each of the first two Envoys, and then one more. It
// returns how many passed, and whether the ladder decided a request.
func (c *callers) useUp(key int, want [2]int64) (got [2]int64, laddered [2]bool) {
	c.w.t.Helper()
	before := [2]map[string]int64{c.counted(0), c.counted(1)}
	for i := range got {
		got[i] = c.through(c.w.envoys[i], key, int(want[i]))
	}
	for i := range got {
		got[i] += c.through(c.w.envoys[i], key, 1)
	}
	for i, counts := range before {
		now := difference(c.counted(i), counts)
		laddered[i] = now["leases.no_answer"]+now["decisions.by_share"]+now["decisions.by_failure_deny"]+
			now["decisions.by_overload"] != 0
	}
	return got, laddered
}

// left returns the number of a key's tokens at the control plane.
func (c *callers) left(t *testing.T, policy string, key int) (n int64) {
	t.Helper()
	c.w.await("the end of all leases", func(ctx context.Context) error {
		now, err := c.at(ctx, policy, key)
		if err == nil && now.Leased != 0 {
			err = fmt.Errorf("%d are leased", now.Leased)
		}
		n = now.Level
		return err
	})
	return n
}

// tokens is a bucket at the control plane.
type tokens struct{ Level, Used, Leased int64 }

func (c *callers) at(ctx context.Context, policy string, key int) (tokens, error) {
	path := "/v1/keys/" + policy + "?partition=" + url.QueryEscape(fmt.Sprint("header:x-key:key ", key))
	a, err := c.w.controlPlane.Call(ctx, http.MethodGet, path, nil)
	var now struct{ Buckets []tokens }
	if err == nil && a.Status == http.StatusOK {
		err = json.Unmarshal(a.Body, &now)
	}
	if err != nil || len(now.Buckets) != 1 {
		return tokens{}, fmt.Errorf("%d %s, %w", a.Status, a.Body, err)
	}
	return now.Buckets[0], nil
}

// counted returns an Envoy's metrics when the filter has counted every request.
func (c *callers) counted(i int) map[string]int64 {
	c.w.t.Helper()
	return c.w.awaitMetrics(c.w.envoys[i], "every request to be counted", func(m map[string]int64) bool {
		sum := int64(0)
		for _, end := range []string{"allowed", "refused", "unlimited", "banned", "exempt", "before_snapshot"} {
			sum += m["requests."+end]
		}
		return sum == m["http.ingress.downstream_rq_total"] && m["requests.waiting"] == 0
	})
}

// ban bans a key at the control plane that calls go to.
func (c *callers) ban(t *testing.T, policy string, key int) {
	t.Helper()
	path := "/v1/keys/" + policy + "/ban?partition=" + url.QueryEscape(fmt.Sprint("header:x-key:key ", key))
	a, err := c.w.controlPlane.Call(c.w.within(patience), http.MethodPost, path, []byte(`{"reason": "a test"}`))
	if err != nil || a.Status != http.StatusOK {
		t.Fatalf("the ban of key %d: %d %s %v", key, a.Status, a.Body, err)
	}
	var said struct{ Durable *bool }
	if err := json.Unmarshal(a.Body, &said); err != nil || said.Durable == nil || *said.Durable {
		t.Errorf("the ban of key %d is answered with %s, %v: nothing can have kept it", key, a.Body, err)
	}
}

// mustHaveFoundPods fails the test if a call of an Envoy had nowhere to go.
func (c *callers) mustHaveFoundPods(t *testing.T) {
	t.Helper()
	for _, e := range c.w.envoys {
		if m := c.w.measured(e); m["leases.unsent"] != 0 || m["polls.unsent"] != 0 {
			t.Errorf("%s had no pod for %d polls and %d lease calls", e.Name, m["polls.unsent"], m["leases.unsent"])
		}
	}
}

// awaitAt waits until each Envoy passes want of two requests of a key.
func (c *callers) awaitAt(t *testing.T, what string, key int, want int64) {
	t.Helper()
	for _, e := range c.w.envoys {
		c.w.await(e.Name+": "+what, func(context.Context) error {
			if n := c.through(e, key, 2); n != want {
				return fmt.Errorf("%d of 2 pass", n)
			}
			return nil
		})
	}
}

// awaitBanned waits until each Envoy refuses a key because of its ban.
func (c *callers) awaitBanned(t *testing.T, key int) {
	t.Helper()
	for _, e := range c.w.envoys {
		c.w.await(e.Name+": the ban to be obeyed", func(context.Context) error {
			a := ask(t, http.MethodPost, e.URL()+"/keyed", "x-key", fmt.Sprint("key ", key))
			if a.status != http.StatusForbidden {
				return fmt.Errorf("%d %s", a.status, a.body)
			}
			return nil
		})
	}
}

// mustObeyOrders gives each pod the order to limit nothing, and takes it back, which every Envoy
// must obey for a key that is refused otherwise.
func (c *callers) mustObeyOrders(t *testing.T, p *pods, refused int) {
	t.Helper()
	p.eachPlane(c.w, func() { c.w.order(`{"state": "off", "reason": "the store is away"}`) })
	c.awaitAt(t, "the kill switch to be obeyed", refused, 2)
	p.eachPlane(c.w, func() { c.w.order() })
	c.awaitAt(t, "the end of the kill switch", refused, 0)
}

// A sight is the state of the pods in Kubernetes.
type sight struct {
	// probes is how often kubelet has asked each pod, by type and result.
	probes map[string]map[string]int
}

func (p *pods) look(t *testing.T) sight {
	t.Helper()
	s := sight{map[string]map[string]int{}}
	for _, pod := range p.list(t) {
		s.probes[pod.Name] = p.Probes(t, pod.Name)
	}
	p.lowest.Store(int64(len(p.ready())))
	return s
}

// awaitProbes waits until kubelet has asked both questions often enough to find pods unready, or to
// restart them.
func (p *pods) awaitProbes(t *testing.T, seen sight) {
	t.Helper()
	p.awaitProbe(t, "/readyz/store", http.StatusServiceUnavailable)
	p.awaitProbe(t, "/readyz", http.StatusOK)
	p.awaitProbe(t, "/healthz", http.StatusOK)
	for pod, before := range seen.probes {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := stack.Await(ctx, "kubelet to ask "+pod, func(context.Context) error {
			now := probesSince(p.Probes(t, pod), before)
			if now["Readiness successful"]+now["Readiness failed"] < 6 ||
				now["Liveness successful"]+now["Liveness failed"] < 2 {
				return fmt.Errorf("%v", now)
			}
			return nil
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// mustHaveStayedReady fails the test if a probe has failed, or a pod was restarted or an endpoint
// taken away.
func (p *pods) mustHaveStayedReady(t *testing.T, seen sight) {
	t.Helper()
	for _, pod := range p.list(t) {
		now := probesSince(p.Probes(t, pod.Name), seen.probes[pod.Name])
		if pod.Restarts != 0 || !pod.Ready || now["Readiness failed"] != 0 || now["Liveness failed"] != 0 {
			t.Errorf("%s: ready %v, restarts %d, kubelet asked %v", pod.Name, pod.Ready, pod.Restarts, now)
		}
	}
	if n := p.lowest.Load(); n != int64(p.replicas) {
		t.Errorf("only %d endpoints were left", n)
	}
}

// probesSince returns the number of kubelet's probes between two looks.
func probesSince(after, before map[string]int) map[string]int {
	d := map[string]int{}
	for name, n := range after {
		if n -= before[name]; n != 0 {
			d[name] = n
		}
	}
	return d
}

// Without any value set the chart is one pod with its store on a volume. The store's content is
// there after the pod was deleted and replaced. It is there too after the pod's process was killed
// and kubelet started it again. An Envoy that follows the EndpointSlices passes no request anew.
func TestPodsKeepTheirVolume(t *testing.T) {
	p := startNode(t, 1)
	p.Apply(t, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  local: {path: %q}
  nodeAffinity:
    required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node]}]}]}
`, t.TempDir()))
	p.install("drain=1s")
	w := p.startWorld(t)
	w.startEnvoyBySlices("eds", p)
	version := w.apply(policiesOf("kept"))
	w.awaitApplied(version)
	c := &callers{w, nil, make([]int64, 1)}
	c.awaitAt(t, "tokens to be granted", 0, 2)
	for c.through(w.envoys[0], 0, podQuota) != 0 {
		continue // An answer that came late leaves some.
	}
	left, first := c.left(t, "kept", 0), p.list(t)[0]

	status, answer, err := p.Call(http.MethodDelete, "/api/v1/namespaces/weir/pods/"+first.Name, "", "")
	if err != nil || status != http.StatusOK {
		t.Fatal(status, answer, err)
	}
	second := p.awaitPod(t, "another pod", func(now kubetest.Pod) bool { return now.Name != first.Name && now.Ready })
	left = c.mustBeKept(t, p, version, left)

	killProcess(t)
	p.awaitPod(t, "the process to be started again", func(now kubetest.Pod) bool {
		return now.Name == second.Name && now.Restarts == 1 && now.Ready
	})
	c.mustBeKept(t, p, version, left)
}

// mustBeKept fails the test unless the control plane has the policy set of that version and at most
// that many tokens of the first key, more than which no Envoy passes. It returns how many are left.
func (c *callers) mustBeKept(t *testing.T, p *pods, version uint64, left int64) int64 {
	t.Helper()
	p.awaitProbe(t, "/readyz/store", http.StatusOK)
	c.w.controlPlane = p.planes()[0]
	a, err := c.w.controlPlane.Call(c.w.within(patience), http.MethodGet, "/v1/policyset", nil)
	if err != nil || a.ETag != fmt.Sprintf("%q", fmt.Sprint(version)) {
		t.Errorf("the policy set is %s, not %d: %s, %v", a.ETag, version, a.Body, err)
	}
	c.w.awaitApplied(version)
	if now := c.left(t, "kept", 0); now > left {
		t.Errorf("the key has %d tokens, not %d", now, left)
	}
	before := c.counted(0)
	n := c.through(c.w.envoys[0], 0, podQuota)
	shared := difference(c.counted(0), before)["decisions.by_share"]
	if n > left+shared {
		t.Errorf("%d requests pass, %d by the Envoy's share; the key had %d tokens", n, shared, left)
	}
	return max(0, left-n)
}
