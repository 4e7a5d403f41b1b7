package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dunglas/httpsfv"
	"pgregory.net/rapid"
)

// No answer makes a request wait for longer than MaxWait or beyond the deadline of its context.
func TestNoWaitBeyondTheCapOrTheContext(t *testing.T) {
	refused := roundTrip(func(*http.Request) (*http.Response, error) {
		return answer(429, http.Header{"Retry-After": {"7"}}), nil
	})
	for _, c := range []struct {
		name     string
		cap      time.Duration
		deadline time.Duration
		cancel   time.Duration
		took     time.Duration
		err      error
	}{
		{"the cap is too short", 5 * time.Second, time.Hour, time.Hour, 0, nil},
		{"the deadline is too early", time.Minute, 5 * time.Second, time.Hour, 0, nil},
		{"both are late", time.Minute, time.Hour, time.Hour, 2 * 7 * time.Second, nil},
		{"canceled while it waits", time.Minute, time.Hour, 9 * time.Second, 9 * time.Second, context.Canceled},
	} {
		inVirtualTime(t, c.name, func(t *testing.T) {
			transport := newTransport(refused, Options{MaxWait: c.cap, Spread: -1}, 1)
			ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
			defer cancel()
			time.AfterFunc(c.cancel, cancel)
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example/", nil)
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			got, err := transport.RoundTrip(r)
			if took := time.Since(start); took != c.took || !errors.Is(err, c.err) ||
				err == nil && got.StatusCode != 429 {
				t.Errorf("after %s: %v %v, want %s and %v", took, got, err, c.took, c.err)
			}
		})
	}
}

// Of many waiting requests, each ends its wait as soon as MaxWait is too short for the rest of the
// wait. A request without enough time does not wait at all.
func TestAQueueOfRequestsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		transport := newTransport(roundTrip(func(*http.Request) (*http.Response, error) {
			return answer(200, http.Header{"Ratelimit-Policy": {`"p";q=2;w=8`}, "Ratelimit": {`"p";r=0;t=8`}}), nil
		}), Options{MaxWait: 20 * time.Second}, 1)
		get(t, transport)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { get(t, transport) })
		}
		wg.Wait()
		if took := time.Since(start); took < 8*time.Second || took > 20*time.Second {
			t.Errorf("50 requests with a cap of 20 s and a first wait of 8 s ended after %s", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example/v1/things", nil)
		if err != nil {
			t.Fatal(err)
		}
		start = time.Now()
		if _, err := transport.RoundTrip(r); err != nil || time.Since(start) != 0 {
			t.Errorf("a request that has only a second ended after %s: %v", time.Since(start), err)
		}
	})
}

// A request that got no answer does not delay other requests.
func TestFailuresDoNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fail := false
		transport := newTransport(roundTrip(func(*http.Request) (*http.Response, error) {
			if fail {
				return nil, io.ErrUnexpectedEOF
			}
			return answer(200, http.Header{"Ratelimit-Policy": {`"p";q=3;w=9`}, "Ratelimit": {`"p";r=2;t=3`}}), nil
		}), Options{}, 1)
		get(t, transport)
		fail = true
		start := time.Now()
		for range 20 {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example/v1/things", nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := transport.RoundTrip(r); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("20 requests that fail take %s", took)
		}
	})
}

// A Transport remembers a bounded number of keys, routes and policies, of any names.
func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		transport := newTransport(roundTrip(func(*http.Request) (*http.Response, error) {
			n++
			name := strconv.Itoa(n % 4000)
			return answer(200, http.Header{"Ratelimit": {`"` + name + `";r=5;t=1`}}), nil
		}), Options{Key: func(r *http.Request) string { return r.Header.Get("key") },
			Route: func(r *http.Request) string { return r.Header.Get("route") }}, 1)
		for i := range 3000 {
			for _, name := range []string{"key", "route"} {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example/", nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set(name, strconv.Itoa(i))
				if _, err := transport.RoundTrip(r); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(transport.pacers) > maxPacers {
			t.Errorf("%d pacers", len(transport.pacers))
		}
		for _, p := range transport.pacers {
			if len(p.routes) > maxRoutes || len(p.limits) > maxLimits {
				t.Errorf("%d routes, %d limits", len(p.routes), len(p.limits))
			}
		}
	})
}

