package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/dnstest"
	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

// named makes an Envoy find the control plane by a name, in one of Envoy's ways, from a name
// server.
func named(kind string, names *dnstest.Server) func(string) string {
	return func(config string) string {
		before, weir, _ := strings.Cut(config, "    - name: weir\n      type: STRICT_DNS\n")
		weir = strings.ReplaceAll(weir, `socket_address: {address: "127.0.0.1"`, "socket_address: {address: controlplane.test")
		return before + fmt.Sprintf(`    - name: weir
      type: %s
      dns_lookup_family: V4_ONLY
      typed_dns_resolver_config:
        name: envoy.network.dns_resolver.cares
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig
          resolvers: [{socket_address: {address: 127.0.0.1, port_value: %d}}]
          dns_resolver_options: {no_default_search_domain: true}
`, kind, names.Port()) + weir
	}
}

// The name of the control plane leads to another address, while the old one goes on, and after it
// has died; it leads nowhere; and no name server answers. No caller within its limits is refused,
// limits hold, and all is exact again once Envoy has looked the name up, which it does every five
// seconds.
func TestChaosTheControlPlaneMoves(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"STRICT_DNS", "LOGICAL_DNS"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			names := dnstest.Start(t)
			names.Answer("127.0.0.1")
			w := start(t, setup{envoys: 2, alone: true, rewrite: named(kind, names)})
			w.redis = redistest.Start(t)
			w.serve.RedisURL = w.redis.URL()
			w.startControlPlane()
			first, port := w.controlPlane, w.serve.Port
			moved, err := stack.FreePort()
			if err != nil {
				t.Fatal(err)
			}
			w.serve.Port = moved
			w.startControlPlane()
			startProxyAt(t, "127.0.0.2", port, fmt.Sprintf("127.0.0.1:%d", moved))
			w.awaitApplied(w.apply(chaotic))
			callers, denies := w.withinLimits(w.envoys...), w.crowd("/denies", 100)
			unmoved := func(what string) {
				t.Helper()
				asked, before := names.Asked(), w.measured(w.envoys[0])
				time.Sleep(either(6*time.Second, 20*time.Second))
				w.awaitGround()
				t.Logf("%s: the ladder was climbed %d times", what, climbs(w.measured(w.envoys[0]))-climbs(before))
				if names.Asked() == asked {
					t.Errorf("%s: Envoy has not looked the name up", what)
				}
			}
			names.Silence()
			unmoved("no name server answers")
			names.Answer()
			unmoved("there is no such name")
			names.Answer("127.0.0.2")
			unmoved("the name has moved")
			lost := time.Now()
			first.Kill()
			time.Sleep(time.Second)
			w.awaitGround()
			t.Logf("the old control plane is dead: exact after %v", time.Since(lost).Round(time.Millisecond))
			if w.leaseItems(w.controlPlane) == 0 {
				t.Error("the new control plane is not asked")
			}
			noneRefused(t, kind, callers)
			mustHold(t, kind, denies.end(), chaoticBurst, chaoticRate, 0, 0.5)
		})
	}
}

// The only control plane dies, and another one is where the name leads from then on.
func TestChaosTheControlPlaneIsReplacedElsewhere(t *testing.T) {
	t.Parallel()
	names := dnstest.Start(t)
	names.Answer("127.0.0.1")
	w := start(t, setup{envoys: 2, alone: true, rewrite: named("STRICT_DNS", names)})
	w.redis = redistest.Start(t)
	w.serve.RedisURL = w.redis.URL()
	w.startControlPlane()
	port := w.serve.Port
	w.awaitApplied(w.apply(chaotic))
	w.endure(fault{name: "the control plane is elsewhere", ladder: true, inflict: w.controlPlane.Kill, heal: func() {
		moved, err := stack.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		w.serve.Port = moved
		w.startControlPlane()
		startProxyAt(t, "127.0.0.2", port, fmt.Sprintf("127.0.0.1:%d", moved))
		names.Answer("127.0.0.2")
	}}, 1)
}

// The wall clock of one of two Envoys jumps an hour forward and back. Limits use clocks that do not
// jump: they hold from both sides, and no caller within its limits is refused. Bans and the like
// end by the Envoy's clock there, as docs/run/redis.md says.
func TestChaosTheClockOfAnEnvoyJumps(t *testing.T) {
	t.Parallel()
	clock := redistest.NewClock(t)
	w := start(t, setup{envoys: 2, policies: chaotic, launch: func(o *stack.EnvoyOptions) {
		if o.NodeID == "envoy-1" {
			o.Env = clock.Env()
		}
	}})
	callers, denies := w.withinLimits(w.envoys...), w.crowd("/denies", 100)
	time.Sleep(time.Second)
	climbed := climbs(w.measured(w.envoys[0]))
	for _, off := range []time.Duration{time.Hour, 0, -time.Hour, 2 * time.Hour, 0} {
		clock.Set(off)
		asked := time.Now()
		ask(t, http.MethodPost, w.envoys[0].URL()+"/clock")
		hour := asked.Add(off).UTC().Format("[2006-01-02T15:04")
		next := asked.Add(off + time.Minute).UTC().Format("[2006-01-02T15:04")
		w.await("the clock of Envoy to be wrong", func(context.Context) error {
			for line := range strings.Lines(w.envoys[0].Stdout.String()) {
				right := strings.HasPrefix(line, hour) || strings.HasPrefix(line, next)
				if right && strings.Contains(line, "/clock") {
					return nil
				}
			}
			return fmt.Errorf("no request is logged at %s", hour)
		})
		time.Sleep(either(1500*time.Millisecond, 10*time.Second))
	}
	noneRefused(t, "the clock of an Envoy jumps", callers)
	mustHold(t, "the clock of an Envoy jumps", denies.end(), chaoticBurst, chaoticRate, 0, 0.5)
	if n := climbs(w.measured(w.envoys[0])) - climbed; n > 5 {
		t.Errorf("it has climbed its ladder %d times", n)
	}
}
