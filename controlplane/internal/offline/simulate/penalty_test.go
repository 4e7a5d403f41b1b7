package simulate

import (
	"fmt"
	"strings"
	"testing"
)

// A caller whose third refusal within ten seconds is an offence: it is refused for a minute,
// whatever its bucket holds.
func TestPenalties(t *testing.T) {
	log := func(seconds ...int) string {
		var b strings.Builder
		for _, at := range seconds {
			fmt.Fprintf(&b, `{"time": %d, "path": "/", "x-api-key": "eve"}`+"\n", 1_700_000_000+at)
		}
		return b.String()
	}
	offence := []int{0, 1, 2, 3} // The first one passes.
	for _, c := range []struct {
		penalty         string
		then            []int
		refused, shadow int64
	}{
		{``, []int{30, 60, 90}, 3, 0},
		{`, penalty: {after: {refusals: 3, within: 10s}}`, []int{30, 60, 90}, 5, 0},
		{`, penalty: {after: {refusals: 3, within: 10s}, extend: true}`, []int{30, 60, 90, 120}, 7, 0},
		{`, penalty: {after: {refusals: 4, within: 10s}}`, []int{30, 60, 90}, 3, 0},
		{`, penalty: {after: {refusals: 3, within: 10s}, shadow: true}`, []int{30, 60, 90}, 3, 0},
		{`, penalty: {after: {refusals: 3, within: 10s}, scope: all}`, []int{30, 60, 90}, 5, 0},
		{`, penalty: {after: {refusals: 3, within: 10s}}, enforcement: shadow`, []int{30, 60, 90}, 0, 5},
	} {
		set := load(t, "identity: {consumer: [{header: x-api-key}]}\npolicies:\n"+
			"  - {name: api, partition: [consumer], "+
			"limit: {quota: 1, window: 20s}"+c.penalty+"}")
		got := replay(t, Options{Set: set, Top: 1, Nodes: 1}, log(append(offence, c.then...)...)).Result
		if shadow := got.Policies[0].Shadow; got.Refused != c.refused || shadow != c.shadow {
			t.Errorf("%q: %d refused and %d in shadow, want %d and %d", c.penalty, got.Refused, shadow, c.refused,
				c.shadow)
		}
	}
}
