package e2e

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Bulk floods at ten times the limit and gets its 80 %, no matter through which Envoy; critical
// then loses nothing of what is kept for it.
func TestAReserveIsKept(t *testing.T) {
	w := start(t, setup{envoys: 2, policies: `
version: weir/v1
priorities:
  - {name: critical, match: {methods: [POST]}}
  - {name: rest}
policies:
  - {name: strict, match: {paths: [/strict]}, partition: [], limit: {quota: 20, window: 24h}, reserve: {critical: 20%}, mode: strict}
  - {name: window, match: {paths: [/window]}, partition: [], algorithm: sliding_window, limit: {quota: 20, window: 24h}, reserve: {critical: 20%}, mode: strict}
  - {name: leased, match: {paths: [/leased]}, partition: [], limit: {quota: 20, window: 24h}, reserve: {critical: 20%}}
  - {name: local, match: {paths: [/local]}, partition: [], limit: {quota: 20, window: 24h}, reserve: {critical: 20%}, mode: local}
  - {name: optimistic, match: {paths: [/optimistic]}, partition: [], limit: {quota: 20, window: 24h}, reserve: {critical: 20%}, mode: optimistic}
  - {name: log, match: {paths: [/log]}, partition: [], algorithm: sliding_log, limit: {quota: 20, window: 24h}, reserve: {critical: 20%}}
  - {name: counter, match: {paths: [/counter]}, partition: [], algorithm: sliding_window_counter, limit: {quota: 20, window: 24h}, reserve: {critical: 20%}, mode: strict}
`})
	for _, path := range []string{"/strict", "/window", "/leased", "/local", "/optimistic", "/log", "/counter"} {
		second := 1
		if path == "/local" {
			second = 0 // Each Envoy has a bucket of its own.
		}
		bulk, critical := 0, 0
		for i := range 200 {
			at := w.envoys[[]int{0, second}[i%2]].URL() + path
			bulk += allowed(t, http.MethodGet, at)
		}
		for i := range 20 {
			critical += allowed(t, http.MethodPost, w.envoys[[]int{0, second}[i%2]].URL()+path)
		}
		if path == "/optimistic" && critical > 4 { // One Envoy may not know yet what the other has used.
			critical -= min(critical-4, 10)
		}
		if bulk != 16 || critical != 4 {
			t.Errorf("%s: bulk got %d and critical %d of 20", path, bulk, critical)
		}
	}
	refused := ask(t, http.MethodGet, w.envoys[0].URL()+"/strict").Get("RateLimit-Policy")
	if !strings.Contains(refused, `"strict.1d.after-critical";q=16`) {
		t.Errorf("a client of the other class receives %s", refused)
	}
}

// A flood that begins in each part of a fixed window has no more than its part of each: critical
// finds what is kept for it, window after window.
func TestAReserveOfFixedWindowsIsKept(t *testing.T) {
	w := start(t, setup{envoys: 2, policies: `
version: weir/v1
priorities:
  - {name: critical, match: {methods: [POST]}}
  - {name: rest}
policies:
  - {name: fixed, match: {paths: ["/{k}"]}, partition: [path], algorithm: fixed_window, limit: {quota: 20, window: 2s}, reserve: {critical: 40%}, mode: strict}
`})
	refused, asked := 0, 0
	for key := range 4 { // Windows begin at a moment of the key.
		url := func(i int) string { return w.envoys[i%2].URL() + "/" + strconv.Itoa(key) }
		for i, end := 0, time.Now().Add(full(8*time.Second)); time.Now().Before(end); i++ {
			for range 10 {
				allowed(t, http.MethodGet, url(i))
			}
			if i%8 == 0 { // Fewer than 8 in each window.
				asked++
				refused += 1 - allowed(t, http.MethodPost, url(i))
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	if refused > 0 || asked < 10 {
		t.Errorf("%d of %d critical requests were refused", refused, asked)
	}
}

// Envoy says which cluster its route chooses before the request goes there, and a policy counts by
// it. A request that goes to no cluster is left alone.
func TestAnUpstreamIsAPartOfAKey(t *testing.T) {
	t.Parallel()
	answers := func(config string) string {
		return strings.Replace(config, "- match: {prefix: /}\n",
			"- match: {path: /nowhere}\n"+strings.Repeat(" ", 26)+"direct_response: {status: 200}\n"+
				strings.Repeat(" ", 24)+"- match: {prefix: /}\n", 1)
	}
	w := start(t, setup{rewrite: answers, policies: `
version: weir/v1
policies:
  - {name: services, partition: [upstream], limit: {quota: 2, window: 24h}, mode: local}
`})
	if got := statuses(t, 3, w.envoys[0].URL()+"/somewhere"); got != "200 200 429" {
		t.Errorf("a cluster: %s", got)
	}
	if got := statuses(t, 3, w.envoys[0].URL()+"/nowhere"); got != "200 200 200" {
		t.Errorf("no cluster: %s", got)
	}
}

// allowed is 1 if a request is let through, 0 if it is refused.
func allowed(t *testing.T, method, url string) int {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		return 1
	case http.StatusTooManyRequests:
		return 0
	}
	t.Fatal(method + " " + url + ": " + strconv.Itoa(answer.StatusCode))
	return 0
}
