package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// load is a number of clients, each with a connection of its own.
type load struct {
	url string
	// request makes the i-th request; nil is POST url.
	request func(i int) *http.Request
	clients int
	// rate is in requests a second over all clients; 0 is as fast as answers come.
	rate float64
	// The load ends after total requests, or after the time during, or when its context does. 0 is
	// never.
	total  int
	during time.Duration
	// keep keeps all answers; without it the load keeps one answer for each status.
	keep bool
	// note, if not nil, is given the answer to each request by its client.
	note func(i int, a answer)
}

// answer is one response.
type answer struct {
	http.Header
	status int
	body   string
	at     time.Time
	// took is how long the answer was waited for.
	took time.Duration
}

// tally is the outcome of a load.
type tally struct {
	// first is when the first request was sent, last when the last answer came.
	first, last time.Time
	statuses    map[int]int64
	// samples has an answer for each status, answers all of them if the load keeps them.
	samples map[int]answer
	answers []answer
	// sent is when each request left its client.
	sent   []time.Time
	errors []error
}

// run applies the load and waits for its end.
func (l load) run(ctx context.Context) tally {
	if l.during > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.during)
		defer cancel()
	}
	transport := &http.Transport{MaxIdleConnsPerHost: l.clients, MaxConnsPerHost: l.clients, DisableCompression: true}
	defer transport.CloseIdleConnections()
	now := time.Now()
	all := tally{first: now, last: now, statuses: map[int]int64{}, samples: map[int]answer{}}
	var mu sync.Mutex
	var clients sync.WaitGroup
	for i := range l.clients {
		clients.Go(func() {
			mine := l.client(ctx, &http.Client{Transport: transport, Timeout: 30 * time.Second}, i, all.first)
			mu.Lock()
			defer mu.Unlock()
			all.add(mine)
		})
	}
	clients.Wait()
	return all
}

func (all *tally) add(t tally) {
	for status, n := range t.statuses {
		all.statuses[status] += n
		all.samples[status] = t.samples[status]
	}
	all.answers = append(all.answers, t.answers...)
	all.sent = append(all.sent, t.sent...)
	all.errors = append(all.errors, t.errors...)
	if t.last.After(all.last) {
		all.last = t.last
	}
}

// client sends every l.clients-th request, each at its time or, if that has passed, at once.
func (l load) client(ctx context.Context, client *http.Client, i int, begin time.Time) tally {
	t := tally{statuses: map[int]int64{}, samples: map[int]answer{}}
	for n := i; l.total == 0 || n < l.total; n += l.clients {
		if l.rate > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(begin.Add(time.Duration(float64(n) / l.rate * float64(time.Second))))):
			}
		}
		if ctx.Err() != nil {
			return t
		}
		t.sent = append(t.sent, time.Now())
		a, err := send(client, l.make(n))
		if err != nil {
			t.errors = append(t.errors, fmt.Errorf("sent at %v: %w", t.sent[len(t.sent)-1].UTC(), err))
			continue
		}
		if l.note != nil {
			l.note(n, a)
		}
		if l.keep {
			t.answers = append(t.answers, a)
		}
		t.statuses[a.status]++
		t.samples[a.status] = a
		t.last = a.at
	}
	return t
}

func (l load) make(n int) *http.Request {
	if l.request != nil {
		return l.request(n)
	}
	return request(http.MethodPost, l.url)
}

// request makes a request; header holds names and values in turn.
func request(method, url string, header ...string) *http.Request {
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		panic(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func send(client *http.Client, r *http.Request) (answer, error) {
	begin := time.Now()
	response, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{}, err
	}
	now := time.Now()
	return answer{response.Header, response.StatusCode, string(body), now, now.Sub(begin)}, nil
}

// ask sends one request and returns the answer.
func ask(t *testing.T, method, url string, header ...string) answer {
	t.Helper()
	a, err := send(&http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}},
		request(method, url, header...))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// askInTime asks, and asks once more if the control plane of a busy machine answered too late.
