package series_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/shared/wire"
)

// decide reports, for the nodes of a version, one decision by each policy.
func decide(s *series.Service, version uint64, policies int) {
	const each = 255
	for at := 0; at < policies; at += each {
		m := wire.Measures{Node: []byte("n")}
		n := min(each, policies-at)
		for i := range n {
			m.Items = append(m.Items, wire.Measure{Policy: fmt.Appendf(nil, "p%d", at+i), Version: version, Decided: 1})
		}
		m.Items = append(m.Items, wire.Measure{Policy: []byte(wire.AllRequests), Version: version,
			Decided: int64(n), Refused: int64(n / 2)})
		s.Compared(&m, func(uint64, string) bool { return true })
	}
}

// All requests of a version are counted also where rows of policies have no room: with large sets,
// and while rollouts follow each other. Rows of versions that are over make room after minutes.
func TestAllRequestsOfAVersionHaveRoom(t *testing.T) {
	w := newWorld(t)
	s := w.replica("counts")
	w.replica("reads")
	for round := range 6 {
		policies, base, draft := 1000, uint64(1+round), uint64(2+round)
		if round == 5 {
			w.now = w.now.Add(6 * time.Minute)
		}
		if round == 2 {
			policies = 2200
		}
		since := w.now
		for range 2 {
			decide(s, base, policies)
			decide(s, draft, policies)
			w.pass(10 * time.Second)
		}
		for _, version := range []uint64{base, draft} {
			for _, one := range w.all {
				got, complete := one.Decided(version, since)
				if all := got[wire.AllRequests]; all.Decided != int64(2*policies) || !complete {
					t.Errorf("round %d: of version %d %d rows count %+v requests, complete %v", round, version,
						len(got), all, complete)
				}
				if (round == 0 || round == 5) && len(got) != policies+1 {
					t.Errorf("round %d: %d rows of version %d", round, len(got), version)
				}
			}
		}
	}
}
