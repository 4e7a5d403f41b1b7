package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// leave begins a stream of the tokens example that declares one token, and leaves it after its
// first words. It returns the status.
func (a *account) leave(t *testing.T) int {
	t.Helper()
	r := a.request(0, "x-uses", "5000", "x-max-tokens", "1", "x-stream", "held")
	ctx, cancel := context.WithCancel(a.w.ctx)
	defer cancel()
	answer, err := http.DefaultClient.Do(r.WithContext(ctx))
	if err != nil {
		t.Error(err)
		return 0
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK {
		if _, err := io.ReadFull(answer.Body, make([]byte, 20)); err != nil {
			t.Error(err)
		}
	}
	return answer.StatusCode
}

// The example of tokens a minute, unchanged, against clients that declare one token, use five
// thousand and leave before the upstream reports it. Each pays the reservation of a request that
// declares nothing. A cost by the duration of a request is charged to clients that leave, too.
func TestTheTokensExampleHoldsAgainstClientsThatLeave(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(repository, "examples", "tokens.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	up := &spending{charged: map[string]*atomic.Int64{}, left: map[string]*atomic.Int64{}}
	for _, who := range []string{"row", "crowd", "slow"} {
		up.charged[who], up.left[who] = &atomic.Int64{}, &atomic.Int64{}
	}
	slow := make(chan struct{})
	w := start(t, setup{workers: 2, policies: string(text) + `
  - name: work
    match: {paths: [/slow]}
    partition: [client_ip]
    limit: {quota: 1000, window: 1h}
    cost: {reserve: 1, commit: {duration: 10ms}}
    mode: strict
`, handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			slow <- struct{}{}
			<-r.Context().Done()
			return
		}
		up.ServeHTTP(rw, r)
	})})
	of := func(who string) *account {
		return &account{w: w, who: who, tier: "free", burst: 10000, rate: 10000. / 60,
			headers: []string{"x-api-key", who},
			lookup:  "source=header:x-api-key&partition=consumer:" + who}
	}
	row, passed := of("row"), int64(0)
	begun := time.Now()
	for range 12 {
		if row.leave(t) != http.StatusOK {
			continue
		}
		passed++
		w.awaitCounter(w.envoys[0], "weir.costs.unanswered_client_gone", passed)
		w.awaitCounter(w.envoys[0], "weir.costs.settled", passed)
	}
	// One more than the bucket pays for, which owes the rest.
	if most := int64(row.burst+row.rate*time.Since(begun).Seconds())/1000 + 1; passed < 10 || passed > most {
		t.Errorf("%d of 12 streams of 1000 tokens passed in turn, want 10 to %d", passed, most)
	}
	crowd := of("crowd")
	crowd.before = time.Now()
	var at atomic.Int64
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			if crowd.leave(t) == http.StatusOK {
				at.Add(1)
			}
		})
	}
	wait.Wait()
	crowd.some = time.Now()
	w.awaitCounter(w.envoys[0], "weir.costs.settled", passed+at.Load())
	crowd.awaitExact(1000*at.Load(), 0)

	ctx, cancel := context.WithCancel(w.ctx)
	r := request(http.MethodGet, w.envoys[0].URL()+"/slow").WithContext(ctx)
	left := make(chan time.Duration)
	go func() {
		<-slow
		since := time.Now()
		time.Sleep(500 * time.Millisecond)
		cancel()
		left <- time.Since(since)
	}()
	if answer, err := http.DefaultClient.Do(r); err == nil {
		t.Errorf("the request was answered with %d", answer.StatusCode)
	}
	took := <-left
	w.await("the time of a request that was left", func(context.Context) error {
		var held struct{ Buckets []struct{ Level int64 } }
		body := w.get("/v1/keys/work?partition=client_ip:127.0.0.1").Body
		if err := json.Unmarshal(body, &held); err != nil || len(held.Buckets) != 1 {
			return fmt.Errorf("%v: %s", err, body)
		}
		used, least := 1000-held.Buckets[0].Level, int64(took/(10*time.Millisecond))
		if used < least || used > least+100 {
			return fmt.Errorf("%d tokens are used, want %d and a little for the way", used, least)
		}
		return nil
	})
}
