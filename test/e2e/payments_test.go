package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// payments is an upstream that knows no password, and counts how many slow requests it has at once.
type payments struct {
	slow, most, guesses atomic.Int64
	release             chan struct{}
}

func (u *payments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/login":
		u.guesses.Add(1)
		w.WriteHeader(http.StatusUnauthorized)
	case "/v1/charges/slow":
		now := u.slow.Add(1)
		for most := u.most.Load(); now > most && !u.most.CompareAndSwap(most, now); most = u.most.Load() {
		}
		select {
		case <-u.release:
		case <-r.Context().Done():
		}
		u.slow.Add(-1)
	}
}

// The example of all four limiters, as it is: each of its limits holds over two Envoys.
func TestThePaymentsExampleRuns(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(repository, "examples", "payments.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	up := &payments{release: make(chan struct{})}
	w := start(t, setup{envoys: 2, workers: 2, handler: up, policies: string(text)})
	charge := func(path string, header ...string) func(int) *http.Request {
		return func(i int) *http.Request {
			return request(http.MethodPost, w.envoys[i%2].URL()+"/v1/charges"+path, header...)
		}
	}
	first := w.guess(30)
	first.mustBe(t, 401, 429)
	late := w.decidedByShare() + w.lateCalls()
	if n := first.statuses[401]; n < 5-late || n > 5+late || up.guesses.Load() != n {
		t.Errorf("log-ins: %s, %d at the upstream, want 5; %d calls were late", first, up.guesses.Load(), late)
	}
	refused := ask(t, "POST", w.envoys[0].URL()+"/login")
	for i := int64(0); i < late && refused.status == 401; i++ { // A late call has reserved in vain.
		refused = ask(t, "POST", w.envoys[0].URL()+"/login")
	}
	if refused.status != 429 || !strings.HasPrefix(refused.body, `{"error":"too_many_failed_logins","retry_after":`) {
		t.Errorf("a log-in too many: %d %s", refused.status, refused.body)
	}

	began := time.Now()
	fast := load{clients: 8, total: 400, request: charge("/fast", "x-api-key", "fast")}.run(w.ctx)
	fast.mustBe(t, 200, 429)
	if most := 101 + int64(100*time.Since(began).Seconds()); fast.statuses[200] > most || fast.statuses[200] < 95 {
		t.Errorf("requests at once: %s, want 95 to %d", fast, most)
	}

	// By then all admissible requests are in, and all other requests are answered. The service is
	// quiet, so no request is shed, however many wait for a permit at once.
	time.AfterFunc(2*time.Second, func() { close(up.release) })
	slow := load{clients: 60, total: 60, request: charge("/slow", "x-api-key", "slow")}.run(w.ctx)
	slow.mustBe(t, 200, 429)
	if most := up.most.Load(); most > 20 || most < 10 || int64(slow.statuses[200]) != most {
		t.Errorf("requests in flight: %s, %d at once at the upstream, want 10 to 20", slow, most)
	}
}
