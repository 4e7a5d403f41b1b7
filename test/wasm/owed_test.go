package wasm

import (
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/wire"
)

// A request that the share has let through, because no answer came, is charged as it has cost, if
// its response comes before it is charged or after.
func TestAShareIsChargedAsItsRequestsCost(t *testing.T) {
	for _, soon := range []bool{true, false} {
		w := newWorld(t, fleet{nodes: 1, set: setOf(limits("api", "strict", "100/1h", `"on_failure": {"then": "local"}`,
			`"cost": {"reserve": 4, "commit": {"status": {"200": 1, "rest": 9}}}`))})
		charged, open, hangs := int64(0), map[uint64]int64{}, true
		w.plane.lease = func(call *envoytest.Call, req wire.LeaseRequest) bool {
			if hangs {
				return true
			}
			reply := wire.LeaseReply{Seq: req.Seq, Nodes: 1}
			for _, it := range req.Items {
				name, answer := it.Reserved+uint64(max(it.Nth, 1)), wire.LeaseAnswer{Level: 90}
				switch reserved, known := open[name]; {
				case it.Nth > 0 && known:
					charged += it.Actual - reserved
					answer.Waiting = 1
					delete(open, name)
				case it.Nth == 0 && it.Waiting > 0:
					charged += it.Waiting * it.Cost
					answer.Waiting = it.Waiting
					if it.Reserved > 0 {
						open[name] = it.Cost
					}
				}
				reply.Items = append(reply.Items, answer)
			}
			call.Respond(quantum, 200, nil, wire.AppendLeaseReply(nil, reply))
			return true
		}
		s := w.nodes[0].Worker(0).Request(get("x-key", "a"))
		w.advance(70 * quantum)
		if s.State() != envoytest.Continued {
			t.Fatalf("the request is %v", s.State())
		}
		if soon {
			s.Respond(200, nil)
		}
		hangs = false
		w.advance(8 * time.Second)
		if !soon {
			if charged != 4 {
				t.Errorf("%d are charged while the request lasts, want what it has reserved", charged)
			}
			s.Respond(200, nil)
			w.advance(time.Second)
		}
		if charged != 1 || len(open) > 1 {
			t.Errorf("the response comes soon %v: %d are charged, want 1", soon, charged)
		}
	}
}
