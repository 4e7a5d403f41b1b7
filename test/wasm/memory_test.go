package wasm

import (
	"fmt"
	"testing"
	"time"
)

// A virtual machine with many policies stays within its promise, also when it replaces them all,
// and while it serves requests. How long they took to be in force on this machine is printed: a new
// machine that finds them in the shared data takes as long.
func TestMemoryOfAMachine(t *testing.T) {
	for _, c := range []struct {
		policies int
		most     uint64 // in MB of 2^20 bytes
	}{{100, 4}, {10_000, 16}} {
		t.Run(fmt.Sprint(c.policies), func(t *testing.T) {
			set := func(quota int) string {
				var all []string
				for i := range c.policies {
					all = append(all, limits(fmt.Sprint("policy-", i), "local", fmt.Sprintf("%d/1s", quota), fmt.Sprintf(`"match": {"paths": ["/v1/path/%d"]}`, i)))
				}
				return setOf(all...)
			}
			w := newWorld(t, fleet{nodes: 1, keys: 65_536})
			h := w.nodes[0]
			bare := h.MemoryBytes(0)
			request := get("x-key", "a")
			request.Headers[1][1] = "/v1/path/7"
			for push := range 6 {
				w.plane.push(set(10 + push))
				begin := time.Now()
				w.advance(100 * time.Millisecond)
				took := time.Since(begin)
				for i := range 1000 {
					request.Headers[len(request.Headers)-1][1] = fmt.Sprint("key-", i)
					passes(t, h, 0, request)
				}
				memory := h.MemoryBytes(0)
				t.Logf("push %d of %d policies: in force after %s of real time; %.1f MB, without any %.1f MB",
					push+1, c.policies, took.Round(time.Millisecond), float64(memory)/(1<<20), float64(bare)/(1<<20))
				if memory > c.most<<20 {
					t.Errorf("%d bytes with %d policies, want at most %d MB", memory, c.policies, c.most)
				}
			}
		})
	}
}
