package simulate

import (
	"fmt"
	"strings"
	"testing"
)

// A log has the costs of requests that are known later, by their status, a response header or their
// duration. A cost that the log lacks is the value of `missing`.
func TestCostsThatAreKnownLater(t *testing.T) {
	log := func(fields ...string) string {
		var b strings.Builder
		for i := range 10 {
			fmt.Fprintf(&b, `{"time": %d.5, "path": "/"%s}`+"\n", 1_700_000_000+i, fields[i%len(fields)])
		}
		return b.String()
	}
	for _, c := range []struct {
		cost, log string
		refused   int64
	}{
		{`{reserve: 1, commit: {status: {401: 1, rest: 0}}}`, log(`, "status": 200`), 0},
		{`{reserve: 1, commit: {status: {401: 1, rest: 0}}}`, log(`, "status": 401`), 7},
		{`{reserve: 1, commit: {status: {401: 1, rest: 0}}}`, log(`, "status": 401`, `, "status": 200`), 5},
		{`{reserve: 1, commit: {status: {401: 1, rest: 0}}}`, log(`, "status": 200, "duration": 20000`), 7},
		{`{reserve: 1, commit: {status: {401: 1, rest: 0}}, missing: 0}`, log(``), 0},
		{`{reserve: 1, commit: {header: x-used}}`, log(`, "x_used": 0`), 0},
		{`{reserve: 1, commit: {header: x-used}}`, log(`, "x-used": 9`), 9},
		{`{reserve: 1, commit: {trailer: x-rows}}`, log(`, "x-rows": 0`), 0},
		{`{reserve: 1, commit: {trailer: x-rows}}`, log(`, "x-rows": 9`), 9},
		{`{reserve: {jwt: plan.max, max: 9}, commit: {duration: 1h}}`, log(`, "jwt:plan.max": 3`), 9},
		{`{reserve: {metadata: ai/max, max: 9}, commit: {header: x-used}}`, log(`, "metadata:ai/max": 3, "x-used": 0`), 0},
		{`{reserve: {header: [x-max, x-new], max: 9}, commit: {header: x-used}}`, log(`, "x-max": 1, "x-new": 3`), 9},
		{`{reserve: {metadata: [ai/max, ai/new], max: 9}, commit: {header: x-used}}`,
			log(`, "metadata:ai/max": 1, "metadata:ai/new": 3`), 9},
		{`{reserve: 1, commit: {metadata: ai/used}}`, log(`, "used": 0`), 0},
		{`{reserve: 1, commit: {metadata: ai/used}}`, log(`, "ai/used": 9`), 9},
		{`{reserve: 1, commit: {grpc_status: {16: 1, rest: 0}}}`, log(`, "grpc_status": 16`, `, "grpc_status": 0`), 5},
		{`{reserve: 1, commit: {duration: 1s}}`, log(`, "duration": 900`), 7},
		{`{reserve: 3, commit: {duration: 1s}}`, log(`, "duration": 900`), 9},
		// If a response was not whole, `unfinished` counts, and the most only if the client left.
		{`{reserve: {header: x-max, max: 9, missing: 7}, commit: {header: x-used}}`,
			log(`, "x-max": 1, "flags": "DC"`), 9},
		{`{reserve: {header: x-max, max: 9, missing: 7}, commit: {header: x-used}}`,
			log(`, "x-max": 1, "flags": "UF"`), 7},
		{`{reserve: {header: x-max, max: 9}, commit: {header: x-used}, unfinished: max}`,
			log(`, "x-max": 1, "flags": "UF,UT"`), 9},
		{`{reserve: {header: x-max, max: 9}, commit: {header: x-used}, unfinished: reserved}`,
			log(`, "x-max": 1, "flags": "DC"`), 7},
		{`{reserve: 1, commit: {header: x-used}, unfinished: 2}`, log(`, "flags": "UF"`), 8},
		{`{reserve: 1, commit: {header: x-used}, unfinished: 0}`, log(`, "flags": "DC"`), 0},
		{`{reserve: 1, commit: {header: x-used}, unfinished: 0}`, log(`, "x-used": 1, "flags": "DC"`), 7},
		{`{reserve: 1, commit: {duration: 1s}}`, log(`, "duration": 1900, "flags": "DC"`), 8},
		{`{reserve: 1, commit: {duration: 1s}}`, log(`, "flags": "DC"`), 7},
	} {
		set := load(t, "policies:\n  - {name: api, partition: [], mode: local, algorithm: sliding_log, limit: "+
			"{quota: 3, window: 1h}, cost: "+c.cost+"}")
		if got := replay(t, Options{Set: set, Top: 1, Nodes: 1}, c.log).Result.Refused; got != c.refused {
			t.Errorf("%s\n%s%d refused, want %d", c.cost, c.log, got, c.refused)
		}
	}
}
