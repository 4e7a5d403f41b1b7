package native

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// faults are the kinds of faults that filter/native/provoke.c makes: accesses beyond the memory, by
// the module's code and by an address that it hands to the host, and the traps of WebAssembly.
var faults = []string{"read", "write", "pointer", "stack", "division", "overflow", "unreachable", "call"}

const (
	// keyQuota is the quota of each key, for so long that no token comes back during the test.
	keyQuota    = 3_000
	steadyKey   = "steady"
	faultyRules = `{"policyset": {"version": "weir/v1", "identity": {"consumer": [{"header": "x-key"}]}, "policies": [` +
		`{"name": "keys", "partition": ["consumer"], "limit": {"quota": 3000, "window": "720h"}, "mode": "local"}]}}`
)

// A fault ends neither Envoy nor a request. The worker gets a new instance, which decides the
// request once more; after a second fault the request passes. Buckets outlive their instance: a
// caller beside the faults gets its whole quota and no more, and a request that faulted once has
// taken one token.
func TestFaultsOfTheModuleCostNoRequest(t *testing.T) {
	// Each number is a multiple of twice the number of kinds.
	switch {
	case *emulated:
		testFaults(t, *faulty, 64)
	case *full:
		testFaults(t, *faulty, 10_000)
	default:
		testFaults(t, *faulty, 640)
	}
}

// The host does nothing undefined on its way through faults.
func TestFaultsUnderTheSanitizer(t *testing.T) {
	testFaults(t, "build/sanitized/libweir.so", 160)
}

func testFaults(t *testing.T, host string, provoked int) {
	t.Helper()
	// In an emulator a new instance can take longer than Envoy waits for an upstream.
	patient := func(o *stack.EnvoyOptions) {
		o.Rewrite = func(config string) string {
			return strings.Replace(config, "route: {cluster: upstream}", "route: {cluster: upstream, timeout: 0s}", 1)
		}
	}
	e := startEnvoy(t, host, faultyRules, patient)
	stop, steady := make(chan struct{}), newSteadyCaller()
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() { steady.call(t, e.URL(), stop) })
	}
	// Each second kind faults in the first decision of its request alone.
	var next, memory, want atomic.Int64
	var provokers sync.WaitGroup
	for range 2 {
		provokers.Go(func() {
			client := &http.Client{}
			for n := next.Add(1); n <= int64(provoked); n = next.Add(1) {
				kind, once := faults[int(n)%len(faults)], int(n-1)/len(faults)%2 == 0
				if once {
					kind = "once-" + kind
					want.Add(1)
				} else {
					want.Add(2)
				}
				status, limit, err := send(client, e, "x-weir-fault", kind, "x-key", kind)
				// A fault of the other caller may cost the answer its RateLimit.
				if err != nil || status != http.StatusOK || limit != "" && !once {
					t.Errorf("fault %d, %s: status %d, RateLimit %q: %v", n, kind, status, limit, err)
					return
				}
				if n == int64(provoked)/10 {
					memory.Store(int64(residentMemory(t, e.PID())))
				}
			}
		})
	}
	provokers.Wait()
	grown := residentMemory(t, e.PID()) - int(memory.Load())
	steady.finish(t)
	close(stop)
	callers.Wait()
	t.Logf("%d requests with faults, %d faults, %d requests beside them; after a tenth of them memory grew by %d KiB",
		provoked, want.Load(), steady.sent.Load(), grown>>10)
	if grown > 8<<20 && !*emulated {
		t.Errorf("memory grew by %d bytes", grown)
	}
	if passed := steady.passed.Load(); passed != keyQuota {
		t.Errorf("%d requests of a quota of %d passed", passed, keyQuota)
	}
	for _, kind := range faults {
		taken := provoked/len(faults)/2 + 1 // Half of the kind's requests, and this one.
		_, limit, err := send(&http.Client{}, e, "x-key", "once-"+kind)
		if remaining := fmt.Sprintf(";r=%d;", keyQuota-taken); err != nil || !strings.Contains(limit, remaining) {
			t.Errorf("after the faults of %s: RateLimit %s, want %s: %v", kind, limit, remaining, err)
		}
	}
	if got := metric(t, e, "faults"); got != int(want.Load()) {
		t.Errorf("%d faults are counted, want %d", got, want.Load())
	}
	testEnvoysOwnHandler(t, e.Process.Signal, func() string { return e.Stderr.Tail(100) })
}

// testEnvoysOwnHandler checks that a signal that the module did not cause still reaches Envoy's own
// handler, which says where it happened.
func testEnvoysOwnHandler(t *testing.T, signal func(syscall.Signal) error, log func() string) {
	t.Helper()
	if err := signal(syscall.SIGSEGV); err != nil {
		t.Fatal(err)
	}
	const said = "Caught Segmentation fault"
	deadline := time.Now().Add(10 * time.Second)
	for ; !strings.Contains(log(), said); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("Envoy does not say %q:\n%s", said, log())
		}
	}
}

// A steadyCaller sends requests without faults, and counts them.
type steadyCaller struct{ sent, passed atomic.Int64 }

func newSteadyCaller() *steadyCaller { return &steadyCaller{} }

// call sends requests until stop is closed.
func (s *steadyCaller) call(t *testing.T, url string, stop <-chan struct{}) {
	client := &http.Client{}
	for {
		select {
		case <-stop:
			return
		default:
		}
		r, err := http.NewRequest(http.MethodGet, url+"/", nil)
		if err != nil {
			t.Error(err)
			return
		}
		r.Header.Set("x-key", steadyKey)
		answer, err := client.Do(r)
		if err != nil {
			t.Error(err)
			return
		}
		answer.Body.Close()
		s.sent.Add(1)
		switch answer.StatusCode {
		case http.StatusOK:
			s.passed.Add(1)
		case http.StatusTooManyRequests:
		default:
			t.Errorf("a request beside the faults: status %d", answer.StatusCode)
			return
		}
	}
}

// finish waits until more requests than the quota have been sent.
func (s *steadyCaller) finish(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); s.sent.Load() <= keyQuota; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("only %d requests were sent", s.sent.Load())
		}
	}
}
