package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// logins is an upstream that accepts the right password, and answers a wrong password slowly.
type logins struct{ wrong, right atomic.Int64 }

func (u *logins) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("x-password") == "right" {
		u.right.Add(1)
		return
	}
	u.wrong.Add(1)
	select {
	case <-time.After(300 * time.Millisecond):
		w.WriteHeader(http.StatusUnauthorized)
	case <-r.Context().Done():
	}
}

// costPage returns the block of docs/choose/cost.md that begins with a text: a policy set or
// filters of Envoy.
func costPage(t *testing.T, begin string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/choose/cost.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n"+begin)
	block, _, found := strings.Cut(rest, "```\n")
	if !found {
		t.Fatalf("docs/choose/cost.md has no block that begins with %q", begin)
	}
	return begin + block
}

// logCosts adds costs to the access log, as in docs/choose/cost.md.
func logCosts(config string) string {
	const decision = "weir=%FILTER_STATE(wasm.weir.decision:PLAIN)%"
	return strings.Replace(config, decision, decision+" cost=%FILTER_STATE(wasm.weir.cost:PLAIN)% "+
		"used=%DYNAMIC_METADATA(ai:total_tokens)%", 1)
}

// model answers as an upstream like OpenAI, with a usage of the number of tokens in the header
// x-uses. x-stream makes it stream; a stream that is "held" does not end.
func model(w http.ResponseWriter, r *http.Request) {
	used := r.Header.Get("x-uses")
	if r.Header.Get("x-stream") == "" {
		w.Header().Set("content-type", "application/json")
		fmt.Fprintf(w, `{"choices": [], "usage": {"prompt_tokens": 1, "total_tokens": %s}}`, used)
		return
	}
	w.Header().Set("content-type", "text/event-stream")
	for range 3 {
		fmt.Fprint(w, "data: {\"choices\": [{\"delta\": {}}], \"usage\": null}\n\n")
		w.(http.Flusher).Flush()
	}
	if r.Header.Get("x-stream") == "held" {
		<-r.Context().Done()
		return
	}
	fmt.Fprintf(w, "data: {\"choices\": [], \"usage\": {\"total_tokens\": %s}}\n\ndata: [DONE]\n\n", used)
}

