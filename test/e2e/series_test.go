package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// measured are policies of which the history has more than refusals.
const measured = `
version: weir/v1
policies:
  - {name: places, match: {paths: [/held]}, partition: [], limit: {in_flight: 20}, mode: leased}
  - name: api
    match: {paths: [/api]}
    partition: []
    limit: {quota: 10, window: 24h}
    mode: local
    candidate: {limit: {quota: 4, window: 24h}}
  - {name: tried, match: {paths: [/tried]}, partition: [], limit: {quota: 3, window: 24h}, mode: local, enforcement: shadow}
`

// heldUpstream answers after 400 ms, and knows how many requests it had when.
type heldUpstream struct {
	now atomic.Int64
	mu  sync.Mutex
	// sums and counts are the sums and the numbers of samples, by the slot of ten seconds.
	sums, counts map[int64]int64
}

func (u *heldUpstream) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/held" {
		u.now.Add(1)
		defer u.now.Add(-1)
		time.Sleep(400 * time.Millisecond)
	}
}

// slot is how long a step of the history is.
const slot = 10 * time.Second

// sample notes the upstream's open requests until ctx ends.
func (u *heldUpstream) sample(ctx context.Context) {
	u.sums, u.counts = map[int64]int64{}, map[int64]int64{}
	for every := time.NewTicker(10 * time.Millisecond); ctx.Err() == nil; <-every.C {
		u.mu.Lock()
		at := time.Now().UnixNano() / int64(slot)
		u.sums[at] += u.now.Load()
		u.counts[at]++
		u.mu.Unlock()
	}
}

// mean returns the average number of requests that the upstream had in a slot.
func (u *heldUpstream) mean(at int64) float64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return float64(u.sums[at]) / float64(max(u.counts[at], 1))
}

// series is an answer of GET /v1/series.
type series struct {
	From   time.Time
	Series []struct {
		Policy, Node, Outcome string
		Total                 float64
		Values                []*float64
	}
}

func (w *world) seriesOf(query string) (h series) {
	w.t.Helper()
	if err := json.Unmarshal(w.get("/v1/series?"+query).Body, &h); err != nil {
		w.t.Fatal(err)
	}
	return h
}

// at returns the value of a series in a slot, -1 if it is not known.
func (h *series) at(one int, at int64) float64 {
	i := at - h.From.UnixNano()/int64(slot)
	if one >= len(h.Series) || i < 0 || i >= int64(len(h.Series[one].Values)) || h.Series[one].Values[i] == nil {
		return -1
	}
	return *h.Series[one].Values[i]
}

