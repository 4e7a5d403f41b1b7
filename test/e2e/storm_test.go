package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// storm is a number of requests to one fresh bucket, over some connections that stay open.
type storm struct {
	name        string
	connections int
	// pause is the time from one request to the next.
	pause func(r *rand.Rand) time.Duration
}

// stormAnswer is an answer with the times, by the client's clock, between which it was decided.
type stormAnswer struct {
	answer
	sent time.Time
}

func poissonStorm(connections int, rate float64) storm {
	name := fmt.Sprintf("%d connections, %v a second", connections, rate)
	return storm{name, connections, func(r *rand.Rand) time.Duration {
		return time.Duration(r.ExpFloat64() / rate * float64(time.Second))
	}}
}

// burstStorm sends as many requests as there are connections at once, again and again.
func burstStorm(connections int, every time.Duration) storm {
	name := fmt.Sprintf("%d connections, all at once each %v", connections, every)
	return storm{name, connections, func(r *rand.Rand) time.Duration {
		if r.IntN(connections) == 0 {
			return every
		}
		return 0
	}}
}

// storms are from one connection to 64, and from 20 requests a second to 5000.
func storms() []storm {
	all := []storm{
		poissonStorm(1, 300), poissonStorm(12, 20), poissonStorm(4, 300), poissonStorm(64, 1000),
		poissonStorm(16, 5000), burstStorm(2, 25*time.Millisecond),
		burstStorm(6, 100*time.Millisecond), burstStorm(64, 300*time.Millisecond),
	}
	if *long {
		for _, connections := range []int{1, 2, 8, 32} {
			for _, rate := range []float64{20, 100, 1000, 5000} {
				all = append(all, poissonStorm(connections, rate))
			}
			all = append(all, burstStorm(connections, 25*time.Millisecond),
				burstStorm(connections, 100*time.Millisecond))
		}
	}
	return all
}

const (
	stormQuota  = 300
	stormWindow = time.Hour
	stormSeed   = 1
)

// run sends more requests with a key than may pass, each when it is due or, if no connection is
// free then, as soon as one is.
func (s storm) run(t *testing.T, url, key string) []stormAnswer {
	const n = stormQuota * 13 / 10
	r := rand.New(rand.NewPCG(stormSeed, uint64(s.connections)))
	due := make([]time.Duration, n)
	for i := 1; i < n; i++ {
		due[i] = due[i-1] + s.pause(r)
	}
	transport := &http.Transport{MaxConnsPerHost: s.connections, MaxIdleConnsPerHost: s.connections}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: patience}
	answers := make([]stormAnswer, n)
	var next atomic.Int64
	var all sync.WaitGroup
	begin := time.Now()
	for range s.connections {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				time.Sleep(time.Until(begin.Add(due[i])))
				sent := time.Now()
				a, err := send(client, request(http.MethodGet, url, "x-key", key))
				if err != nil {
					t.Errorf("%s: request %d: %v", s.name, i, err)
				}
				answers[i] = stormAnswer{a, sent}
			}
		})
	}
	all.Wait()
	return answers
}

// check holds the answers of a storm to what a bucket promises that was full at first. Missing is
// how many tokens it may keep back in the end. The times of the client bound those of the
// decisions, however late a busy machine makes them.
func (s storm) check(t *testing.T, mode string, answers []stormAnswer, missing float64) {
	t.Helper()
	const rate = float64(stormQuota) / float64(stormWindow/time.Second)
	first, last := answers[0].at, answers[0].at
	var refused time.Time
	var left, full []int
	for _, a := range answers {
		if last.Before(a.at) {
			last = a.at
		}
		switch {
		case a.status == http.StatusTooManyRequests:
			if refused.Before(a.sent) {
				refused = a.sent
			}
		case a.status == http.StatusOK:
			if a.at.Before(first) {
				first = a.at
			}
			r, t := remainingAndReset(a.Get("RateLimit"))
			left, full = append(left, r), append(full, t)
		default:
			t.Errorf("%s, %s: status %d", mode, s.name, a.status)
		}
	}
	passed := float64(len(left))
	most := stormQuota + rate*last.Sub(answers[0].sent).Seconds()
	least := stormQuota + rate*refused.Sub(first).Seconds() - 1 - missing
	what := fmt.Sprintf("%s, %s: %.0f passed, between %.1f and %.1f may", mode, s.name, passed, least, most)
	t.Log(what)
	if passed > most || passed < least {
		t.Error(what)
	}
	if mode != "local" {
		return
	}
	// The answer to the n-th to pass says that n tokens fewer remain than there were, but for those
	// earned meanwhile, and when they are all back.
	slices.SortFunc(left, func(a, b int) int { return b - a })
	slices.Sort(full)
	elapsed := last.Sub(answers[0].sent).Seconds()
	for i := range left {
		n := i + 1
		earned := int(rate*elapsed) + 1
		back := float64(n) / rate
		tokens := left[i] >= stormQuota-n && left[i] <= stormQuota-n+earned
		reset := float64(full[i]) >= back-elapsed && float64(full[i]) <= back+1
		if !tokens || !reset {
			t.Errorf("%s, %s: the %d-th to pass received r=%d;t=%d", mode, s.name, n, left[i], full[i])
			return
		}
	}
}