func askInTime(t *testing.T, method, url string, header ...string) (a answer) {
	t.Helper()
	for range 10 {
		if a = ask(t, method, url, header...); !strings.Contains(a.body, "#temporary-reduced-capacity") {
			break
		}
	}
	return a
}

func (t tally) String() string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(t.statuses)) {
		parts = append(parts, fmt.Sprintf("%d × %d", t.statuses[status], status))
	}
	if len(t.errors) > 0 {
		parts = append(parts, fmt.Sprintf("%d errors, the first: %v", len(t.errors), t.errors[0]))
	}
	return fmt.Sprintf("%s in %.2f s", strings.Join(parts, ", "), t.last.Sub(t.first).Seconds())
}

// mustBe fails the test if there was an error or an answer with another status.
func (t tally) mustBe(test *testing.T, statuses ...int) {
	test.Helper()
	if len(t.errors) > 0 {
		test.Errorf("requests failed: %s", t)
		return
	}
	for status, a := range t.samples {
		if !slices.Contains(statuses, status) {
			test.Errorf("an answer was none of %v: %s; a %d says: %s", statuses, t, status, a.body)
		}
	}
}

// refusedByLadder returns the number of kept answers by which the failure ladder has refused.
func (t tally) refusedByLadder() (n int64) {
	for _, a := range t.answers {
		if strings.Contains(a.body, "#temporary-reduced-capacity") {
			n++
		}
	}
	return n
}

// together runs loads at the same time.
func together(ctx context.Context, loads ...load) []tally {
	tallies := make([]tally, len(loads))
	var all sync.WaitGroup
	for i, l := range loads {
		all.Go(func() { tallies[i] = l.run(ctx) })
	}
	all.Wait()
	return tallies
}

// sum joins tallies into one from the first request to the last answer.
func sum(tallies []tally) tally {
	all := tally{first: tallies[0].first, last: tallies[0].last, statuses: map[int]int64{}, samples: map[int]answer{}}
	for _, t := range tallies {
		if t.first.Before(all.first) {
			all.first = t.first
		}
		all.add(t)
	}
	return all
}

// background is a load that runs until end is called.
type background struct {
	cancel context.CancelFunc
	result chan tally
}

func (l load) background(ctx context.Context) *background {
	ctx, cancel := context.WithCancel(ctx)
	b := &background{cancel, make(chan tally, 1)}
	go func() { b.result <- l.run(ctx) }()
	return b
}

func (b *background) end() tally {
	b.cancel()
	return <-b.result
}

// flood sends many requests with little effort, without looking at more than the status. It does
// not pipeline: Envoy closes a connection when it answers a request itself while the next has
// already come.
type flood struct {
	address string
	// path, and header lines that may depend on the number of the request, each ending in \r\n.
	path   string
	header func(i int) string
	total  int
}

const floodClients = 16

// run sends all requests and returns how many answers had which status.
func (f flood) run(t *testing.T) map[int]int {
	t.Helper()
	var mu sync.Mutex
	statuses := map[int]int{}
	var clients sync.WaitGroup
	for i := range floodClients {
		clients.Go(func() {
			mine, err := f.client(i)
			mu.Lock()
			defer mu.Unlock()
			for status, n := range mine {
				statuses[status] += n
			}
			if err != nil {
				t.Errorf("flood: %v", err)
			}
		})
	}
	clients.Wait()
	return statuses
}

func (f flood) client(i int) (map[int]int, error) {
	statuses := map[int]int{}
	conn, err := net.Dial("tcp", f.address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	for n := i; n < f.total; n += floodClients {
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return statuses, err
		}
		header := ""
		if f.header != nil {
			header = f.header(n)
		}
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nhost: flood\r\ncontent-length: 0\r\n%s\r\n", f.path,
			header); err != nil {
			return statuses, err
		}
		response, err := http.ReadResponse(in, nil)
		if err != nil {
			return statuses, fmt.Errorf("request %d: %w", n, err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return statuses, err
		}
		statuses[response.StatusCode]++
	}
	return statuses, nil
}
