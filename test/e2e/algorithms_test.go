package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// recorder is an upstream that notes when each request was sent, if it says so, and when it
// arrived.
type recorder struct {
	mu       sync.Mutex
	sent     []time.Time
	arrivals []time.Time
}

// sentHeader says when a request was sent, in nanoseconds since 1970.
const sentHeader = "x-sent"

func sentNow() string { return strconv.FormatInt(time.Now().UnixNano(), 10) }

func (r *recorder) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	sent, _ := strconv.ParseInt(request.Header.Get(sentHeader), 10, 64)
	r.mu.Lock()
	r.sent = append(r.sent, time.Unix(0, sent))
	r.arrivals = append(r.arrivals, time.Now())
	r.mu.Unlock()
	stack.Echo(w, request)
}

// busiest returns the largest number of requests that were sent and arrived within one span of
// time, so that they were certainly decided in it, however late a busy machine made them.
func (r *recorder) busiest(span time.Duration) (most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, from := range r.sent {
		within := 0
		for i, sent := range r.sent {
			if !sent.Before(from) && r.arrivals[i].Sub(from) < span {
				within++
			}
		}
		most = max(most, within)
	}
	return most
}

// Requests of a leaky bucket reach the upstream one after the other, a fixed time apart, and who
// finds no place is refused at once. Over all Envoys together a strict one releases no request more
// than 50 ms early, one of this Envoy alone none but for the way to the upstream.
func TestALeakyBucketDelays(t *testing.T) {
	for mode, envoys := range map[string]int{"local": 1, "strict": 3} {
		t.Run(mode, func(t *testing.T) {
			seen := &recorder{}
			w := start(t, setup{envoys: envoys, handler: seen, policies: `
version: weir/v1
policies:
  - name: queue
    partition: []
    algorithm: leaky_bucket
    limit: {quota: 10, window: 1s, burst: 5}
    mode: ` + mode + `
`})
			begin := time.Now()
			got := load{request: func(i int) *http.Request {
				return request(http.MethodPost, w.envoys[i%envoys].URL()+"/")
			}, clients: 9, total: 9}.run(w.ctx)
			got.mustBe(t, 200, 429)
			if got.statuses[200] != 6 || got.statuses[429] != 3 {
				t.Errorf("of 9 requests at once: %s; one is served and 5 may wait", got)
			}
			// Each request has its own turn, and a late request does not move the next turn. A tick
			// is a millisecond, a strict answer may come some milliseconds late, and on a busy
			// machine any request may be late.
			var gaps []string
			earliest, latest := time.Duration(0), time.Duration(0)
			for i := 1; i < len(seen.arrivals); i++ {
				gaps = append(gaps, seen.arrivals[i].Sub(seen.arrivals[i-1]).Round(100*time.Microsecond).String())
				late := seen.arrivals[i].Sub(seen.arrivals[0]) - time.Duration(i)*100*time.Millisecond
				earliest, latest = min(earliest, late), max(latest, late)
			}
			t.Logf("%s: the requests came %s apart", mode, strings.Join(gaps, ", "))
			stalled := stalls.between(begin, time.Now())
			if off := latest - earliest - stalled; off > 80*time.Millisecond {
				t.Errorf("%s: the turns are up to %s off without stalls, want requests 100 ms apart", mode, off)
			}
			bound := map[string]time.Duration{"local": 20, "strict": 50}[mode] * time.Millisecond
			if early := earliestOf(seen.arrivals, 100*time.Millisecond) - stalled; early > bound {
				t.Errorf("%s: a release is %s early without stalls, at most %s are allowed", mode, early, bound)
			}
		})
	}
}

// earliestOf returns the most by which any requests came closer together than the times apart
// allow.
func earliestOf(arrivals []time.Time, apart time.Duration) (early time.Duration) {
	for i := range arrivals {
		for k := i + 1; k < len(arrivals); k++ {
			early = max(early, time.Duration(k-i)*apart-arrivals[k].Sub(arrivals[i]))
		}
	}
	return early
}

func TestAnEarlyReleaseIsSeen(t *testing.T) {
	at := func(ms ...int) (list []time.Time) {
		for _, n := range ms {
			list = append(list, time.UnixMilli(int64(n)))
		}
		return list
	}
	for want, list := range map[time.Duration][]time.Time{
		0: at(0, 100, 200), 79: at(0, 100, 121, 300), 10: at(0, 95, 190, 290), 80: at(0, 180, 220, 300),
	} {
		if got := earliestOf(list, 100*time.Millisecond); got != want*time.Millisecond {
			t.Errorf("%v: %s, want %d ms", list, got, want)
		}
	}
}