// remainingAndReset reads the parameters of a RateLimit field with one item.
func remainingAndReset(field string) (remaining, reset int) {
	for _, p := range strings.Split(field, ";") {
		if name, value, _ := strings.Cut(p, "="); name == "r" {
			remaining, _ = strconv.Atoi(value)
		} else if name == "t" {
			reset, _ = strconv.Atoi(value)
		}
	}
	return remaining, reset
}

// Whatever number of workers and connections, and however requests come: of a bucket that is used
// up exactly what it had, and has earned, has passed. No token is lost to a worker, and no client
// is refused because workers meet at one bucket.
func TestNoTokenIsLostInAStorm(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 2, 8} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			t.Parallel()
			w := start(t, setup{embedded: true, workers: workers, policies: stormPolicies})
			var all sync.WaitGroup
			for _, s := range storms() {
				all.Go(func() {
					s.check(t, "local", s.run(t, w.envoys[0].URL()+"/local", s.name), 0)
					s.checkLeased(w)
				})
			}
			all.Wait()
			mustNotContend(w)
		})
	}
}

const stormPolicies = `
version: weir/v1
policies:
  - name: own
    match: {paths: [/local]}
    partition: ["header:x-key"]
    limit: {quota: 300, window: 1h}
    mode: local
  - name: lent
    match: {paths: [/leased]}
    partition: ["header:x-key"]
    limit: {quota: 300, window: 1h}
    mode: leased
    on_failure: {local_for: 0s, then: deny}
`

// checkLeased is check for a leased bucket. A call that a busy machine answers too late loses what
// it carried, by design, so such a storm is repeated once with another key. An overloaded node
// leaves at the control plane what is earned in four back-offs: 30 s, between two tokens and three.
func (s storm) checkLeased(w *world) {
	w.t.Helper()
	for try := range 2 {
		before := w.lateCalls()
		answers := s.run(w.t, w.envoys[0].URL()+"/leased", fmt.Sprint(s.name, try))
		if w.lateCalls() == before {
			s.check(w.t, "leased", answers, float64(max(1, w.workers))+3)
			return
		}
		s.check(w.t, "leased, late", answers, stormQuota)
	}
}

// lateCalls are the calls for tokens of all Envoys that came to nothing, and the requests that were
// refused for it.
func (w *world) lateCalls() int64 {
	w.t.Helper()
	n := w.late()
	for _, e := range w.envoys {
		m := w.measured(e)
		n += m["leases.no_answer"] + m["leases.unavailable"] + m["leases.unsent"]
	}
	return n
}

// mustNotContend fails the test if an Envoy gave up a decision because of what other workers did.
func mustNotContend(w *world) {
	w.t.Helper()
	for _, e := range w.envoys {
		m := w.measured(e)
		w.t.Logf("%s: %d attempts were repeated", e.Name, m["buckets.retried"])
		if m["buckets.contended"] != 0 || m["decisions.by_overload"] != 0 {
			w.t.Errorf("%s gave up %d decisions", e.Name, m["buckets.contended"])
		}
	}
}

// Eight workers at one bucket, as fast as they can: each token is used once, and no request is
// refused for the crowd.
func TestWorkersAtOneHotBucket(t *testing.T) {
	w := start(t, setup{alone: true, workers: 8, plugin: `{"policyset": {"version": "weir/v1", "policies": [` +
		`{"name": "hot", "partition": [], "limit": {"quota": 20000, "window": "24h"}, "mode": "local", ` +
		`"on_failure": {"then": "deny"}}]}}`})
	begin := time.Now()
	address := strings.TrimPrefix(w.envoys[0].URL(), "http://")
	statuses := flood{address: address, path: "/", total: 25_000}.run(t)
	t.Logf("of 25 000 requests: %v", statuses)
	earned := int(time.Since(begin).Seconds()/4.32) + 1
	if passed := statuses[http.StatusOK]; passed < 20_000 || passed > 20_000+earned || len(statuses) != 2 {
		t.Errorf("%d passed, want 20 000 and at most %d that were earned", passed, earned)
	}
	time.Sleep(50 * time.Millisecond) // The counters come with the ticks.
	mustNotContend(w)
}
