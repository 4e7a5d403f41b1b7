package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// flightUpstream answers in all the ways in which a request can end, and counts its open requests.
type flightUpstream struct {
	now, most, tries atomic.Int64
	// seen gets the path of each request that has arrived.
	seen chan string
}

func (u *flightUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for n, most := u.now.Add(1), u.most.Load(); n > most && !u.most.CompareAndSwap(most, n); most = u.most.Load() {
	}
	defer u.now.Add(-1)
	select {
	case u.seen <- r.URL.Path:
	default:
	}
	switch r.URL.Path {
	case "/hang", "/slow", "/stream":
		if f, ok := w.(http.Flusher); ok && r.URL.Path == "/stream" {
			w.Header().Set("content-type", "application/grpc")
			w.WriteHeader(http.StatusOK)
			f.Flush()
		}
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			<-r.Context().Done()
		}
	case "/torn":
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case "/reset":
		panic(http.ErrAbortHandler)
	case "/retry":
		if u.tries.Add(1)%3 != 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	case "/redirect":
		w.Header().Set("location", "http://"+r.Host+"/ok")
		w.WriteHeader(http.StatusFound)
	case "/socket":
		socket(w)
	}
}

// socket switches protocols and echoes all bytes, until either side closes.
func socket(w http.ResponseWriter) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
	_, _ = io.Copy(conn, buffered)
}

// manyEnds gives Envoy's configuration routes with a time-out, retries, redirects and WebSockets,
// and a filter that answers itself.
func manyEnds(config string) string {
	const route = "                        - match: {prefix: /}\n"
	for _, r := range []string{
		"{path: /slow}, route: {cluster: upstream, timeout: 0.2s}",
		"{path: /hang}, route: {cluster: upstream, timeout: 60s}",
		"{path: /stream}, route: {cluster: upstream, timeout: 0s}",
		"{path: /retry}, route: {cluster: upstream, retry_policy: {retry_on: 5xx, num_retries: 2}}",
		"{path: /redirect}, route: {cluster: upstream, internal_redirect_policy: {max_internal_redirects: 1}}",
	} {
		config = strings.Replace(config, route, "                        - {match: "+r+"}\n"+route, 1)
	}
	const router = "                  - name: envoy.filters.http.router\n"
	config = strings.Replace(config, router, `                  - name: envoy.filters.http.fault
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault
                      abort: {header_abort: {}, percentage: {numerator: 100}}
`+router, 1)
	return strings.Replace(config, "                http_filters:\n",
		"                upgrade_configs: [{upgrade_type: websocket}]\n                http_filters:\n", 1)
}

const threeInFlight = `{"policyset": {"version": "weir/v1", "policies": [
	{"name": "places", "partition": [], "limit": {"in_flight": 3}, "mode": "local"}]}}`

const threePermits = `
version: weir/v1
policies:
  - {name: places, partition: [], limit: {in_flight: 3}, mode: leased, on_failure: [deny]}
`

// awaitInFlight waits until the first Envoy's gauge shows want requests in flight.
func (w *world) awaitInFlight(want int) {
	w.t.Helper()
	w.await(fmt.Sprint(want, " in flight"), func(ctx context.Context) error {
		stats, err := w.envoys[0].Admin(ctx, "/stats/prometheus?filter=in_flight")
		if err != nil {
			return err
		}
		if line := `weir_in_flight_requests{weir_policy="places"} ` + strconv.Itoa(want) + "\n"; !strings.Contains(string(stats), line) {
			return errors.New("the gauges are " + string(stats))
		}
		return nil
	})
}

// However a request ends, its place is free then: of three places none is missing after each way
// has been taken five times, and the upstream never has more than three.
func TestEveryEndOfAStreamFreesItsPlace(t *testing.T) {
	t.Parallel()
	up := &flightUpstream{seen: make(chan string, 100)}
	w := start(t, setup{alone: true, workers: 2, handler: up, plugin: strings.ReplaceAll(threeInFlight, "\n\t", " "),
		rewrite: manyEnds})
	w.everyEnd(up)
}

