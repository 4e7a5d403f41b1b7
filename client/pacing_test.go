package client

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/quota"
)

// bucket is one bucket of Weir's arithmetic.
type bucket struct {
	params  quota.Params
	state   quota.State
	windows quota.Windows
	history quota.History
	burst   int64
	window  quota.Span
}

func newBucket(t *testing.T, a quota.Algorithm, limit int64, window time.Duration, burst int64) *bucket {
	t.Helper()
	span := quota.Span(window / time.Microsecond)
	params, err := quota.NewParams(limit, span, burst)
	if err != nil {
		t.Fatal(err)
	}
	b := &bucket{params: params, burst: burst, window: params.Window()}
	if a.Windowed() {
		if b.windows, err = quota.NewWindows(a, limit, span, quota.DefaultSubwindows); err != nil {
			t.Fatal(err)
		}
		// A bucket's windows begin at any time.
		b.windows = b.windows.At(uint64(span) * 7 / 10)
	}
	return b
}

func (b *bucket) windowed() bool { return b.windows.Quota > 0 }

// take spends one token at now.
func (b *bucket) take(now quota.Instant) (result quota.Result, remaining int64, reset quota.Span) {
	if b.windowed() {
		result = b.windows.Take(&b.history, now, 1)
		return result, b.windows.Remaining(&b.history), b.windows.ResetAfter(&b.history, now)
	}
	b.state, result = b.params.Take(b.state, now, 1)
	return result, b.params.Remaining(b.state), b.params.ResetAfter(b.state, now)
}

// server answers as Weir does. It waits for half of delay before it decides, and for half after.
type server struct {
	mu              sync.Mutex
	bucket          *bucket
	start           time.Time
	delay           time.Duration
	legacy          bool
	passed, refused int64
}

func newServer(t *testing.T, a quota.Algorithm, limit int64, window time.Duration, burst int64) *server {
	t.Helper()
	return &server{
		bucket: newBucket(t, a, limit, window, burst), delay: 20 * time.Millisecond, start: time.Now(),
	}
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(s.delay / 2)
	defer time.Sleep(s.delay / 2)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := quota.Instant(time.Since(s.start) / time.Microsecond)
	result, remaining, reset := s.bucket.take(now)
	h, status := http.Header{}, http.StatusOK
	s.passed++
	if !result.Allowed {
		s.passed--
		s.refused++
		status = http.StatusTooManyRequests
		retry := dialect.RetryAfter(result.RetryAfter, now+quota.Instant(result.RetryAfter), 1)
		h.Set("Retry-After", fmt.Sprint(retry))
		reset = quota.Span(retry) * quota.Second
	}
	it := dialect.Item{
		Name: []byte("p"), Burst: s.bucket.burst, Window: s.bucket.window, Remaining: remaining, Reset: reset,
	}
	if s.legacy {
		h.Set("X-RateLimit-Limit", fmt.Sprint(it.Burst))
		h.Set("X-RateLimit-Remaining", fmt.Sprint(it.Remaining))
		h.Set("X-RateLimit-Reset", fmt.Sprint(dialect.ResetAt(time.Now().UnixMicro(), it.Reset)))
	} else {
		h.Set("RateLimit-Policy", string(dialect.AppendPolicies(nil, []dialect.Item{it})))
		h.Set("RateLimit", string(dialect.AppendLimits(nil, []dialect.Item{it})))
	}
	return &http.Response{StatusCode: status, Header: h, Body: http.NoBody, Request: r}, nil
}

// limits are the limits of the pacing tests.
var limits = []struct {
	algorithm quota.Algorithm
	quota     int64
	window    time.Duration
	burst     int64
	// windows is the length of a test in windows. Virtual time costs nothing, but requests do.
	windows int
	// least is the least share of the oracle's requests that passes; 0 is 0.95.
	least float64
}{
	{quota.TokenBucket, 100, time.Minute, 100, 20, 0},
	{quota.TokenBucket, 100, time.Minute, 10, 20, 0},
	{quota.TokenBucket, 600, time.Minute, 50, 10, 0},
	{quota.TokenBucket, 10, time.Minute, 10, 20, 0},
	{quota.TokenBucket, 2, time.Minute, 1, 20, 0},
	{quota.TokenBucket, 5000, time.Hour, 5000, 2, 0.99},
	{quota.FixedWindow, 100, time.Minute, 100, 20, 0},
	{quota.FixedWindow, 10, 20 * time.Second, 10, 20, 0},
	{quota.FixedWindow, 1000, time.Minute, 1000, 10, 0},
	{quota.SlidingWindow, 100, time.Minute, 100, 20, 0},
	// One request in a window is a tenth of these, and in the long run nearly one is lost in each:
	// some twenty windows alone pass 92 to 95 %.
	{quota.SlidingWindow, 10, time.Minute, 10, 200, 0.91},
	{quota.SlidingWindow, 1000, time.Minute, 1000, 10, 0},
	{quota.SlidingLog, 100, time.Minute, 100, 20, 0},
	{quota.SlidingLog, 5, time.Minute, 5, 20, 0},
	{quota.SlidingWindowCounter, 100, time.Minute, 100, 20, 0},
	{quota.SlidingWindowCounter, 10, time.Minute, 10, 200, 0.91},
}

