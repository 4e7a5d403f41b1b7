package wasm

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// ends are the counters one of which counts each request.
var ends = []string{"allowed", "refused", "unlimited", "bypassed", "banned", "exempt", "before_snapshot", "unreadable",
	"gone"}

// decided are the sources of decisions.
var decided = []string{"local", "lease", "optimistic", "central", "share", "failure_allow", "failure_deny",
	"cached_denial", "request", "overload"}

func (w *world) sum(prefix string, names []string) (sum uint64, text string) {
	for _, name := range names {
		n := w.counter(prefix + name)
		sum += n
		text += fmt.Sprint(name, " ", n, ", ")
	}
	return sum, text
}

// mix is a load of everything that can happen to a request.
type mix struct {
	*world
	random *rand.Rand
	sent   uint64
	// paused are the streams that may go away.
	paused []*envoytest.Stream
}

var mixed = setWith(`"exempt": {"paths": ["/healthz"]}, "banned": {"client_ips": ["203.0.113.0/24"]}`,
	limits("local", "local", "50/1s", `"match": {"paths": ["/local"]}`),
	limits("leased", "leased", "200/1s", `"match": {"paths": ["/leased"]}`, `"on_failure": {"local_for": "1s", "then": "deny"}`),
	limits("strict", "strict", "100/1s", `"match": {"paths": ["/strict"]}`, thenAllow),
	limits("optimistic", "optimistic", "100/1s", `"match": {"paths": ["/optimistic"]}`, thenDeny),
	limits("queue", "local", "50/1s", `"match": {"paths": ["/queue"]}`, `"algorithm": "leaky_bucket"`, `"max_wait": "500ms"`),
	limits("shadow", "leased", "10/1s", `"match": {"paths": ["/leased"]}`, `"enforcement": "shadow"`),
	limits("absent", "leased", "10/1s", `"match": {"paths": ["/absent"]}`, `"partition": ["header:x-missing"]`, `"if_absent": "deny"`),
	limits("dear", "leased", "10/1s", `"match": {"paths": ["/dear"]}`, `"cost": {"header": "x-cost", "max": 1000, "invalid": 1}`),
)

func (m *mix) send() {
	paths := []string{"/local", "/leased", "/leased", "/strict", "/strict", "/optimistic", "/queue", "/absent", "/dear",
		"/healthz", "/free"}
	r := get("x-key", strconv.Itoa(m.random.IntN(5)), "x-cost", strconv.Itoa(1+m.random.IntN(20)))
	r.Headers[1][1] = paths[m.random.IntN(len(paths))]
	if m.random.IntN(20) == 0 {
		r.Source = "203.0.113.9:4242"
	}
	m.sent++
	worker := m.random.IntN(m.fleet.workers)
	if m.random.IntN(10) > 0 {
		m.request(0, worker, r)
		return
	}
	s := m.nodes[0].Worker(worker).Request(r)
	switch s.State() {
	case envoytest.Paused:
		m.paused = append(m.paused, s)
	case envoytest.Continued:
		s.Respond(200, nil)
	}
}

func (m *mix) cancelSome() {
	still := m.paused[:0]
	for _, s := range m.paused {
		switch {
		case s.State() == envoytest.Continued:
			s.Respond(200, nil)
		case s.State() != envoytest.Paused:
		case m.random.IntN(10) == 0:
			s.Cancel()
		default:
			still = append(still, s)
		}
	}
	m.paused = still
}

// Every request ends in exactly one counter, and every decision has exactly one source, whatever
// happens to either: waiting, clients that go away, queues, failures, pushes, and a start without
// policies.
func TestEveryRequestIsCountedOnce(t *testing.T) {
	for seed := range uint64(3) {
		w := newWorld(t, fleet{nodes: 1, workers: 3, seed: seed})
		m := &mix{world: w, random: rand.New(rand.NewPCG(seed, 1))}
		each := func() {
			for range m.random.IntN(4) {
				m.send()
			}
			m.cancelSome()
		}
		w.run(100*time.Millisecond, each)
		w.plane.push(mixed)
		w.plane.lag = func() (up, down time.Duration) {
			return time.Duration(m.random.IntN(15)) * quantum, time.Duration(m.random.IntN(15)) * quantum
		}
		w.run(2*time.Second, each)
		w.plane.order(wire.Order{State: policy.EnforcedOff, Percent: 50},
			wire.Order{State: policy.EnforcedShadow, Percent: 100, Policy: []byte("strict")})
		w.run(time.Second, each)
		w.plane.order(wire.Order{State: policy.EnforcedOff, Percent: 100})
		w.run(500*time.Millisecond, each)
		w.plane.order()
		w.run(500*time.Millisecond, each)
		w.plane.silence()
		w.run(3*time.Second, each)
		w.plane.lease = func(c *envoytest.Call, _ wire.LeaseRequest) bool {
			bad := m.random.IntN(3) == 0
			if bad {
				c.Respond(quantum, 503, nil, nil)
			}
			return bad
		}
		w.run(3*time.Second, each)
		w.plane.lease = nil
		w.plane.push(setOf(limits("other", "strict", "100/1s", thenDeny)))
		w.run(time.Second, each)
		w.advance(2 * time.Second)
		m.cancelSome()
		if n := w.counter("requests.waiting"); n != 0 {
			t.Errorf("seed %d: %d wait where no request does", seed, n)
		}
		sum, text := w.sum("requests.", ends)
		t.Logf("seed %d: %d requests: %s", seed, m.sent, text)
		if sum != m.sent {
			t.Errorf("seed %d: %d requests were counted of %d", seed, sum, m.sent)
		}
		for _, name := range []string{"banned", "exempt", "unlimited", "bypassed", "before_snapshot", "gone", "delayed",
			"waited"} {
			if w.counter("requests."+name) == 0 {
				t.Errorf("seed %d: no request was %s", seed, name)
			}
		}
		held, _, _ := w.nodes[0].Histogram("weir.hold.milliseconds")
		if waited := w.counter("requests.waited"); held != waited {
			t.Errorf("seed %d: %d waited, and the time of %d is known", seed, waited, held)
		}
		sum, text = w.sum("decisions.by_", decided)
		t.Logf("seed %d: decided by %s", seed, text)
		if want := w.counter("requests.allowed") + w.counter("requests.refused"); sum != want {
			t.Errorf("seed %d: %d decisions have a source, of %d", seed, sum, want)
		}
		for _, name := range decided[:9] {
			if w.counter("decisions.by_"+name) == 0 {
				t.Errorf("seed %d: nothing was decided by %s", seed, name)
			}
		}
	}
}