func TestRoutes(t *testing.T) {
	for path, want := range map[string]string{
		"": "GET ", "/": "GET /", "/v1/users/17/posts": "GET /v1/users/*/posts",
		"/links/0b9e7a34-17f2-4a9a-93f6-3f8c7f1d2e10": "GET /links/*",
		"/a/" + strings.Repeat("x", 33):               "GET /a/*", "/v1x/vv/v": "GET /*/vv/v",
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := routeOf(r); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}

// readItems reads each valid list of structured fields as another parser does.
func TestItemsAreReadAsStructuredFields(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.StringMatching(`("[a-z ,;=]{0,3}"|[a-z][a-z0-9.]{0,3})(;[a-z]{1,2}(=([0-9]{1,15}|"[a-z;,]{0,3}"|[a-z]{1,3}))?){0,3}( ?, ?"[a-z]{1,3}";r=[0-9]{1,3};t=[0-9.]{1,3}){0,2}`).Draw(t, "value")
		list, err := httpsfv.UnmarshalList([]string{value})
		if err != nil {
			return
		}
		got := readItems(value)
		if len(got) != len(list) {
			t.Fatalf("%q: %d items, want %d", value, len(got), len(list))
		}
		for i, member := range list {
			want := member.(httpsfv.Item)
			name, ok := want.Value.(string)
			if token, isToken := want.Value.(httpsfv.Token); isToken {
				name, ok = string(token), true
			}
			if !ok || got[i].name != name {
				t.Fatalf("%q: item %d is %q, want %v", value, i, got[i].name, want.Value)
			}
			for _, key := range []string{"r", "t", "q", "w"} {
				n, has := want.Params.Get(key)
				if whole, isInt := n.(int64); has && isInt && got[i].params[key] != float64(whole) {
					t.Fatalf("%q: %s is %v, want %d", value, key, got[i].params[key], whole)
				}
			}
		}
	})
}

// No headers make a request wait for too long, or the client panic.
func FuzzAnswers(f *testing.F) {
	for _, seed := range [][3]string{
		{"5", `"p";q=10;w=1`, `"p";r=0;t=5`},
		{"-1, NaN", `"p";q=0;w=0`, `"p";r=-1;t=999999999999999`},
		{"Sun, 22 Nov 2015 12:00:30 GMT", `"p";q=999999999999999`, `"p";r=999999999999999;t=0, "p";r=0;t=1`},
		{"999999999999999", `"p";q=1`, `"p";r=0;t=0.000001`},
		{"1795348830", "10, 10;w=1", "1795348830000"},
	} {
		f.Add(uint16(429), seed[0], seed[1], seed[2], int64(1))
		f.Add(uint16(200), seed[2], seed[0], seed[1], int64(2))
	}
	f.Fuzz(func(t *testing.T, status uint16, retry, first, second string, seed int64) {
		synctest.Test(t, func(t *testing.T) {
			const maxWait = 3 * time.Second
			n := 0
			transport := newTransport(roundTrip(func(*http.Request) (*http.Response, error) {
				h := http.Header{"Retry-After": {retry}}
				switch n++; n % 3 {
				case 0:
					h = http.Header{"Ratelimit-Policy": {first}, "Ratelimit": {second, first}}
				case 1:
					h["X-Ratelimit-Limit"], h["X-Ratelimit-Remaining"],
						h["X-Ratelimit-Reset"] = []string{first}, []string{second}, []string{retry}
				}
				return answer(200+int(status)%400, h), nil
			}), Options{MaxWait: maxWait}, uint64(seed))
			for range 6 {
				start := time.Now()
				get(t, transport)
				if took := time.Since(start); took > maxWait {
					t.Fatalf("a request waited for %s", took)
				}
			}
		})
	})
}
