package wasm

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/quota"
)

// ownLimit is a policy whose quota a second is the caller's own, by a claim.
func ownLimit(mode string) string {
	return `{"name": "api", "partition": [], "mode": "` + mode + `", "on_failure": {"then": "deny"},
		"limit": {"quota": {"jwt": "plan.rps", "max": 1000, "default": 5}, "window": "1s"}}`
}

// claiming is a request whose token has a claim, as Envoy keeps a number of one; 0 is none.
func claiming(rps float64) envoytest.Request {
	r := get()
	if rps != 0 {
		path := envoytest.Path("metadata", "filter_metadata", "envoy.filters.http.jwt_authn", "payload", "plan", "rps")
		r.Properties = map[string][]byte{path: binary.LittleEndian.AppendUint64(nil, math.Float64bits(rps))}
	}
	return r
}

// The built filter decides each request by the figures of its own token, in one bucket; what is no
// figure counts as the default.
func TestACallersOwnFigures(t *testing.T) {
	h := start(t, envoytest.Options{PluginConfig: alone(setOf(ownLimit("local"))), Workers: 2})
	defer h.Close()
	for i, c := range []struct {
		worker int
		claim  float64
		want   int
	}{{0, 20, 20}, {1, 20, 0}, {1, 0, 0}, {1, 30, 10}, {0, 50.5, 0}, {0, 1e9, 970}, {1, 1000, 0}} {
		if got := count(t, h, c.worker, 1100, claiming(c.claim)); got != c.want {
			t.Errorf("step %d: %d passed with %g, want %d", i, got, c.claim, c.want)
		}
	}
	if _, s := passes(t, h, 0, claiming(20)); fmt.Sprint(s.Reply().Header("ratelimit-policy")) == "" {
		t.Errorf("no limit is announced")
	}
}

// Callers of one bucket come to two nodes with figures that differ all the time. In each mode no
// more passes than the largest figures let through.
func TestFiguresOfTwoNodesMintNothing(t *testing.T) {
	const seconds = 8
	for mode, beyond := range map[string]int64{"leased": 0, "strict": 0, "optimistic": 500} {
		r := rand.New(rand.NewPCG(3, 4))
		w := newWorld(t, fleet{nodes: 2, workers: 2, set: setOf(ownLimit(mode))})
		l := newLaw(t, 1000, quota.Second, 1000+beyond)
		g := &game{world: w, law: l, costs: map[*attempt]int64{}}
		w.run(seconds*time.Second, func() {
			for range 2 {
				a := w.request(r.IntN(2), r.IntN(2), claiming([]float64{10, 100, 1000, 5000}[r.IntN(4)]))
				g.open, g.costs[a] = append(g.open, a), 1
				g.sent++
			}
			g.count()
		})
		l.check(t, mode)
		t.Logf("%s: %d of %d passed", mode, l.used, g.sent)
		if most := l.most(seconds * time.Second); float64(l.used) < most/10 {
			t.Errorf("%s: only %d passed of %.0f", mode, l.used, most)
		}
	}
}