// The filters and the policy set of docs/choose/cost.md: whole answers and streams are charged the
// tokens of their usage. A stream whose client goes is charged the tokens that it has reserved.
func TestTokensOfALanguageModel(t *testing.T) {
	t.Parallel()
	filters := costPage(t, "- name: envoy.filters.http.json_to_metadata\n")
	w := start(t, setup{
		envoys: 2, workers: 2, handler: http.HandlerFunc(model),
		policies: costPage(t, "version: weir/v1\npolicies:\n  - name: tokens-per-minute\n"),
		rewrite: func(config string) string {
			const router = "                  - name: envoy.filters.http.router\n"
			return strings.Replace(logCosts(config), router, indent(filters, 18)+router, 1)
		},
	})
	left, names := int64(10000), "tokens-per-minute"
	ask := func(envoy int, uses, stream string) {
		t.Helper()
		header := []string{"x-uses", uses, "x-max-tokens", "2000"}
		if stream != "" {
			header = append(header, "x-stream", stream)
		}
		got := ask(t, "POST", w.envoys[envoy].URL()+"/v1/chat/completions", header...)
		if got.status != 200 || !strings.Contains(string(got.body), uses) {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	for i, uses := range []int64{700, 40, 2500, 1} {
		ask(i%2, fmt.Sprint(uses), []string{"", "whole"}[i/2])
		left -= uses
		w.awaitLevel(names, left)
		w.awaitOutput(w.envoys[i%2], fmt.Sprintf("cost=reserved=2000 used=%d\n", uses))
	}
	w.awaitReserved(0, 0)
	r := request(http.MethodPost, w.envoys[0].URL()+"/v1/chat/completions", "x-uses", "5", "x-max-tokens", "2000",
		"x-stream", "held")
	answer, err := http.DefaultClient.Do(r.WithContext(w.ctx))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(answer.Body, make([]byte, 20)); err != nil {
		t.Fatal(err)
	}
	answer.Body.Close() // In mid-stream: the client goes.
	w.awaitCounter(w.envoys[0], "weir.costs.unanswered", 1)
	left -= 2000
	w.awaitLevel(names, left)
	w.awaitReserved(1, 1) // It stays charged, and the store forgets it when it counts no more.
	ask(0, "15000", "")
	w.awaitLevel(names, 0) // Before that a further request passes, and is charged too.
	w.seesDebt(names, 15000-left)
}

// A reservation whose request gets no whole response stays charged, and is counted by the event
// that ended the request.
func TestWhatEndsARequestIsCounted(t *testing.T) {
	t.Parallel()
	up := &flightUpstream{seen: make(chan string, 100)}
	w := start(t, setup{alone: true, workers: 2, handler: up, rewrite: manyEnds, plugin: `{"policyset": ` +
		`{"version": "weir/v1", "policies": [` +
		`{"name": "places", "partition": [], "limit": {"in_flight": 3}, "mode": "local"}, ` +
		`{"name": "work", "partition": [], "limit": {"quota": 100, "window": "24h"}, "mode": "local", ` +
		`"algorithm": "sliding_window", "cost": {"reserve": 3, "commit": {"metadata": "ai/used"}, "missing": 0}}]}}`})
	url, kept := w.envoys[0].URL(), int64(0)
	for _, way := range []struct {
		name, counter string
		end           func()
	}{
		{"a client that closes its connection", "client_gone", func() { w.abort(up, "/hang", false) }},
		{"a client that resets its stream", "client_gone", func() { w.abort(up, "/stream", true) }},
		{"a time-out", "timed_out", func() { ask(t, "GET", url+"/slow") }},
		{"a reset before the response", "upstream_failed", func() { ask(t, "GET", url+"/reset") }},
		{"a response that breaks off", "upstream_failed", func() {
			if _, err := send(http.DefaultClient, request("GET", url+"/torn")); err == nil {
				t.Error("the response came whole")
			}
		}},
		{"an answer by another filter", "otherwise", func() {
			ask(t, "GET", url+"/ok", "x-envoy-fault-abort-request", "418")
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			before := w.measured(w.envoys[0])["costs.unanswered_"+way.counter]
			for range 3 {
				way.end()
			}
			kept += 3
			w.awaitCounter(w.envoys[0], "weir.costs.unanswered_"+way.counter, before+3)
			w.awaitCounter(w.envoys[0], "weir.costs.unanswered", kept)
		})
	}
	const said = `"work";r=`
	got := ask(t, "GET", url+"/ok").Get("RateLimit")
	if want := fmt.Sprint(said, 100-3*kept-3); !strings.Contains(got, want) {
		t.Errorf("RateLimit is %q, want %s", got, want)
	}
	stats, err := w.envoys[0].Admin(w.ctx, "/stats/prometheus?filter=vm_reload|faults")
	for _, name := range faultCounters[host] {
		if err != nil || !strings.Contains(string(stats), name) {
			t.Errorf("Envoy's counters lack %s, by which an alert fires: %v\n%s", name, err, stats)
		}
	}
}

// faultCounters count the faults of the filter.
var faultCounters = map[stack.FilterHost][]string{
	stack.WasmHost:   {"envoy_wasm_weir_vm_reload_success", "envoy_wasm_weir_vm_reload_failure"},
	stack.NativeHost: {"weir_faults"},
}

// A header has the cost as a text, with the filter and the policy set of docs/choose/cost.md:
// answers of the cache are free, and three misses are not.
func TestHitsOfACacheAreFree(t *testing.T) {
	t.Parallel()
	filter := costPage(t, "- name: envoy.filters.http.header_to_metadata\n")
	w := start(t, setup{
		handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("x-cache", strings.TrimPrefix(r.URL.Path, "/"))
		}),
		policies: costPage(t, "version: weir/v1\npolicies:\n  - name: misses\n"),
		rewrite: func(config string) string {
			const router = "                  - name: envoy.filters.http.router\n"
			return strings.Replace(config, router, indent(filter, 18)+router, 1)
		},
	})
	left := int64(3)
	for _, said := range []string{"HIT", "MISS", "HIT", "HITS", "MISS", "MISS"} {
		want := 200
		if left == 0 {
			want = 429
		}
		if got := ask(t, "GET", w.envoys[0].URL()+"/"+said); got.status != want {
			t.Errorf("%s with %d left: %d, want %d", said, left, got.status, want)
		}
		if said != "HIT" && left > 0 {
			left--
		}
		w.awaitLevel("misses", left)
	}
}

// seesDebt awaits that the page of a key and the reason of a refusal say how much is owed.
func (w *world) seesDebt(name string, owed int64) {
	w.t.Helper()
	of, text := "client_ip:127.0.0.1", fmt.Sprintf("%d; ", owed)
	w.await("a debt", func(context.Context) error {
		if got := ask(w.t, "POST", w.envoys[1].URL()+"/v1/chat/completions", "x-uses", "1"); got.status != 429 {
			return fmt.Errorf("a request is answered with %d", got.status)
		}
		for _, said := range []string{w.run("keys", "get", name, of), w.run("why", "--policy", name, of)} {
			for _, part := range []string{"reserves header:x-max-tokens up to 8000, else 1000; then metadata " +
				"ai/total_tokens, or the reservation if the response does not say", text, "is let in after"} {
				if !strings.Contains(said, part) {
					return fmt.Errorf("it lacks %q:\n%s", part, said)
				}
			}
		}
		return nil
	})
}

// awaitLevel waits until the bucket of this machine holds want tokens.
func (w *world) awaitLevel(name string, want int64) {
	w.t.Helper()
	w.await(fmt.Sprint(want, " tokens in the bucket"), func(context.Context) error {
		var held struct {
			Buckets []struct{ Level int64 }
		}
		body := w.get("/v1/keys/" + name + "?partition=client_ip:127.0.0.1").Body
		if err := json.Unmarshal(body, &held); err != nil {
			return err
		}
		if len(held.Buckets) != 1 || held.Buckets[0].Level != want {
			return fmt.Errorf("the bucket: %s", body)
		}
		return nil
	})
}

