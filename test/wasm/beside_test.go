package wasm

import (
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
)

// Envoy goes on with no request in whose callback the filter has refused that request or another
// request. A request whose call cannot be sent fails the others that wait for a call: they are
// refused by their policy, and it passes by its own.
func TestARefusalHoldsUpNoOtherRequest(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, set: setOf(
		limits("denies", "strict", "100/1h", thenDeny, `"partition": ["header:x-denied"]`),
		limits("allows", "strict", "100/1h", thenAllow, `"partition": ["header:x-allowed"]`))})
	w.plane.lag = func() (up, down time.Duration) { return time.Hour, time.Hour }
	asked, queued := w.request(0, 0, get("x-denied", "a")), w.request(0, 0, get("x-denied", "b"))
	w.nodes[0].SetClusters()
	w.skip(6 * time.Millisecond)
	other := w.request(0, 0, get("x-allowed", "a"))
	t.Logf("the waiting requests are %v and %v, the other request is %v", asked.stream.State(), queued.stream.State(),
		other.stream.State())
	w.advance(200 * time.Millisecond)
	if !other.passed {
		t.Errorf("the request that passes is %v", other.stream.State())
	}
	for _, a := range []*attempt{asked, queued} {
		if state := a.stream.State(); state != envoytest.Replied {
			t.Errorf("a waiting request is %v", state)
		}
	}
}

// A request can come before a tick that is late, as in an Envoy that stood still, and does its
// work. So even a request that asks for no tokens finds that a call of another request is late.
func TestARefusalHoldsUpNoRequestOfALocalLimit(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, set: setOf(
		limits("denies", "strict", "100/1h", thenDeny, `"partition": ["header:x-denied"]`),
		limits("local", "local", "100/1h", `"partition": ["header:x-local"]`))})
	w.plane.lag = func() (up, down time.Duration) { return time.Hour, time.Hour }
	w.advance(2 * time.Second)
	w.skip(2 * time.Second) // Ticks come once a second: the next one is late.
	asked := w.request(0, 0, get("x-denied", "a"))
	w.skip(51 * time.Millisecond)
	local := w.request(0, 0, get("x-local", "a"))
	if !local.passed {
		t.Errorf("the request of the local limit is %v", local.stream.State())
	}
	w.advance(5 * time.Millisecond)
	if state := asked.stream.State(); state != envoytest.Replied {
		t.Errorf("the waiting request is %v", state)
	}
}
