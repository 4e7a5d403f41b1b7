package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/wire"
	"github.com/weir-proxy/weir/tools/stack"
)

// replicaPair is two replicas of the control plane on one Redis, perhaps of two versions, behind
// each of two Envoys. Each Envoy gets more requests than the limit of counted admits.
type replicaPair struct {
	*world
	ports   [2]int
	planes  [2]*stack.ControlPlane
	today   string
	edition int
	counted *crowd
	callers *background
}

// The limit of counted: a burst, and tokens a second.
const countedBurst, countedRate = 300, countedBurst / 10

// edited returns a policy set. Its edition is in the answers to /edition.
func edited(edition int) string {
	return fmt.Sprintf(`
version: weir/v1
policies:
  - {name: edition, match: {paths: [/edition]}, partition: [], limit: {quota: %d, window: 60s}, mode: local}
  - {name: counted, match: {paths: [/counted]}, partition: [], limit: {quota: %d, window: 10s}, on_failure: [deny]}
`, 1000+edition, countedBurst) + within[1:]
}

// startPair starts the first replica, with today's build, and the load.
func startPair(t *testing.T) *replicaPair {
	t.Helper()
	second, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	p := &replicaPair{today: controlPlanePath}
	p.world = start(t, setup{envoys: 2, policies: edited(0), ways: func(_ string, port int) []int {
		return []int{port, second}
	}})
	p.ports, p.planes[0] = [2]int{p.serve.Port, second}, p.controlPlane
	p.awaitGround()
	p.begin()
	return p
}

// begin starts the load.
func (p *replicaPair) begin() {
	p.counted, p.callers = p.crowd("/counted", 100), p.withinLimits(p.envoys...)
}

// run starts a replica with a build.
func (p *replicaPair) run(i int, binary string) {
	p.t.Helper()
	p.serve.Port, p.serve.Binary = p.ports[i], binary
	p.startControlPlane()
	p.planes[i] = p.controlPlane
}

// replace ends a replica and starts it with another build, as docs/run/upgrade.md says: when both
// are ready, and each Envoy has noticed it.
func (p *replicaPair) replace(i int, binary string) {
	p.t.Helper()
	p.awaitReplicas(2)
	p.planes[i].Stop()
	p.run(i, binary)
	p.awaitReplicas(2)
}

// exchange writes a policy set through each replica. The other replica and both Envoys must read
// it.
func (p *replicaPair) exchange() {
	p.t.Helper()
	for i, through := range p.planes {
		p.writeThrough(through, p.planes[1-i])
	}
}

// writeThrough writes a policy set through a replica, and waits until the readers and both Envoys
// have it.
func (p *replicaPair) writeThrough(through *stack.ControlPlane, readers ...*stack.ControlPlane) {
	p.t.Helper()
	p.controlPlane = through
	p.edition++
	version := p.apply(edited(p.edition))
	for _, reader := range readers {
		p.await("the other replica to have the policy set", func(ctx context.Context) error {
			got, err := reader.Call(ctx, http.MethodGet, "/v1/policyset", nil)
			if err == nil && got.ETag != fmt.Sprintf("%q", fmt.Sprint(version)) {
				err = fmt.Errorf("it has version %s, not %d", got.ETag, version)
			}
			return err
		})
	}
	p.awaitEdition(p.edition)
}

// awaitEdition waits until each Envoy decides by an edition of the policy set.
func (p *replicaPair) awaitEdition(edition int) {
	p.t.Helper()
	for _, e := range p.envoys {
		p.await(fmt.Sprintf("%s to have edition %d", e.Name, edition), func(context.Context) error {
			a, err := send(http.DefaultClient, request(http.MethodPost, e.URL()+"/edition"))
			if err == nil && !strings.Contains(a.Get("RateLimit-Policy"), fmt.Sprintf("q=%d;", 1000+edition)) {
				err = fmt.Errorf("RateLimit-Policy is %s", a.Get("RateLimit-Policy"))
			}
			return err
		})
	}
}