// awaitReserved waits until the store holds at least `least` and at most `most` reservations that
// are not settled.
func (w *world) awaitReserved(least, most int) {
	w.t.Helper()
	w.await(fmt.Sprintf("%d to %d reservations in Redis", least, most), func(context.Context) error {
		if n := len(strings.Fields(w.redis.Do("KEYS", "*:reserved:*"))); n < least || n > most {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
}

// guess sends n wrong passwords at once, to the Envoys in turn.
func (w *world) guess(n int) tally {
	all := load{clients: n, total: n, request: func(i int) *http.Request {
		return request(http.MethodPost, w.envoys[i%len(w.envoys)].URL()+"/login", "x-password", fmt.Sprint(i))
	}}
	return all.run(w.ctx)
}

// decidedByShare returns how many requests the Envoys decided by their shares: the answer came too
// late on a busy machine. They cost the tokens that they have reserved.
func (w *world) decidedByShare() int64 {
	w.t.Helper()
	return w.overAll("decisions.by_share")
}

// Two Envoys of two workers each: log-ins that succeed never count, and of a hundred guesses at
// once five reach the upstream.
func TestOnlyFiveGuessesReachTheUpstream(t *testing.T) {
	t.Parallel()
	up := &logins{}
	w := start(t, setup{envoys: 2, workers: 2, handler: up, rewrite: logCosts,
		policies: costPage(t, "version: weir/v1\npolicies:\n  - name: failed-logins\n")})
	for i := range 30 {
		if got := ask(t, "POST", w.envoys[i%2].URL()+"/login", "x-password", "right"); got.status != 200 {
			t.Fatalf("log-in %d: %d %s", i, got.status, got.body)
		}
		w.awaitLevel("failed-logins", 5)
		w.awaitOutput(w.envoys[i%2], "cost=reserved=1 actual=0 used=-\n")
	}
	w.guess(100).mustBe(t, 401, 429)
	w.guess(20).mustBe(t, 401, 429)
	// On a busy machine, a call that came too late was decided by the share, and its token may be
	// lost.
	shared := w.decidedByShare()
	if reached := up.wrong.Load(); reached < 5-shared || reached > 5+shared {
		t.Errorf("%d guesses reached the upstream, and the share decided %d requests", reached, shared)
	}
	after := up.wrong.Load()
	got := ask(t, "POST", w.envoys[0].URL()+"/login", "x-password", "right")
	if late := w.decidedByShare() > shared; up.wrong.Load() != after || got.status != 429 && !late {
		t.Errorf("after five failures: %d, %d guesses reached the upstream", got.status, up.wrong.Load())
	}
	for _, e := range w.envoys {
		w.awaitCounter(e, "weir.costs.refunded_tokens", 15)
	}
	// At rest the store only has those five reservations. They cost the tokens that they had
	// reserved: nothing is sent for them. A call that came too late for its request has reserved in
	// vain.
	w.awaitReserved(5-int(shared), 5+int(shared))
	w.awaitLevel("failed-logins", 0)
}

// A caller learns its debt from its own key alone, and the time when it is let in again.
func TestUsageOfACallerThatOwes(t *testing.T) {
	t.Parallel()
	w := start(t, setup{workers: 2, policies: `version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - name: rows
    partition: [consumer]
    limit: {quota: 20, window: 1h}
    mode: strict
    cost: {reserve: 5, commit: {header: x-rows-sent}}
`, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("x-rows-sent", r.Header.Get("x-sends"))
	})})
	const settles = "rows, 20 per 1h: reserves 5; then header x-rows-sent, or the reservation if the response " +
		"does not say."
	for _, c := range []struct{ sends, left, owed string }{
		{"2", "18 of 20", "owed 0; the smallest request is let in now"},
		// It earns a token in three minutes: 15 owed and 5 to reserve are an hour.
		{"33", "0 of 20", "owed 15; the smallest request is let in after "},
	} {
		got := ask(t, "GET", w.envoys[0].URL()+"/export", "x-api-key", apiKey, "x-sends", c.sends)
		if got.status != 200 {
			t.Fatalf("%s rows: %d %s", c.sends, got.status, got.body)
		}
		w.await("what is left", func(context.Context) error {
			said := w.run("usage", apiKey)
			for _, part := range []string{settles, c.left, c.owed} {
				if !strings.Contains(said, part) {
					return fmt.Errorf("weir usage lacks %q:\n%s", part, said)
				}
			}
			return nil
		})
	}
	if got := ask(t, "GET", w.envoys[0].URL()+"/export", "x-api-key", apiKey); got.status != 429 {
		t.Errorf("a caller that owes: %d", got.status)
	}
	if said := w.run("usage", "nobody"); !strings.Contains(said, "20 of 20") {
		t.Errorf("another caller has used something:\n%s", said)
	}
}