// Never more than the quota in any window, over both Envoys, however the requests come. Without an
// answer of the control plane they are refused: a share of each Envoy's own would come on top.
func TestWindowsHoldOverAllEnvoys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, limit string
		// span is the window in which no more than most may pass.
		span  time.Duration
		most  int
		least int64
	}{
		{"a sliding log, strict", "algorithm: sliding_log, limit: {quota: 50, window: 1s}, mode: strict", time.Second,
			50, 180},
		{"a sliding window, strict", "algorithm: sliding_window, limit: {quota: 200, window: 1s}, mode: strict",
			time.Second, 200, 600},
		{"a sliding window, leased", "algorithm: sliding_window, limit: {quota: 600, window: 2s}, mode: leased",
			2 * time.Second, 600, 700},
		{"a fixed window, strict", "algorithm: fixed_window, limit: {quota: 100, window: 1s}, mode: strict",
			time.Second, 200, 400},
		{"a fixed window of the calendar, leased",
			"algorithm: fixed_window, align: utc, limit: {quota: 300, window: 1s}, mode: leased", time.Second, 600,
			600},
		{"the counter, strict", "algorithm: sliding_window_counter, limit: {quota: 100, window: 1s}, mode: strict",
			time.Second, 199, 300},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := &recorder{}
			w := start(t, setup{envoys: 2, handler: seen, policies: `
version: weir/v1
policies:
  - {name: windowed, partition: [], ` + c.limit + `, on_failure: {local_for: 0s, then: deny}}
`})
			got := load{clients: 8, rate: 1200, during: 5 * time.Second, request: func(i int) *http.Request {
				return request(http.MethodGet, w.envoys[i%2].URL()+"/", sentHeader, sentNow())
			}}.run(w.ctx)
			for status := range got.samples {
				if status != 200 && status != 429 {
					t.Errorf("an answer has status %d", status)
				}
			}
			busiest := seen.busiest(c.span)
			late := w.late()
			t.Logf("%s passed; at most %d within %s, %d may; %d got no answer in time", got, busiest, c.span, c.most,
				late)
			if busiest > c.most || got.statuses[200] < c.least-late {
				t.Errorf("%d within %s, at most %d may; %d passed in all, at least %d should", busiest, c.span, c.most,
					got.statuses[200], c.least)
			}
		})
	}
}

