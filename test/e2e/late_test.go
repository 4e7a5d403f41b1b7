package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// hinder is what becomes of some lease calls on the way to the control plane.
type hinder func(pass http.HandlerFunc, w http.ResponseWriter, r *http.Request)

// tooLong is longer than a request waits, and shorter than Envoy waits for a late answer.
const tooLong = 100 * time.Millisecond

// charged: the control plane charges the call at once, and its answer is late.
func charged(pass http.HandlerFunc, w http.ResponseWriter, r *http.Request) {
	answer := httptest.NewRecorder()
	pass(answer, r)
	time.Sleep(tooLong)
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// lost: the control plane never sees the call.
func lost(_ http.HandlerFunc, _ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // Only then the server notices that Envoy gives up.
	<-r.Context().Done()
}

// startHinderer is a proxy to the control plane at a port. Every second lease call meets a hinder,
// if there is one.
func startHinderer(t *testing.T, port int, how *atomic.Pointer[hinder]) int {
	t.Helper()
	to, err := url.Parse(fmt.Sprintf("http://127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(to).ServeHTTP
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := how.Load()
		if h == nil || !strings.HasSuffix(r.URL.Path, "/leases") || calls.Add(1)%2 == 0 {
			pass(w, r)
			return
		}
		(*h)(pass, w, r)
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.Listener.Addr().(*net.TCPAddr).Port
}

// uncharged bounds the tokens that one caller, who sends one request after the other, can have of
// the share before they are charged: a late call takes 50 ms of its request and is over after 250
// ms, and the call that is to charge it can be late, too.
const uncharged = 2 * 250 / 50

// A control plane of which every second answer comes too late, or never, lets a caller have no more
// than the limit, and the tokens that are not charged yet: what the share lets through is charged,
// and once.
func TestLateAnswersPassNoMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	var how atomic.Pointer[hinder]
	w := start(t, setup{workers: 2, policies: `
version: weir/v1
policies:
  - {name: leased, match: {paths: [/leased]}, partition: [header:x-caller], limit: {quota: 100, window: 1h}}
  - {name: strict, match: {paths: [/strict]}, partition: [header:x-caller], limit: {quota: 100, window: 1h}, mode: strict}
`, ways: func(_ string, port int) []int { return []int{startHinderer(t, port, &how)} }})
	for i, c := range []struct {
		name string
		how  hinder
	}{{"charged", charged}, {"lost", lost}} {
		for _, mode := range []string{"leased", "strict"} {
			how.Store(&c.how)
			before := w.measured(w.envoys[0])
			got := load{clients: 1, total: 300, request: func(int) *http.Request {
				return request(http.MethodPost, w.envoys[0].URL()+"/"+mode, "x-caller", fmt.Sprint(i))
			}}.run(w.ctx)
			how.Store(nil)
			got.mustBe(t, 200, 429)
			time.Sleep(20 * time.Millisecond) // What was counted before is reported now.
			d := difference(w.measured(w.envoys[0]), before)
			earned := int64(got.last.Sub(got.first)/(36*time.Second)) + 1
			t.Logf("%s, late calls are %s: %d of 100 passed, %d by the share: %v", mode, c.name, got.statuses[200],
				d["decisions.by_share"], got)
			if passed := got.statuses[200]; passed > 100+uncharged+earned {
				t.Errorf("%s, late calls are %s: %d passed, above 100 + %d under way", mode, c.name, passed, uncharged)
			} else if passed < 50 { // Each is charged twice at worst.
				t.Errorf("%s, late calls are %s: only %d passed", mode, c.name, passed)
			}
			if d["decisions.by_share"] < 5 {
				t.Errorf("%s: the share decided %d requests, so this shows nothing", mode, d["decisions.by_share"])
			}
		}
	}
}
