package wasm

import (
	"maps"
	"slices"
	"testing"

	"github.com/weir-proxy/weir/envoytest"
)

// cost is what one request costs, as far as the host can see it: exact, so that a change shows as a change of this file.
type cost struct {
	hostcalls   map[string]uint64
	entries     map[string]uint64
	allocations uint64 // of bytes that the host returns
	bytes       uint64
}

// stream is the callbacks of every request that has an answer.
var stream = map[string]uint64{
	"proxy_on_context_create": 1, "proxy_on_request_headers": 1, "proxy_on_response_headers": 1, "proxy_on_delete": 1,
}

// The figures of a request on its usual ways. They are guards: less is welcome, then lower them.
func TestCostOfARequest(t *testing.T) {
	request := get("x-key", "a", "user-agent", "test", "accept", "*/*")
	for _, c := range []struct {
		name  string
		setup func(t *testing.T) *envoytest.Host
		want  cost
	}{
		{"no policy applies", func(t *testing.T) *envoytest.Host {
			return start(t, envoytest.Options{PluginConfig: alone(setOf(limits("p", "local", "1/1s", `"match": {"hosts": ["other.example"]}`)))})
		}, cost{map[string]uint64{"proxy_get_header_map_pairs": 1, "clock_time_get": 1}, stream, 1, 168}},
		{"local, allowed", func(t *testing.T) *envoytest.Host {
			return start(t, envoytest.Options{PluginConfig: alone(setOf(limits("p", "local", "1000000/1s")))})
		}, cost{map[string]uint64{
			"proxy_get_header_map_pairs": 1, "clock_time_get": 1, "proxy_get_shared_data": 1, "proxy_set_shared_data": 1,
			"proxy_set_property": 1, "proxy_get_header_map_value": 1, "proxy_replace_header_map_value": 2,
		}, stream, 2, 1200}},
		{"local, refused", func(t *testing.T) *envoytest.Host {
			h := start(t, envoytest.Options{PluginConfig: alone(setOf(limits("p", "local", "1/366d")))})
			count(t, h, 0, 1, request)
			return h
		}, cost{map[string]uint64{
			"proxy_get_header_map_pairs": 1, "clock_time_get": 1, "proxy_get_shared_data": 1,
			"proxy_set_property": 1, "proxy_send_local_response": 1,
		}, stream, 2, 1200}},
		{"in windows, allowed", func(t *testing.T) *envoytest.Host {
			return start(t, envoytest.Options{PluginConfig: alone(setOf(limits("p", "local", "1000000/1m", `"algorithm": "sliding_window"`)))})
		}, cost{map[string]uint64{
			"proxy_get_header_map_pairs": 1, "clock_time_get": 1, "proxy_get_shared_data": 1, "proxy_set_shared_data": 1,
			"proxy_set_property": 1, "proxy_get_header_map_value": 1, "proxy_replace_header_map_value": 2,
		}, stream, 2, 500}},
		{"leased, with tokens in hand", func(t *testing.T) *envoytest.Host {
			w := newWorld(t, fleet{nodes: 1, set: setOf(limits("p", "leased", "10000/1s"))})
			for range 1000 {
				w.request(0, 0, request)
				w.advance(quantum)
			}
			return w.nodes[0]
		}, cost{map[string]uint64{
			"proxy_get_header_map_pairs": 1, "clock_time_get": 1, "proxy_get_shared_data": 1, "proxy_set_shared_data": 1,
			"proxy_set_property": 1, "proxy_get_header_map_value": 1, "proxy_replace_header_map_value": 2,
		}, stream, 2, 1200}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := c.setup(t)
			passes(t, h, 0, request)
			const n = 20
			before := h.Stats()
			for range n {
				passes(t, h, 0, request)
			}
			s := h.Stats().Since(before)
			t.Logf("per request: %v, %v, %d allocations of %d bytes", each(s.Hostcalls, n), each(s.Entries, n), s.Allocations/n, s.AllocatedBytes/n)
			guard(t, "host call", s.Hostcalls, c.want.hostcalls, n)
			guard(t, "callback", s.Entries, c.want.entries, n)
			if s.Allocations > n*c.want.allocations || s.AllocatedBytes > n*c.want.bytes {
				t.Errorf("%d allocations of %d bytes, want at most %d of %d", s.Allocations/n, s.AllocatedBytes/n, c.want.allocations, c.want.bytes)
			}
		})
	}
}

// Nothing is kept of a request that is over, allowed or refused: after the heap has found its size, memory is flat.
func TestRequestsLeaveNothingBehind(t *testing.T) {
	h := start(t, envoytest.Options{PluginConfig: alone(setWith(legacyToo, limits("p", "local", "1/1s burst 30000"), limits("q", "local", "40000/1h"),
		limits("r", "local", "50000/1h", `"algorithm": "sliding_window"`)))})
	var memory []uint64
	for range 8 {
		count(t, h, 0, 10_000, get("x-key", "a"))
		memory = append(memory, h.MemoryBytes(0))
	}
	t.Logf("memory after each 10,000 requests: %v", memory)
	if memory[7] != memory[1] {
		t.Errorf("memory after each 10,000 requests: %v", memory)
	}
}

// each is the counts of one request; what does not divide is left as it is, times n.
func each(counts map[string]uint64, n uint64) map[string]uint64 {
	counts = maps.Clone(counts)
	for name := range counts {
		if counts[name]%n == 0 {
			counts[name] /= n
		}
	}
	return counts
}

func guard(t *testing.T, what string, counts, want map[string]uint64, n uint64) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if counts[name] > n*want[name] {
			t.Errorf("%s %s: %d in %d requests, want at most %d each", what, name, counts[name], n, want[name])
		}
	}
}