// The example of the documentation, as it is.
func TestTheExampleRuns(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(repository, "examples", "url-shortener.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	tokens := newIssuer(t)
	w := start(t, setup{rewrite: insertFilter(tokens.filter()), policies: string(text)})
	url := w.envoys[0].URL()
	count := func(n int, method, path string, header ...string) tally {
		got := load{clients: 4, total: n,
			request: func(int) *http.Request { return request(method, url+path, header...) }}.run(w.ctx)
		got.mustBe(t, 200, 429)
		return got
	}
	if got := count(20, http.MethodPost, "/login"); got.statuses[200] != 5 {
		t.Errorf("logins: %s, want 5", got)
	}
	got := count(1100, http.MethodGet, "/abc")
	bound := 1000 + 1000*got.last.Sub(got.first).Minutes() // It refills while a busy machine sends.
	if passed := float64(got.statuses[200]); passed < 1000 || passed > bound {
		t.Errorf("links followed: %s, want 1000 to %.0f", got, bound)
	}
	// The daily quota of a consumer has a burst of 100, and so has the quota of the address:
	// together they let 100 pass.
	if got := count(150, http.MethodPost, "/shorten", "x-api-key", "somebody"); got.statuses[200] < 100 ||
		got.statuses[200] > 102 {
		t.Errorf("new links: %s, want 100", got)
	}
}

// Callers have a tier by claim, by a trusted header or by assignment; the claim wins, and a value
// that is no tier counts as none.
func TestTiers(t *testing.T) {
	t.Parallel()
	tokens := newIssuer(t)
	w := start(t, setup{envoys: 2, rewrite: insertFilter(tokens.filter()), policies: tiered})
	with := func(who string, plan any) []string {
		return []string{"x-api-key", who, "Authorization", tokens.token(t, map[string]any{"plan": plan})}
	}
	url := w.envoys[0].URL() + "/"
	for _, c := range []struct {
		name   string
		header []string
		want   string
	}{
		{"nothing known: the default", []string{"x-api-key", "a"}, "200 200 429 429 429"},
		{"a claim", with("b", "premium"), "200 200 200 200 429"},
		{"a header", []string{"x-api-key", "c", "x-tier", "premium"}, "200 200 200 200 429"},
		{"the claim before the header", append(with("d", "free"), "x-tier", "premium"), "200 200 429 429 429"},
		{"a claim that is no tier, then a header", append(with("e", "gold"), "x-tier", "premium"),
			"200 200 200 200 429"},
		{"unlimited", with("f", "enterprise"), "200 200 200 200 200"},
		{"back to a tier that is used up", []string{"x-api-key", "b", "x-tier", "premium"}, "429 429 429 429 429"},
	} {
		if got := statuses(t, 5, url, c.header...); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

const tiered = `
version: weir/v1
identity:
  consumer: [{header: x-api-key}]
  tier: [{jwt: plan}, {header: x-tier, trusted: true}, assignment]
  default_tier: free
tiers: [free, premium, enterprise]
policies:
  - name: per-consumer
    partition: [consumer]
    limits:
      free: {quota: 2, window: 24h}
      premium: {quota: 4, window: 24h}
      enterprise: unlimited
    mode: local
`

// An assigned tier is in force at every Envoy within a second, under load and for a consumer that
// was never seen before; and changing back and forth mints nothing.
func TestAnAssignedTierIsInForceWithinASecond(t *testing.T) {
	w := start(t, setup{envoys: 2, policies: tiered})
	busy := load{clients: 4, rate: 500, request: func(i int) *http.Request {
		return request(http.MethodGet, w.envoys[i%2].URL()+"/", "x-api-key", fmt.Sprint("other-", i%50))
	}}.background(w.ctx)
	for _, e := range w.envoys {
		if got := statuses(t, 3, e.URL()+"/", "x-api-key", "alice"); got != "200 200 429" {
			t.Errorf("alice on %s in the default tier: %s", e.Name, got)
		}
	}
	announced := map[string]string{"free": `"per-consumer";q=2`, "premium": `"per-consumer";q=4`, "enterprise": ""}
	assign := func(tier string) {
		t.Helper()
		w.assign("alice", tier)
		assigned := time.Now()
		for _, e := range w.envoys {
			w.await("tier "+tier+" at "+e.Name, func(context.Context) error {
				a := ask(t, http.MethodGet, e.URL()+"/", "x-api-key", "alice")
				if policy, _, _ := strings.Cut(a.Get("RateLimit-Policy"), ";w="); policy == announced[tier] &&
					(policy != "" || a.status == 200) {
					return nil
				}
				return fmt.Errorf("%d, RateLimit-Policy %q", a.status, a.Get("RateLimit-Policy"))
			})
		}
		mustTake(t, "tier "+tier, assigned, time.Now(), time.Second)
	}
	assign("premium")
	assign("enterprise")
	assign("free")
	if got := statuses(t, 2, w.envoys[0].URL()+"/", "x-api-key", "alice"); got != "429 429" {
		t.Errorf("back in the tier whose quota was used up: %s", got)
	}
	assign("premium")
	if got := statuses(t, 5, w.envoys[0].URL()+"/", "x-api-key", "alice"); strings.Count(got, "200") > 3 {
		t.Errorf("premium again: %s, at most 3 of 4 were left", got)
	}
	busy.end().mustBe(t, 200, 429)
	// The Envoys' knowledge outlives the control plane.
	w.controlPlane.Stop()
	if a := ask(t, http.MethodGet, w.envoys[1].URL()+"/", "x-api-key",
		"alice"); !strings.HasPrefix(a.Get("RateLimit-Policy"), announced["premium"]) {
		t.Errorf("without the control plane alice has %q", a.Get("RateLimit-Policy"))
	}
}

// assign gives a consumer a tier by REST.
func (w *world) assign(consumer, tier string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.ctx, http.MethodPut,
		fmt.Sprintf("http://127.0.0.1:%d/v1/consumers/%s", w.serve.Port, consumer), strings.NewReader(`{"tier": "`+tier+`"}`))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+adminToken)
	r.Header.Set("If-Match", "*")
	if a, err := send(http.DefaultClient, r); err != nil || a.status/100 != 2 {
		w.t.Fatalf("assigning %s to %s: %d %s %v", tier, consumer, a.status, a.body, err)
	}
}
