package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// spending is a model that counts, by API key or subject, the tokens that it has charged and the
// streams that its clients have left.
type spending struct{ charged, left map[string]*atomic.Int64 }

func (u *spending) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who := r.Header.Get("x-who")
	if r.Header.Get("x-stream") == "held" {
		u.left[who].Add(1)
	} else {
		uses, err := strconv.ParseInt(r.Header.Get("x-uses"), 10, 64)
		if err != nil {
			panic(err)
		}
		u.charged[who].Add(uses)
	}
	model(w, r)
}

// account is one caller of the example: its tier, the size and the rate of its bucket, and when it
// was first used.
type account struct {
	w            *world
	who, lookup  string
	tier         string
	burst, rate  float64
	before, some time.Time
	headers      []string
}

func (a *account) request(envoy int, header ...string) *http.Request {
	all := append(append([]string{"x-who", a.who}, a.headers...), header...)
	return request(http.MethodPost, a.w.envoys[envoy%2].URL()+"/v1/chat/completions", all...)
}

// used returns the number of tokens that are missing from the caller's bucket.
func (a *account) used() (int64, error) {
	var held struct {
		Buckets []struct {
			Tier string
			Used int64
		}
	}
	body := a.w.get("/v1/keys/tokens-per-minute?" + a.lookup).Body
	if err := json.Unmarshal(body, &held); err != nil {
		return 0, err
	}
	for _, b := range held.Buckets {
		if b.Tier == a.tier {
			return b.Used, nil
		}
	}
	return 0, fmt.Errorf("no bucket of tier %q: %s", a.tier, body)
}

// awaitExact waits until the bucket lacks the charged tokens, and at most `more` tokens that were
// not given back, less the tokens that it has earned since.
func (a *account) awaitExact(charged, more int64) {
	a.w.t.Helper()
	a.w.await(fmt.Sprintf("the bucket of %s to lack %d tokens, less the tokens earned since", a.who, charged),
		func(context.Context) error {
			read := time.Now()
			used, err := a.used()
			if err != nil {
				return err
			}
			// It earns since it was first used, between before and some, until it was read. A grant
			// counts as late as it may be used, up to two deadlines later.
			const unused = 2 * 0.05
			least := float64(charged) - a.rate*time.Since(a.before).Seconds() - 1
			most := float64(charged+more) - a.rate*(read.Sub(a.some).Seconds()-unused) + 1
			if float64(used) < least || float64(used) > most {
				return fmt.Errorf("it lacks %d, want %.0f to %.0f", used, least, most)
			}
			return nil
		})
}

