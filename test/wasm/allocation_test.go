package wasm

import (
	"testing"

	"github.com/weir-proxy/weir/envoytest"
)

// block is the unit of TinyGo's heap: an allocation writes to at least one block, and to the
// block's mark in the collector's table.
const block = 16

// A request allocates nothing in the module: a hundred requests touch less of its memory than a
// block for each request. An allocation would write to blocks that no earlier request has used,
// until a collection. The heap is large enough here that none runs.
func TestRequestsAllocateNothing(t *testing.T) {
	request := get("x-key", "a", "user-agent", "test", "accept", "*/*")
	for _, c := range ways(request) {
		t.Run(c.name, func(t *testing.T) {
			h := c.setup(t)
			const n = 100
			touched(t, h, request, n) // After this, all memory that is kept for later requests is there.
			blocks := touched(t, h, request, n)
			t.Logf("%d requests touch %d blocks", n, blocks)
			if blocks >= n {
				t.Errorf("%d requests touch %d blocks of memory: something is allocated for each", n, blocks)
			}
		})
	}
}

// touched returns the number of blocks of the module's memory that n requests change.
func touched(t *testing.T, h *envoytest.Host, request envoytest.Request, n int) (blocks int) {
	t.Helper()
	before := h.Memory(0)
	for range n {
		passes(t, h, 0, request)
	}
	after := h.Memory(0)
	if len(before) != len(after) {
		t.Fatalf("memory went from %d to %d bytes", len(before), len(after))
	}
	for at := 0; at < len(after); at += block {
		if string(before[at:at+block]) != string(after[at:at+block]) {
			blocks++
		}
	}
	return blocks
}