// The same holds of places over all Envoys: at rest the control plane knows of no permit that a
// request holds.
func TestEveryEndOfAStreamFreesItsPermit(t *testing.T) {
	t.Parallel()
	up := &flightUpstream{seen: make(chan string, 100)}
	w := start(t, setup{envoys: 1, workers: 2, handler: up, policies: threePermits, rewrite: manyEnds})
	w.everyEnd(up)
	w.awaitUsed(3, 0)
}

// everyEnd has requests end in each way, and waits each time until none is in flight.
func (w *world) everyEnd(up *flightUpstream) {
	t := w.t
	url := w.envoys[0].URL()
	status := func(path string, want int, headers ...string) func() {
		return func() {
			if got := ask(t, "GET", url+path, headers...).status; got != want {
				t.Errorf("%s: %d, want %d", path, got, want)
			}
		}
	}
	for _, way := range []struct {
		name string
		end  func()
	}{
		{"an answer", status("/ok", 200)},
		{"a reset by the upstream", status("/reset", 503)},
		{"a time-out", status("/slow", 504)},
		{"retries", status("/retry", 200)},
		{"an internal redirect", status("/redirect", 200)},
		{"an answer by another filter", status("/ok", 418, "x-envoy-fault-abort-request", "418")},
		{"a client that goes away", func() { w.abort(up, "/hang", false) }},
		{"a stream over HTTP/2 that is reset", func() { w.abort(up, "/stream", true) }},
		{"a WebSocket", func() { w.upgrade() }},
		{"requests one behind the other", func() { w.pipeline() }},
	} {
		t.Run(way.name, func(t *testing.T) {
			for range 5 {
				way.end()
			}
			w.awaitInFlight(0)
		})
	}
	if most := up.most.Load(); most > 3 {
		t.Errorf("%d at once at the upstream", most)
	}
}

// abort sends a request that is not answered, or not to its end, waits until it is in flight, and
// goes away.
func (w *world) abort(up *flightUpstream, path string, h2 bool) {
	w.t.Helper()
	for len(up.seen) > 0 {
		<-up.seen
	}
	ctx, cancel := context.WithCancel(w.within(patience))
	defer cancel()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	if h2 {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	body, more := io.Pipe()
	defer more.Close()
	request, err := http.NewRequestWithContext(ctx, "POST", w.envoys[0].URL()+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		r, err := transport.RoundTrip(request)
		if err == nil {
			_, err = io.Copy(io.Discard, r.Body)
			r.Body.Close()
		}
		ended <- err
	}()
	if _, err := io.WriteString(more, "x"); err != nil {
		w.t.Error(err)
	}
	select {
	case <-up.seen:
	case <-ctx.Done():
		w.t.Fatalf("%s has not arrived", path)
	}
	w.awaitInFlight(1)
	cancel()
	_ = more.CloseWithError(context.Canceled) // The transport waits for the body that it reads.
	if err := <-ended; err == nil {
		w.t.Errorf("%s was answered", path)
	}
}

func (w *world) dial() (net.Conn, *bufio.Reader) {
	w.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.envoys[0].URL(), "http://"))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

// upgrade opens a WebSocket, which is in flight until it closes.
func (w *world) upgrade() {
	w.t.Helper()
	conn, in := w.dial()
	fmt.Fprint(conn, "GET /socket HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
	if r, err := http.ReadResponse(in, nil); err != nil || r.StatusCode != http.StatusSwitchingProtocols {
		w.t.Fatalf("%v %v", r, err)
	}
	fmt.Fprint(conn, "hello")
	if _, err := io.ReadFull(in, make([]byte, 5)); err != nil {
		w.t.Error(err)
	}
	w.awaitInFlight(1)
	conn.Close()
}

// pipeline sends five requests of one connection before it reads the first answer.
func (w *world) pipeline() {
	w.t.Helper()
	conn, in := w.dial()
	defer conn.Close()
	fmt.Fprint(conn, strings.Repeat("GET /ok HTTP/1.1\r\nhost: a\r\n\r\n", 5))
	for i := range 5 {
		r, err := http.ReadResponse(in, nil)
		if err != nil || r.StatusCode != 200 {
			w.t.Fatalf("answer %d: %v %v", i, r, err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
	}
}