// The example of tokens a minute, unchanged, behind the filters of docs/choose/cost.md: two Envoys
// of two workers charge the upstream's charges, no more than the budget, and say how long a debt
// lasts.
func TestTheTokensExampleRuns(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(repository, "examples", "tokens.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	up := &spending{charged: map[string]*atomic.Int64{}, left: map[string]*atomic.Int64{}}
	for _, who := range []string{"steady", "debtor", "busy"} {
		up.charged[who], up.left[who] = &atomic.Int64{}, &atomic.Int64{}
	}
	tokens, filters := newIssuer(t), costPage(t, "- name: envoy.filters.http.json_to_metadata\n")
	w := start(t, setup{
		envoys: 2, workers: 2, handler: up, policies: string(text),
		rewrite: func(config string) string {
			const router = "                  - name: envoy.filters.http.router\n"
			config = strings.Replace(config, router, indent(filters, 18)+router, 1)
			return insertFilter(tokens.filter())(config)
		},
	})
	free := func(who string) *account {
		return &account{w: w, who: who, tier: "free", burst: 10000, rate: 10000. / 60,
			headers: []string{"x-api-key", who},
			lookup:  "source=header:x-api-key&partition=consumer:" + who}
	}
	w.steady10(free("steady"), up)
	w.indebted(free("debtor"), up)
	token := tokens.token(t, map[string]any{"sub": "busy", "plan": "team", "tpm": 12000})
	w.crowded(&account{w: w, who: "busy", tier: "team", burst: 12000, rate: 200,
		headers: []string{"authorization", token}, lookup: "source=jwt:sub&partition=consumer:busy"}, up)
}

// steady10 asks until the budget does not have the tokens that a request reserves: that is after
// ten of 920. On a busy machine the answer about a place in flight comes too late for some
// requests. They are refused for that reason, and cost nothing.
func (w *world) steady10(a *account, up *spending) {
	w.t.Helper()
	a.before = time.Now()
	for i := range 40 {
		stream := []string{"x-uses", "920"}
		if i%3 == 2 {
			stream = append(stream, "x-stream", "whole")
		}
		got, err := send(http.DefaultClient, a.request(i, stream...))
		if err != nil {
			w.t.Fatal(err)
		}
		if i == 0 {
			a.some = time.Now()
		}
		if got.status == http.StatusOK || strings.Contains(got.body, "#temporary-reduced-capacity") {
			continue
		}
		charged, earned := float64(up.charged[a.who].Load()), a.rate*time.Since(a.before).Seconds()
		// The last request gives back 80 tokens, perhaps only with the next call.
		if charged > a.burst+earned || charged+1000 < a.burst-80 {
			w.t.Errorf("refused after %.0f tokens of %.0f and %.0f that came back: %s", charged, a.burst, earned,
				got.body)
		}
		w.mustWait(got, (charged+1000-a.burst-earned)/a.rate, (charged+80+1000-a.burst)/a.rate)
		a.awaitExact(int64(charged), w.decidedByShare()*80)
		w.t.Logf("refused after %.0f tokens", charged)
		return
	}
	w.t.Error("40 requests of 920 tokens were let through")
}

// mustWait checks that the wait of a refusal is between least and most seconds, rounded up, plus
// the jitter.
func (w *world) mustWait(got answer, least, most float64) {
	w.t.Helper()
	seconds, err := strconv.ParseFloat(got.Get("Retry-After"), 64)
	if got.status != http.StatusTooManyRequests || err != nil || seconds < least || seconds > 1.1*max(most, 1)+1 {
		w.t.Errorf("%d, to be retried after %q, want %.1f to %.1f s and a tenth: %s", got.status,
			got.Get("Retry-After"), least, most, got.body)
	}
}

// indebted uses far more than it has reserved: the wait tells of the debt, at both Envoys.
func (w *world) indebted(a *account, up *spending) {
	w.t.Helper()
	a.before = time.Now()
	got, err := send(http.DefaultClient, a.request(0, "x-uses", "19000"))
	if err != nil || got.status != http.StatusOK {
		w.t.Fatal(got.status, got.body, err)
	}
	a.some = time.Now()
	a.awaitExact(19000, 0)
	for i := range 2 {
		got, err := send(http.DefaultClient, a.request(i, "x-uses", "1"))
		if err != nil {
			w.t.Fatal(err)
		}
		w.mustWait(got, 60-time.Since(a.before).Seconds(), 60) // 9000 of debt, and 1000 to reserve, at 10000 a minute.
	}
	if charged := up.charged[a.who].Load(); charged != 19000 {
		w.t.Errorf("%d tokens were used, want none while tokens are owed", charged)
	}
}

// crowded runs forty clients at once, which leave three in ten of their streams. A left stream
// costs the tokens that it has reserved. The clients get no more than the budget, and the bucket
// knows all used tokens.
func (w *world) crowded(a *account, up *spending) {
	w.t.Helper()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	uses := make([]int, 1<<16)
	for i := range uses {
		uses[i] = 100 + r.IntN(901)
	}
	a.before = time.Now()
	first, err := send(http.DefaultClient, a.request(0, "x-uses", "500", "x-max-tokens", "1000"))
	if err != nil || first.status != http.StatusOK {
		w.t.Fatal(first.status, first.body, err)
	}
	a.some = time.Now()
	during := either(6*time.Second, 60*time.Second)
	got := load{clients: 40, rate: 80, during: during, request: func(i int) *http.Request {
		n := uses[i%len(uses)]
		headers := []string{"x-uses", fmt.Sprint(n), "x-max-tokens", fmt.Sprint(n + (1000-n)/2)}
		switch {
		case n%10 < 3: // The client goes in mid-stream.
			ctx, cancel := context.WithTimeout(w.ctx, 100*time.Millisecond)
			w.t.Cleanup(cancel)
			return a.request(i, "x-uses", fmt.Sprint(n), "x-max-tokens", "1000", "x-stream", "held").WithContext(ctx)
		case n%10 < 6:
			headers = append(headers, "x-stream", "whole")
		}
		return a.request(i, headers...)
	}}.run(w.ctx)
	elapsed := time.Since(a.before).Seconds()
	charged, left := up.charged[a.who].Load(), up.left[a.who].Load()
	cost := charged + 1000*left
	w.t.Logf("seed %d: %s; %d tokens used and %d streams left in %.1fs", seed, got, charged, left, elapsed)
	shared := w.decidedByShare()
	if most := a.burst + a.rate*elapsed + float64(1000*shared); float64(cost) > most {
		w.t.Errorf("seed %d: %d tokens in %.1fs, want at most %.0f", seed, cost, elapsed, most)
	}
	if float64(cost) < a.burst || left == 0 || charged == 0 || got.statuses[429] == 0 {
		w.t.Errorf("seed %d: only %d tokens and %d streams that were left: %s", seed, charged, left, got)
	}
	a.awaitExact(cost, 1000*shared)
	unanswered := int64(0)
	for _, e := range w.envoys {
		m := w.measured(e)
		unanswered += m["costs.unanswered"]
		if m["costs.lost"] != 0 || m["costs.missing"] != 0 {
			w.t.Errorf("%s: %d settlements were lost, %d missing", e.Name, m["costs.lost"], m["costs.missing"])
		}
	}
	if unanswered > left || unanswered+shared < left {
		w.t.Errorf("%d reservations were left, want %d less up to %d", unanswered, left, shared)
	}
}
