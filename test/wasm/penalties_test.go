package wasm

import (
	"testing"
	"time"
)

// Offences that are not reported yet are sent although no policy has a penalty by now, and then the
// node is idle.
func TestPenaltiesOfAFormerPolicySetAreReported(t *testing.T) {
	offended := limits("api", "local", "1/1h", `"penalty": {"after": {"refusals": 1, "within": "1m"}, "for": "1m"}`)
	w := newWorld(t, fleet{nodes: 1, set: setOf(offended)})
	w.plane.unjust = true
	w.advance(2 * time.Second)
	for range 3 {
		w.request(0, 0, get("x-key", "eve"))
	}
	w.advance(time.Second)
	if w.plane.offences == 0 {
		t.Fatal("nothing was reported")
	}
	w.plane.push(setOf(limits("api", "local", "1/1h")))
	w.advance(time.Second)
	w.plane.offences, w.plane.unjust = 0, false
	w.advance(15 * time.Second) // More than the longest pause.
	if w.plane.offences != 1 {
		t.Errorf("%d reports once they are taken", w.plane.offences)
	}
	if n := ticked(w.nodes[0], func() { w.advance(10 * time.Second) }); n > 60 {
		t.Errorf("%d ticks in 10 s of an idle node", n)
	}
}
