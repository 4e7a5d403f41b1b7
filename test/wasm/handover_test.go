package wasm

import (
	"testing"
	"time"
)

// A new configuration of the plugin gives back the tokens that the old configuration has leased,
// and requests may use them meanwhile: the bucket lacks only the used tokens.
func TestANewConfigurationGivesBackWhatTheOldOneLeased(t *testing.T) {
	for _, drain := range []time.Duration{0, 2 * time.Second} {
		w := newWorld(t, fleet{nodes: 1, set: setOf(limits("p", "leased", "1000/1d")), drain: drain})
		w.plane.Names = true
		w.plane.Nodes = 2
		var kept, passed int64
		ask := func(n int) {
			for range n {
				if w.ask(0, 0, get("x-key", "a")).passed {
					passed++
				}
			}
		}
		ask(90)
		if err := w.nodes[0].UpdatePlugin(w.config(`{"version": "weir/v1", "policies": []}`)); err != nil {
			t.Fatal(err)
		}
		w.advance(drain + time.Second)
		ask(1)
		w.advance(40 * time.Second)
		var granted int64
		for _, g := range w.plane.granted {
			granted += g.Waiting*g.item.Cost + g.Keep
			kept += g.Keep
		}
		if back := w.plane.Returned; kept < 10 || granted-back != passed {
			t.Errorf("drained for %v: granted %d, %d to keep; %d passed, %d back", drain, granted, kept, passed, back)
		}
	}
}