// awaitUnready waits until a replica says why it does not use the store.
func (p *replicaPair) awaitUnready(c *stack.ControlPlane, why string) {
	p.t.Helper()
	p.await("the replica to say why it does not use the store", func(context.Context) error {
		a, err := c.Call(p.ctx, http.MethodGet, "/readyz/store", nil)
		if err == nil && (a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), why)) {
			err = fmt.Errorf("/readyz/store answers %d %s", a.Status, a.Body)
		}
		return err
	})
}

// end ends the load: no caller within its limits was refused, and counted has admitted at most its
// limit and extra tokens, and at least a share of the tokens that its rate gave.
func (p *replicaPair) end(what string, extra, share float64) {
	p.t.Helper()
	noneRefused(p.t, what, p.callers)
	mustHold(p.t, what, p.counted.end(), countedBurst, countedRate, extra, share)
}

// The next build has today's protocol and knows a further field of policies. Both builds run side
// by side, each replaces the other, and the way back is the same. Only the next build reads a
// policy set with the field. The Envoys get it from there: the field is not for filters.
func TestTwoBuildsOfOneProtocolShareARedis(t *testing.T) {
	t.Parallel()
	next := buildControlPlane(t, t.TempDir(), changeSources(t, []sourceChange{{"shared/policy/draft.go",
		"\t\t{\"if_absent\", ", "\t\t{\"note\", done},\n\t\t{\"if_absent\", "}}))
	p := startPair(t)
	p.run(1, next)
	p.awaitReplicas(2)
	p.exchange()

	p.edition++
	p.controlPlane = p.planes[1]
	p.apply(strings.Replace(edited(p.edition), "name: edition,", "name: edition, note: new,", 1))
	p.awaitUnready(p.planes[0], "unknown field")
	p.awaitEdition(p.edition)
	p.writeThrough(p.planes[1], p.planes[0])
	p.awaitReplicas(2)
	p.exchange()

	for _, binary := range []string{next, p.today} {
		for i := range p.planes {
			p.replace(i, binary)
			p.exchange()
		}
	}
	p.end("two builds of one protocol", 0, 0.9)
}

// The next build has another protocol. From its first replica on, today's replica grants nothing
// and changes nothing, and no Envoy needs it. The way back needs a backup of Redis, which is read
// while no replica runs.
func TestABuildOfTheNextProtocolTakesOverARedis(t *testing.T) {
	t.Parallel()
	next := nextControlPlane(t)
	p := startPair(t)
	p.run(1, p.today)
	p.awaitReplicas(2)
	p.exchange()
	saved := p.edition
	if answer := p.redis.Do("SAVE"); answer != "+OK" {
		t.Fatal("the backup of Redis:", answer)
	}

	p.planes[1].Stop()
	p.run(1, next)
	p.awaitUnready(p.planes[0], wire.ErrNewerStore.Error())
	p.awaitReplicas(1)
	a, err := p.planes[0].Call(p.ctx, http.MethodPut, "/v1/policyset", []byte(edited(0)), "If-Match", "*")
	if err != nil || a.Status != http.StatusServiceUnavailable ||
		!strings.Contains(string(a.Body), wire.ErrNewerStore.Error()) {
		t.Errorf("today's build answers a policy set with %d %s %v", a.Status, a.Body, err)
	}
	p.awaitGround()
	p.writeThrough(p.planes[1])

	p.planes[0].Stop()
	p.run(0, next)
	p.awaitReplicas(2)
	p.exchange()
	p.end("a build of the next protocol beside today's", 0, 0.5)

	p.begin()
	for _, plane := range p.planes {
		plane.Stop()
	}
	p.redis.Restart()
	for i := range p.planes {
		p.run(i, p.today)
	}
	p.awaitReplicas(2)
	p.awaitGround()
	p.awaitEdition(saved)
	p.exchange()
	time.Sleep(3 * time.Second) // The limit must hold after the way back, too.
	// The backup knows nothing of the tokens that were used after it: at most a burst.
	p.end("the way back with a backup", countedBurst, 0.5)
}
