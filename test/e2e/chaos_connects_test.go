package e2e

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/test/support/redistest"
)

// swallow ends all connections and has those to come neither made nor refused, until heal.
func (p *proxy) swallow() (heal func()) {
	p.t.Helper()
	p.Stop()
	end := redistest.Swallow(p.t, fmt.Sprintf("127.0.0.1:%d", p.port))
	return func() {
		end()
		if err := p.Start(); err != nil {
			p.t.Fatal(err)
		}
	}
}

// Connections are cut between each pair, and new ones are neither made nor refused: limits hold,
// the ladder is taken, no request gets anything but 200 and 429, and it is over soon after the
// network is whole.
func TestChaosConnectionsAreSwallowed(t *testing.T) {
	t.Parallel()
	w, ways, toRedis := startBehindProxies(t)
	var heal []func()
	whole := func() {
		for _, one := range heal {
			one()
		}
		heal = nil
	}
	w.endure(fault{name: "control plane and Redis", ladder: true,
		inflict: func() { heal = append(heal, toRedis.swallow()) },
		heal: func() {
			w.awaitStoreAway()
			whole()
		},
	}, either(1, 4))
	w.endure(fault{name: "Envoys and control plane", ladder: true,
		inflict: func() {
			for _, way := range ways {
				heal = append(heal, way.swallow())
			}
		},
		heal: whole,
	}, either(1, 4))
}
