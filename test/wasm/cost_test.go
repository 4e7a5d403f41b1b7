package wasm

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/weir-proxy/weir/envoytest"
)

// cost is the cost of one request, as far as the host can see it. It is exact, so that a change
// shows as a change of this file.
type cost struct {
	hostcalls   map[string]uint64
	entries     map[string]uint64
	allocations uint64 // of bytes that the host returns
	bytes       uint64
}

// calls adds up lists of host calls.
func calls(lists ...map[string]uint64) map[string]uint64 {
	sum := map[string]uint64{}
	for _, list := range lists {
		for name, n := range list {
			sum[name] += n
		}
	}
	return sum
}

// times returns a list with each count multiplied by n.
func times(n uint64, list map[string]uint64) map[string]uint64 {
	product := map[string]uint64{}
	for name, each := range list {
		product[name] = n * each
	}
	return product
}

var (
	// stream is the callbacks of every request that has an answer.
	stream = map[string]uint64{
		"proxy_on_context_create": 1, "proxy_on_request_headers": 1, "proxy_on_response_headers": 1,
		"proxy_on_delete": 1,
	}
	// looked is the cost of knowing a request, read of looking at a bucket, shared of charging it,
	// and headed of reading or writing the headers of a response.
	looked = map[string]uint64{"proxy_get_header_map_pairs": 1, "clock_time_get": 1}
	read   = map[string]uint64{"proxy_get_shared_data": 1}
	shared = map[string]uint64{"proxy_get_shared_data": 1, "proxy_set_shared_data": 1}
	headed = map[string]uint64{"proxy_set_property": 1, "proxy_get_header_map_value": 1,
		"proxy_replace_header_map_value": 2}
	// ended is the look at the clock when a request in flight is over.
	ended = map[string]uint64{"clock_time_get": 1}
	// sent is a refusal.
	sent = map[string]uint64{"proxy_set_property": 1, "proxy_send_local_response": 1}
)

// warm sends requests for a second of the clock until a worker knows how busy the bucket is, one
// each quantum.
func warm(t *testing.T, h *envoytest.Host, r envoytest.Request) *envoytest.Host {
	for range 1000 {
		passes(t, h, 0, r)
		h.Advance(quantum)
	}
	return h
}

// central returns a node that has been busy for a while, with a control plane.
func central(t *testing.T, r envoytest.Request, policies ...string) *envoytest.Host {
	w := newWorld(t, fleet{nodes: 1, set: setOf(policies...)})
	for range 400 {
		for range 30 {
			w.request(0, 0, r)
		}
		w.advance(quantum)
	}
	return w.nodes[0]
}

// five returns five policies that all apply, and many returns ten thousand policies of which one
// applies.
func five() (all []string) {
	for i := range 5 {
		all = append(all, limits(fmt.Sprint("p", i), "local", "1000000/1s"))
	}
	return all
}

func many() (all []string) {
	for i := range 9999 {
		all = append(all, limits(fmt.Sprint("other", i), "local", "1/1s", fmt.Sprintf(`"match": {"paths": ["/other/%d"]}`, i)))
	}
	return append(all, limits("p", "local", "1000000/1s"))
}

// inFlight returns a policy of requests in flight for each key.
func inFlight(mode string, n int) string {
	return fmt.Sprintf(`{"name": "p", "mode": %q, "partition": ["header:x-key"], "limit": {"in_flight": %d}}`, mode, n)
}

// way is a usual way of a request, with its cost.
type way struct {
	name  string
	setup func(t *testing.T) *envoytest.Host
	want  cost
}