// The history shows the upstream's requests in flight through two Envoys, no more than the limit,
// and nothing at rest.
func TestInFlightInTheHistory(t *testing.T) {
	t.Parallel()
	up := &heldUpstream{}
	w := start(t, setup{envoys: 2, workers: 2, handler: up, policies: measured})
	ctx, end := context.WithCancel(w.ctx)
	go up.sample(w.ctx)
	begun := time.Now()
	var clients sync.WaitGroup
	for client := range 30 {
		clients.Go(func() {
			keeps := &http.Client{Timeout: patience, Transport: &http.Transport{}}
			defer keeps.CloseIdleConnections()
			for ctx.Err() == nil {
				got, err := send(keeps, request("GET", w.envoys[client%2].URL()+"/held"))
				if err != nil {
					t.Error(err)
					return
				}
				if got.status == 429 {
					time.Sleep(50 * time.Millisecond)
				}
			}
		})
	}
	first := begun.Add(3*time.Second).UnixNano()/int64(slot) + 1
	last := first + 1 // Two slots that the load covers.
	time.Sleep(time.Until(time.Unix(0, (last+1)*int64(slot)).Add(2 * time.Second)))
	end()
	clients.Wait()
	lasted := time.Since(begun)
	rest := time.Now().UnixNano()/int64(slot) + 1
	const query = "outcome=in_flight&policy=places"
	err := stack.Await(w.within(time.Minute), "rest", func(context.Context) error {
		if h := w.seriesOf(query); h.at(0, rest) != 0 || h.at(0, rest+1) < 0 {
			return fmt.Errorf("the history has %v at rest", h.at(0, rest))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	all, used, nodes := w.seriesOf(query), w.seriesOf("outcome=utilisation&policy=places"),
		w.seriesOf("outcome=in_flight&by=node")
	if len(nodes.Series) != 2 {
		t.Fatalf("%d nodes have something in flight", len(nodes.Series))
	}
	// The time that a report tells of ends when it arrives, so a late one moves time from one slot
	// to the next, and adds none.
	var shown, seen float64
	for at := begun.UnixNano() / int64(slot); at <= rest; at++ {
		shown += max(all.at(0, at), 0) * slot.Seconds()
	}
	for at := first; at <= last; at++ {
		got, want := all.at(0, at), up.mean(at)
		seen += want * slot.Seconds()
		t.Logf("%.3f in flight by the history, %.3f at the upstream; at most %v %% in use", got, want, used.at(0, at))
		if want < 10 {
			t.Errorf("the upstream had %v in flight, of 20", want)
		}
		if each := nodes.at(0, at) + nodes.at(1, at); each < got-0.1 || each > got+0.1 {
			t.Errorf("the nodes have %v together, the policy %v", each, got)
		}
		if n := used.at(0, at); n < 90 || n > 100 {
			t.Errorf("%v %% in use at most", n)
		}
	}
	if most := 20 * lasted.Seconds(); shown < seen || shown > most {
		t.Errorf("the history has %.1f s in flight, want %.1f, as at the upstream in two slots, to %.1f, "+
			"for the limit", shown, seen, most)
	}
}

// The history has the refusals that a candidate lower than the limit would have made, and the
// refusals that a policy in shadow would have made.
func TestCandidatesInTheHistory(t *testing.T) {
	t.Parallel()
	w := start(t, setup{workers: 1, policies: measured})
	for i := range 12 {
		if got := ask(t, "GET", w.envoys[0].URL()+"/api").status; (got == 429) != (i >= 10) {
			t.Errorf("request %d: %d", i, got)
		}
		ask(t, "GET", w.envoys[0].URL()+"/tried")
	}
	totals := map[string]int{"api candidate_refused": 8, "tried shadow_refused": 9, "api refused": 2,
		"tried candidate_refused": 0, "api in_flight": 0}
	w.await("the history", func(context.Context) error {
		said := w.run("series", "api", "tried", "--outcome", "candidate_refused", "--outcome", "shadow_refused",
			"--outcome", "refused", "--outcome", "in_flight")
		type row struct{ total, highest int }
		rows := map[string]row{}
		for line := range strings.Lines(said) {
			var r row
			var outcome, policy string
			if n, _ := fmt.Sscan(line, &r.total, &r.highest, &outcome, &policy); n == 4 {
				rows[policy+" "+outcome] = r
			}
		}
		for name, total := range totals {
			// A minute may end between two requests. Then the higher one has at least half.
			r, ok := rows[name]
			if !ok || r.total != total || r.highest > total || 2*r.highest < total {
				return fmt.Errorf("it has %+v of %s, want %d: %s", r, name, total, said)
			}
		}
		return nil
	})
}

// How full limits of rates are is in the history, in each mode and in shadow.
func TestHowFullLimitsAreInTheHistory(t *testing.T) {
	t.Parallel()
	policy := func(name, more string) string {
		return "\n  - {name: " + name + ", match: {paths: [/" + name + "]}, partition: [], " + more + "}"
	}
	w := start(t, setup{workers: 1, policies: "version: weir/v1\npolicies:" +
		policy("local", "limit: {quota: 10, window: 24h}, mode: local") +
		policy("watched", "limit: {quota: 5, window: 24h}, mode: local, enforcement: shadow") +
		policy("strict", "limit: {quota: 4, window: 24h}, mode: strict") +
		policy("refusing", "limit: {quota: 1, window: 24h}, mode: leased")})
	asked := map[string]int{"local": 7, "watched": 3, "strict": 1, "refusing": 3}
	for name, times := range asked {
		for range times {
			ask(t, "GET", w.envoys[0].URL()+"/"+name)
		}
	}
	want := map[string]float64{"local": 70, "watched": 60, "strict": 25, "refusing": 100}
	w.await("the history", func(context.Context) error {
		for name, full := range want {
			got := w.seriesOf("outcome=utilisation&policy=" + name)
			if len(got.Series) != 1 || got.Series[0].Total != full {
				return fmt.Errorf("of %s it has %+v, want %v %%", name, got.Series, full)
			}
			metric := fmt.Sprintf("weir_limit_used_percent{policy=%q} %v\n", name, full)
			if body := w.get("/metrics").Body; !strings.Contains(string(body), metric) {
				return fmt.Errorf("the metrics lack %s", metric)
			}
		}
		return nil
	})
}