// Several goroutines share a Transport that sends as fast as it may. It is never refused. The tests
// that the race detector leaves out show that it is not too slow either.
func TestGoroutinesShareATransport(t *testing.T) {
	for _, c := range limits {
		for _, legacy := range []bool{false, true} {
			name := fmt.Sprintf("%s/%d per %s burst %d, legacy %t", c.algorithm, c.quota, c.window, c.burst, legacy)
			inVirtualTime(t, name, func(t *testing.T) {
				s := newServer(t, c.algorithm, c.quota, c.window, c.burst)
				s.legacy = legacy
				sendGreedily(t, s, c.window*2, 4)
				if s.refused > 0 || s.passed < c.quota {
					t.Errorf("%d passed, %d were refused", s.passed, s.refused)
				}
			})
		}
	}
}

// sendGreedily sends requests of several goroutines through one Transport, as fast as it may.
func sendGreedily(t *testing.T, s *server, during time.Duration, workers int) {
	t.Helper()
	transport := newTransport(s, Options{MaxWait: time.Hour}, 1)
	get(t, transport) // The client knows the answer to its first request.
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for time.Since(s.start) < during && get(t, transport) == http.StatusOK {
			}
		})
	}
	wg.Wait()
}

// Of 1000 clients that must wait for the same time less than 5 % come back within any 100 ms.
func TestAHerdComesBackSpread(t *testing.T) {
	const clients = 1000
	for _, c := range []struct {
		name   string
		status int
		header http.Header
		wait   time.Duration
	}{
		{"refused for 1 s", 429, http.Header{"Retry-After": {"1"}}, time.Second},
		{"refused for 5 s", 429, http.Header{"Ratelimit": {`"p";r=0;t=5`}}, 5 * time.Second},
		{"refused for 30 s", 429, http.Header{"Retry-After": {"30"}, "Ratelimit": {`"p";r=0;t=30`}}, 30 * time.Second},
		{"refused for an hour", 503, http.Header{"Retry-After": {"3600"}}, time.Hour},
		{"refused without a word", 429, http.Header{}, time.Second},
		{"nothing left for 80 s", 200, http.Header{"Ratelimit-Policy": {`"p";q=100;w=80`}, "Ratelimit": {`"p";r=0;t=80`}}, 80 * time.Second},
		{"nothing left for an hour", 200, http.Header{"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"3600"}},
			time.Hour},
	} {
		inVirtualTime(t, c.name, func(t *testing.T) {
			start := time.Now()
			back := make([]time.Duration, clients)
			var wg sync.WaitGroup
			for i := range clients {
				answered := false
				transport := newTransport(roundTrip(func(*http.Request) (*http.Response, error) {
					back[i] = time.Since(start)
					if answered {
						return answer(http.StatusOK, nil), nil
					}
					answered = true
					return answer(c.status, c.header), nil
				}), Options{MaxWait: 2 * time.Hour}, uint64(i))
				wg.Go(func() {
					get(t, transport)
					if c.status == http.StatusOK {
						get(t, transport)
					}
				})
			}
			wg.Wait()
			slices.Sort(back)
			for i := range back {
				if n := len(back) - i; n >= clients/20 && back[i+clients/20-1]-back[i] < 100*time.Millisecond {
					t.Fatalf("at %s at least %d of %d come back within 100 ms", back[i], clients/20, clients)
				}
			}
			if back[0] < c.wait || back[clients-1] > c.wait+max(c.wait/10, 5*time.Second) {
				t.Errorf("they come back after %s to %s, want them after %s and not much later", back[0],
					back[clients-1], c.wait)
			}
		})
	}
}

// inVirtualTime runs a test in virtual time that begins today, because the client reads Unix times
// before 2001 as seconds from now.
func inVirtualTime(t *testing.T, name string, test func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(today))
			test(t)
		})
	})
}

var today = time.Date(2026, time.November, 22, 12, 0, 0, 0, time.UTC)

// newTransport returns a Transport whose random numbers follow from a seed.
func newTransport(base http.RoundTripper, o Options, seed uint64) *Transport {
	transport := New(base, o)
	transport.random = rand.New(rand.NewPCG(seed, 7)).Float64
	return transport
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(status int, h http.Header) *http.Response {
	return &http.Response{StatusCode: status, Header: h, Body: http.NoBody}
}

func get(t *testing.T, transport http.RoundTripper) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example/v1/things", nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		t.Error(err)
		return 0
	}
	answer.Body.Close()
	return answer.StatusCode
}
