package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// stream is an answer that passed: when its request was sent and its head came, what it declared,
// and what it has cost.
type stream struct {
	sent, head     time.Time
	done           time.Time // when it had ended for its client
	envoy          int
	declared, cost int64
	aborted        bool
}

// streams is clients that ask a model for streams of 50 to 2000 tokens through two Envoys. Three in
// ten leave in mid-stream.
type streams struct {
	world   *world
	clients int
	during  time.Duration
	seed    uint64
	// least is how much a stream is charged at least whose client left.
	least int64

	mu     sync.Mutex
	passed []stream
	failed []error
}

// usage is an upstream that streams for a while, and then sends what x-uses says as its usage. It
// waits for the client of a stream that is "held" to leave.
func usage(w http.ResponseWriter, r *http.Request) {
	millis, _ := strconv.Atoi(r.Header.Get("x-lasts"))
	w.Header().Set("content-type", "text/event-stream")
	fmt.Fprint(w, "data: {\"choices\": [{\"delta\": {}}], \"usage\": null}\n\n")
	w.(http.Flusher).Flush()
	end := time.After(time.Duration(millis) * time.Millisecond)
	if r.Header.Get("x-stream") == "held" {
		end = nil
	}
	select {
	case <-end:
		fmt.Fprintf(w, "data: {\"choices\": [], \"usage\": {\"total_tokens\": %s}}\n\ndata: [DONE]\n\n",
			r.Header.Get("x-uses"))
	case <-r.Context().Done():
	}
}

// run has the clients ask until the time is over, and waits for their streams.
func (s *streams) run() {
	ctx, cancel := context.WithTimeout(s.world.ctx, s.during)
	defer cancel()
	var clients sync.WaitGroup
	for i := range s.clients {
		clients.Go(func() {
			r := rand.New(rand.NewPCG(s.seed, uint64(i)))
			for n := i; ctx.Err() == nil; n++ {
				refused, err := s.ask(r, n%2)
				if err != nil {
					s.mu.Lock()
					s.failed = append(s.failed, err)
					s.mu.Unlock()
					return
				}
				if !refused {
					continue
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(100+r.IntN(900)) * time.Millisecond):
				}
			}
		})
	}
	clients.Wait()
}

// ask asks for one stream, and reads it to its end or leaves it.
func (s *streams) ask(r *rand.Rand, envoy int) (refused bool, err error) {
	declared := 50 + r.Int64N(1951)
	one := stream{envoy: envoy, declared: declared, cost: 1 + r.Int64N(declared), aborted: r.IntN(10) < 5}
	header := []string{"x-max-tokens", fmt.Sprint(declared), "x-uses", fmt.Sprint(one.cost),
		"x-lasts", fmt.Sprint(100 + r.IntN(2900))}
	if one.aborted {
		header = append(header, "x-stream", "held")
	}
	one.sent = time.Now()
	req := request(http.MethodPost, s.world.envoys[envoy].URL()+"/v1/chat/completions", header...)
	answer, err := http.DefaultClient.Do(req.WithContext(s.world.ctx))
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	one.head = time.Now()
	if answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode == http.StatusServiceUnavailable {
		_, err := io.Copy(io.Discard, answer.Body)
		return true, err
	}
	if answer.StatusCode != http.StatusOK {
		return false, fmt.Errorf("status %d", answer.StatusCode)
	}
	if one.aborted {
		_, err = io.ReadFull(answer.Body, make([]byte, 20))
	} else {
		_, err = io.Copy(io.Discard, answer.Body)
	}
	one.done = time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed = append(s.passed, one)
	return false, err
}

// most is the most that streams which surely passed within one window have cost. One whose client
// left has cost what it declared at most.
func (s *streams) most(window time.Duration) (most int64) {
	for _, first := range s.passed {
		sum := int64(0)
		for _, one := range s.passed {
			if !one.sent.Before(first.sent) && one.head.Sub(first.sent) < window {
				sum += s.atMost(one)
			}
		}
		most = max(most, sum)
	}
	return most
}

func (s *streams) atMost(one stream) int64 {
	if one.aborted {
		return one.declared
	}
	return one.cost
}

// newStreams starts two Envoys before the model, with a policy set that limits tokens. While the
// control plane is away they refuse: a share would let streams through that are never settled.
func newStreams(t *testing.T, policies string) *streams {
	const strict = "    mode: strict\n"
	filters := costPage(t, "- name: envoy.filters.http.json_to_metadata\n")
	s := &streams{clients: 40, during: 20 * time.Second, seed: rand.Uint64()}
	if *long {
		s.clients, s.during = 200, 3*time.Minute
	}
	s.world = start(t, setup{
		envoys: 2, workers: 2, handler: http.HandlerFunc(usage),
		policies: strings.Replace(policies, strict, strict+"    on_failure: {then: deny}\n", 1),
		rewrite: func(config string) string {
			const router = "                  - name: envoy.filters.http.router\n"
			return strings.Replace(config, router, indent(filters, 18)+router, 1)
		},
	})
	return s
}