func ways(request envoytest.Request) []way {
	lonely := func(policies ...string) func(t *testing.T) *envoytest.Host {
		return func(t *testing.T) *envoytest.Host {
			return start(t, envoytest.Options{PluginConfig: alone(setOf(policies...))})
		}
	}
	busy := func(policies ...string) func(t *testing.T) *envoytest.Host {
		return func(t *testing.T) *envoytest.Host { return warm(t, lonely(policies...)(t), request) }
	}
	return []way{
		{"no policy applies", lonely(limits("p", "local", "1/1s", `"match": {"hosts": ["other.example"]}`)),
			cost{looked, stream, 1, 168}},
		{"local", lonely(limits("p", "local", "1000000/1s")), cost{calls(looked, shared, headed), stream, 2, 432}},
		{"local, refused", busy(limits("p", "local", "1/366d")), cost{calls(looked, read, sent), stream, 2, 432}},
		{"in flight, local", lonely(inFlight("local", 100_000)),
			cost{calls(looked, headed, ended), stream, 1, 168}},
		{"in flight, local, refused", func(t *testing.T) *envoytest.Host {
			h := lonely(inFlight("local", 1))(t)
			h.Worker(0).Request(request) // It never ends.
			return h
		}, cost{calls(looked, read, sent), stream, 2, 210}},
		{"in windows, allowed", lonely(limits("p", "local", "1000000/1m", `"algorithm": "sliding_window"`)),
			cost{calls(looked, shared, headed), stream, 2, 500}},
		{"5 policies", lonely(five()...),
			cost{calls(looked, times(5, read), times(5, shared), headed), stream, 11, 2810}},
		{"1 policy of 10 000", func(t *testing.T) *envoytest.Host {
			return central(t, request, many()...)
		}, cost{calls(looked, shared, headed), stream, 2, 432}},
		{"leased, with tokens in hand", func(t *testing.T) *envoytest.Host {
			return central(t, request, limits("p", "leased", "100000/1s"))
		}, cost{calls(looked, shared, headed), stream, 2, 432}},
		{"in flight, leased, with permits in hand", func(t *testing.T) *envoytest.Host {
			return central(t, request, inFlight("leased", 100_000))
		}, cost{calls(looked, headed, ended), stream, 1, 168}},
		{"optimistic", func(t *testing.T) *envoytest.Host {
			return central(t, request, limits("p", "optimistic", "100000/1s"))
		}, cost{calls(looked, shared, headed), stream, 2, 440}},
	}
}

// The figures of a request on its usual ways. They are guards: less is welcome, then lower them.
func TestCostOfARequest(t *testing.T) {
	request := get("x-key", "a", "user-agent", "test", "accept", "*/*")
	for _, c := range ways(request) {
		t.Run(c.name, func(t *testing.T) {
			h := c.setup(t)
			passes(t, h, 0, request)
			const n = 100
			before := h.Stats()
			for range n {
				passes(t, h, 0, request)
			}
			s := h.Stats().Since(before)
			t.Logf("%d requests: %v, %v, %d allocations of %d bytes", n, s.Hostcalls, s.Entries, s.Allocations,
				s.AllocatedBytes)
			guard(t, "host call", s.Hostcalls, c.want.hostcalls, n)
			guard(t, "callback", s.Entries, c.want.entries, n)
			if s.Allocations > n*c.want.allocations || s.AllocatedBytes > n*c.want.bytes {
				t.Errorf("%d allocations of %d bytes in %d requests, want at most %d of %d each", s.Allocations,
					s.AllocatedBytes, n, c.want.allocations, c.want.bytes)
			}
		})
	}
}

// Nothing is kept of a request that is over, allowed or refused: after the heap has found its size,
// memory is flat.
func TestRequestsLeaveNothingBehind(t *testing.T) {
	h := start(t, envoytest.Options{PluginConfig: alone(setWith(legacyToo, limits("p", "local", "1/1s burst 30000"),
		limits("q", "local", "40000/1h"),
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

// guard fails if any count is more than n times the count for one request.
func guard(t *testing.T, what string, counts, one map[string]uint64, n uint64) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if most := n * one[name]; counts[name] > most {
			t.Errorf("%s %s: %d in %d requests, want at most %d", what, name, counts[name], n, most)
		}
	}
}