// The gauge of waiting requests is the sum of all workers, and goes down however they end.
func TestWaitingIsShown(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 2, set: setOf(limits("api", "strict", "100000/1h", thenAllow))})
	w.plane.lag = func() (up, down time.Duration) { return 20 * quantum, 20 * quantum }
	var gone []*envoytest.Stream
	for i := range 10 {
		gone = append(gone, w.nodes[0].Worker(1).Request(get("x-key", fmt.Sprint(i))))
	}
	for i := range 50 {
		w.request(0, i%2, get("x-key", fmt.Sprint(i)))
	}
	if n := w.counter("requests.waiting"); n != 60 { // A tick has passed.
		t.Errorf("%d wait, want 60", n)
	}
	for _, s := range gone {
		s.Cancel()
	}
	if n := w.counter("requests.waiting"); n > 50 {
		t.Errorf("%d wait, want at most 50", n)
	}
	w.advance(100 * quantum)
	if waiting, gone := w.counter("requests.waiting"), w.counter("requests.gone"); waiting != 0 || gone != 10 {
		t.Errorf("at last %d wait, %d are gone", waiting, gone)
	}
}

// Requests that wait for a place or are counted out, drafts, bans, and costs beyond a reservation
// show in Envoy's metrics.
func TestWhatHappensIsShown(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, set: setOf(
		`{"name": "places", "partition": [], "mode": "local", "match": {"paths": ["/places"]}, "limit": {"in_flight": 2}, "max_hold": "3s", "max_wait": "200ms"}`,
		limits("draft", "local", "10/1h", `"match": {"paths": ["/draft"]}`, `"candidate": {"limit": {"quota": 3, "window": "1h"}}`),
		limits("cost", "local", "100/1h", `"match": {"paths": ["/cost"]}`, `"cost": {"reserve": 2, "commit": {"header": "x-used"}}`))})
	send := func(path string) *envoytest.Stream {
		r := get("x-key", "a")
		r.Headers[1][1] = path
		return w.nodes[0].Worker(0).Request(r)
	}
	for range 3 { // The third waits, in vain.
		send("/places")
	}
	for range 5 {
		send("/draft").Respond(200, nil)
	}
	send("/cost").Respond(200, [][2]string{{"x-used", "9"}})
	w.plane.orders.Bans = []wire.Ban{{Key: keyhash.Key{1}}, {Key: keyhash.Key{2}}}
	w.plane.order()
	w.advance(5 * time.Second)
	for name, want := range map[string]uint64{
		"policy.places.in_flight.counted_out": 2, "requests.counted_out": 2, "requests.queued": 1,
		"candidate.allowed": 3, "candidate.refused": 2, "enforcement.bans": 2, "costs.overspent_tokens": 7,
	} {
		if n := w.counter(name); n != want {
			t.Errorf("%s is %d, want %d", name, n, want)
		}
	}
	if send("/places").State() != envoytest.Continued {
		t.Error("a request that was counted out has its place still")
	}
}

// The age of the policy set is the age of the last answered poll, whichever worker leads.
func TestAgeOfTheSnapshot(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 3, set: setOf(limits("api", "local", "10/1s"))})
	for range 60 {
		w.advance(time.Second)
		if age := w.counter("snapshot.age_seconds"); age > 26 {
			t.Fatalf("after %v it is %d s old", w.now, age)
		}
	}
	w.plane.down = true
	w.advance(100 * time.Second)
	if age := w.counter("snapshot.age_seconds"); age < 70 || age > 127 {
		t.Errorf("after 100 s without an answer it is %d s old", age)
	}
	w.plane.down = false
	w.advance(36 * time.Second) // The poll under way times out first.
	if age := w.counter("snapshot.age_seconds"); age > 36 {
		t.Errorf("after the recovery it is %d s old", age)
	}
}

// Two clients are two, also as the filter's compiler reads their addresses.
func TestClientsAreCountedApart(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, set: setOf(limits("api", "local", "1/1h", `"partition": ["client_ip"]`))})
	for _, source := range []string{"10.0.0.1:1", "10.0.0.2:1", "[2001:db8::1]:1", "[2001:db8:1::1]:1"} {
		for n := range 2 {
			r := get()
			r.Source = source
			if a := w.ask(0, 0, r); a.passed != (n == 0) {
				t.Errorf("request %d of %s passed: %v", n, source, a.passed)
			}
		}
	}
}