// check runs the streams. Every reservation must have come to an end, with what it cost.
func (s *streams) check(t *testing.T, reserved func(stream) int64) {
	t.Helper()
	s.run()
	if len(s.failed) > 0 {
		t.Fatalf("seed %d: %d clients failed, the first: %v", s.seed, len(s.failed), s.failed[0])
	}
	ended, left := int64(0), int64(0)
	for i, e := range s.world.envoys {
		var settled, unanswered, back, over int64
		for _, one := range s.passed {
			switch {
			case one.envoy != i:
			case one.aborted:
				unanswered++
				if more := s.least - reserved(one); more > 0 {
					settled++
					over += more
				}
			default:
				settled++
				back += max(0, reserved(one)-one.cost)
				over += max(0, one.cost-reserved(one))
			}
		}
		if ended, left = ended+settled, left+unanswered; settled > 0 {
			s.world.awaitCounter(e, "weir.costs.settled", settled)
		}
		if unanswered > 0 {
			s.world.awaitCounter(e, "weir.costs.unanswered", unanswered)
		}
		if back > 0 {
			s.world.awaitCounter(e, "weir.costs.refunded_tokens", back)
		}
		if over > 0 {
			s.world.awaitCounter(e, "weir.costs.overspent_tokens", over)
		}
	}
	if ended == 0 || left == 0 {
		t.Fatalf("seed %d: %d streams ended and %d were left", s.seed, ended, left)
	}
	s.mustForget(reserved)
}

// mustForget holds the store to the streams that were left, and those that cost what they had
// reserved, as long as they count: nothing else is reserved there.
func (s *streams) mustForget(reserved func(stream) int64) {
	s.world.t.Helper()
	const window, piece = time.Minute, 10 * time.Second
	now, least, most := time.Now(), 0, 0
	for _, one := range s.passed {
		if !one.aborted && one.cost != reserved(one) || one.aborted && reserved(one) < s.least {
			continue
		}
		if one.sent.Add(window - piece).After(now) {
			least++
		}
		if one.head.Add(window + piece).After(now) {
			most++
		}
	}
	s.world.awaitReserved(least, most)
}

// Forty clients, and with -long 200 for three minutes, share a budget over two Envoys. Each stream
// reserves what it declares, and no minute costs more than the budget. At rest nothing is reserved:
// each stream is charged what the upstream says, or what it reserved where its client left.
func TestStreamsKeepTheirBudget(t *testing.T) {
	t.Parallel()
	s := newStreams(t, costPage(t, "version: weir/v1\npolicies:\n  - name: tokens-per-minute\n"))
	s.least = 1000
	s.check(t, func(one stream) int64 { return one.declared })
	most := s.most(time.Minute)
	t.Logf("%d streams passed; a minute cost %d of 10000 at most", len(s.passed), most)
	if most > 10000 {
		t.Errorf("seed %d: the streams of one minute have cost %d of 10000", s.seed, most)
	}
}

// The same where streams reserve a token: the budget is overspent by what is under way. What
// upstreams have sent is charged all the same, and the bucket pays for it before more pass.
func TestStreamsWithoutReservations(t *testing.T) {
	t.Parallel()
	const declares = "reserve: {header: x-max-tokens, max: 8000, missing: 1000}"
	page := costPage(t, "version: weir/v1\npolicies:\n  - name: tokens-per-minute\n")
	policies := strings.Replace(page, declares, "reserve: 1", 1)
	if policies == page {
		t.Fatalf("docs/cost.md does not say %q", declares)
	}
	s := newStreams(t, policies)
	s.check(t, func(stream) int64 { return 1 })
	used := int64(0)
	for _, one := range s.passed {
		if !one.aborted {
			used += one.cost
		}
	}
	t.Logf("%d streams passed, whose upstreams have sent %d tokens of 10000 a minute", len(s.passed), used)
	s.mustOverspendOnce(t, 10000, time.Minute)
}

// mustOverspendOnce holds the streams, which reserve a token each, to the bound of docs/cost.md: a
// stream passes only while those of its window that are settled, and a token for each that is not,
// leave it one. So a window costs at most the quota and n * (c - 1), where n are under way at once.
func (s *streams) mustOverspendOnce(t *testing.T, quota int64, window time.Duration) {
	t.Helper()
	const settledIn, dearest = 2 * time.Second, 2000 // A settlement arrives sooner.
	charged := func(one stream) int64 {
		if one.aborted {
			return 1
		}
		return one.cost
	}
	largest, left := int64(0), int64(0)
	for _, last := range s.passed {
		settled, all, under := int64(1), charged(last), int64(1) // Its own token is reserved.
		for _, one := range s.passed {
			if one.sent.Before(last.head.Add(-window)) || one.head.After(last.sent) {
				continue
			}
			all += charged(one)
			if one.done.Add(settledIn).Before(last.sent) {
				settled += charged(one)
			} else {
				settled++
				under++
			}
		}
		if settled > quota {
			t.Fatalf("seed %d: a stream passed when %d of %d tokens were settled or reserved", s.seed, settled, quota)
		}
		if most := quota + under*(dearest-1); all > most {
			t.Fatalf("seed %d: a window cost %d, with %d streams under way at most %d", s.seed, all, under, most)
		}
		if all > largest {
			largest, left = all, under
		}
	}
	t.Logf("a window cost %d, where %d streams were under way: at most %d", largest, left, quota+left*(dearest-1))
}
