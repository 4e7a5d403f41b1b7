package native

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

const hostileRules = `
version: weir/v1
identity: {consumer: [{header: x-key}]}
policies:
  - name: strict
    match: {paths: [/strict/**]}
    partition: [consumer]
    limit: {quota: 90000, window: 24h}
    mode: strict
  - {name: once, match: {paths: [/once]}, partition: [consumer], limit: {quota: 1, window: 24h}, mode: strict}
  - {name: local, match: {paths: [/local]}, partition: [consumer], limit: {quota: 1, window: 24h}, mode: local}
  - {name: places, match: {paths: [/place]}, partition: [], limit: {in_flight: 3}, mode: local}
  - name: probe
    match: {headers: [{name: x-probe, present: true}]}
    partition: []
    limit: {quota: 100000, window: 24h}
    mode: local
`

// hostile allows HTTP/1.0, WebSockets and little buffers.
func hostile(config string) string {
	for from, to := range map[string]string{
		"                stat_prefix: ingress\n": "                stat_prefix: ingress\n" +
			"                http_protocol_options: {accept_http_10: true}\n" +
			"                upgrade_configs: [{upgrade_type: websocket}]\n",
		"    - name: ingress\n": "    - name: ingress\n      per_connection_buffer_limit_bytes: 4096\n",
	} {
		if strings.Count(config, from) != 1 {
			panic("envoy.yaml must have one line " + from)
		}
		config = strings.Replace(config, from, to, 1)
	}
	return config
}

// attacks returns bytes of clients that keep to no rule, by name. The client waits between the
// parts of an attack.
func attacks() map[string][]string {
	all, paths := map[string][]string{}, []string{"/strict", "/once"}
	if *full {
		paths = append(paths, "/local", "/free")
	}
	big := strings.Repeat("x", 300_000)
	for _, path := range paths {
		line := func(method, version, header, body string) string {
			return fmt.Sprintf("%s %s HTTP/%s\r\nx-key: KEY\r\n%s\r\n%s", method, path, version, header, body)
		}
		const last, chunked = "host: h\r\nconnection: close\r\n", "transfer-encoding: chunked\r\n"
		const long, one = "content-length: 300000\r\n", "content-length: 1\r\n"
		const smoke = "host: h\r\nconnection: upgrade, close\r\nupgrade: smoke\r\n"
		const h2c = "upgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAA\r\n"
		const grpc = "content-type: application/grpc\r\ncontent-length: 0\r\n"
		get, kept := line("GET", "1.1", last, ""), line("GET", "1.0", "connection: keep-alive\r\n", "")
		const socket = "host: h\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
		for name, parts := range map[string][]string{
			"":                              {get}, // It comes first, and uses up the quota of 1.
			"HTTP/1.0":                      {line("GET", "1.0", "", "")},
			"HTTP/1.0 with keep-alive":      {kept + line("GET", "1.0", "", "")},
			"HTTP/1.1 without host":         {line("GET", "1.1", "connection: close\r\n", "")},
			"HTTP/9.9":                      {line("GET", "9.9", last, "")},
			"HTTP/0.9":                      {"GET " + path + "\r\n\r\n"},
			"HEAD":                          {line("HEAD", "1.1", last, "")},
			"TRACE":                         {line("TRACE", "1.1", last, "")},
			"an unknown method":             {line("BREW", "1.1", last, "")},
			"CONNECT":                       {"CONNECT h:80 HTTP/1.1\r\nhost: h:80\r\nconnection: close\r\n\r\n"},
			"a WebSocket":                   {line("GET", "1.1", socket, ""), "hello"},
			"another protocol":              {line("GET", "1.1", smoke, "")},
			"h2c by an upgrade":             {line("GET", "1.1", last+h2c, "")},
			"a body above the buffer":       {line("POST", "1.1", last+long, big)},
			"a slow body above the buffer":  {line("POST", "1.1", last+long, ""), big[:150_000], big[150_000:]},
			"a body without an end":         {line("POST", "1.1", last+long, big[:1000])},
			"chunks with trailers":          {line("POST", "1.1", last+chunked, "3\r\nabc\r\n0\r\nx-key: b\r\n\r\n")},
			"a broken chunk":                {line("POST", "1.1", last+chunked, "3\r\nabc\r\n"), "zz\r\n"},
			"two lengths":                   {line("POST", "1.1", last+one+"content-length: 2\r\n", "ab")},
			"a length and chunks":           {line("POST", "1.1", last+one+chunked, "0\r\n\r\n")},
			"expect 100-continue":           {line("POST", "1.1", last+"expect: 100-continue\r\n"+one, ""), "a"},
			"a header with a zero":          {line("GET", "1.1", last+"x-zero: a\x00b\r\n", "")},
			"a header with all other bytes": {line("GET", "1.1", last+"x-bytes: \x80\xff\xc3\x28\r\n", "")},
			"two keys":                      {line("GET", "1.1", last+"x-key: b\r\n", "")},
			"a folded header":               {line("GET", "1.1", last+"x-fold: a\r\n b\r\n", "")},
			"a header of 50 kB":             {line("GET", "1.1", last+"x-long: "+big[:50_000]+"\r\n", "")},
			"a header of 70 kB":             {line("GET", "1.1", last+"x-long: "+big[:70_000]+"\r\n", "")},
			"200 headers":                   {line("GET", "1.1", last+strings.Repeat("x-many: 1\r\n", 200), "")},
			"a path with strange bytes":     {strings.Replace(get, path, path+"/%ff%00;a=b?%zz", 1)},
			"an absolute address":           {strings.Replace(get, path, "http://other"+path, 1)},
			"pipelined requests":            {strings.Repeat(kept, 3) + line("GET", "1.1", last, "")},
			"gRPC over HTTP/1.1":            {line("POST", "1.1", last+grpc, "")},
			"an end in the headers":         {"GET " + path + " HTTP/1.1\r\nhost: h\r\nx-ke"},
		} {
			all[path+": "+name] = parts
		}
	}
	return all
}

// chunk matches the size of a chunk of an answer.
var chunk = regexp.MustCompile("\r\n[0-9a-f]+\r\n")

// left matches the tokens that are left: a request that Envoy ends while it waits may cost one.
var left = regexp.MustCompile(`"strict";r=[0-9]+`)

// attack sends the parts of an attack with a key of its own and returns the lines that come back,
// sorted: the hosts write headers in different orders.
func (w *replay) attack(e *stack.Envoy, parts []string, key string) replayed {
	w.t.Helper()
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", e.Port))
	if err != nil {
		w.t.Error(err)
		return replayed{}
	}
	defer conn.Close()
	go func() {
		for i, part := range parts {
			if i > 0 {
				time.Sleep(30 * time.Millisecond)
			}
			if _, err := io.WriteString(conn, strings.ReplaceAll(part, "x-key: KEY", "x-key: "+key)); err != nil {
				return // Envoy has answered and closed.
			}
		}
	}()
	// An answer comes within a second, if any, and has ended when nothing more comes.
	var got []byte
	buffer, patience := make([]byte, 64<<10), time.Second
	for err == nil {
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		var n int
		n, err = conn.Read(buffer)
		got, patience = append(got, buffer[:n]...), 250*time.Millisecond
	}
	text := chunk.ReplaceAllString(strings.ReplaceAll(string(got), `"`+key+`"`, `"KEY"`), "")
	text = left.ReplaceAllString(text, `"strict";r=N`)
	var lines []string
	for line := range strings.SplitSeq(text, "\r\n") {
		if !strings.HasPrefix(line, "date: ") && !strings.HasPrefix(line, "x-envoy-upstream-service-time: ") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return w.read(lines)
}

// Clients that keep to no rule of HTTP get the same answers with both hosts.
func TestBothHostsAnswerHostileClientsAlike(t *testing.T) {
	w := startReplay(t, hostile)
	w.apply([]byte(hostileRules), "probe")
	answered := 0
	all := attacks()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		var got [2]replayed
		var both sync.WaitGroup
		for i, e := range w.envoys {
			both.Go(func() { got[i] = w.attack(e, all[name], [2]string{"w", "n"}[i]) })
		}
		both.Wait()
		problem := got[0].compare(got[1])
		late := metric(t, w.envoys[0], "requests.unanswered") + metric(t, w.envoys[1], "requests.unanswered")
		switch {
		case problem != "" && late > 0: // The ladder has decided, on a busy machine.
			t.Logf("%s: %s; the control plane was late for %d requests", name, problem, late)
		case problem != "":
			t.Errorf("%s: %s\nwith Wasm %s\nnatively  %s", name, problem, got[0].text, got[1].text)
		}
		if strings.Contains(got[1].text, "HTTP/1.") {
			answered++
		}
	}
	t.Logf("%d of %d attacks have an answer", answered, len(all))
	if answered < len(all)*3/4 {
		t.Error("too few attacks have an answer")
	}
	w.leave()
	for _, e := range w.envoys {
		err := stack.Await(t.Context(), "no request to be in flight", func(context.Context) error {
			for _, name := range []string{
				"requests.waiting", "in_flight.requests.weir_policy.places", "policy.places.in_flight.requests",
			} {
				if n := metric(t, e, name); n != 0 {
					return fmt.Errorf("%s is %d", name, n)
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", e.Name, err)
		}
		for _, path := range []string{"/strict", "/place"} {
			if a := w.replay(mustRequest(t, e.URL()+path)); a.status != http.StatusOK {
				t.Errorf("%s: after clients that left %s has the answer %s", e.Name, path, a.text)
			}
		}
	}
	if n := metric(t, w.envoys[1], "faults"); n != 0 {
		t.Errorf("the filter had %d faults", n)
	}
}

// leave begins many requests, each of which leaves at once, or while it waits, or within its body.
func (w *replay) leave() {
	w.t.Helper()
	for n := range 300 {
		for _, e := range w.envoys {
			conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", e.Port))
			if err != nil {
				w.t.Fatal(err)
			}
			path := []string{"/strict", "/place", "/once", "/free"}[n%4]
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nhost: h\r\nx-key: leaver\r\ncontent-length: 100000\r\n\r\nabc", path)
			time.Sleep(time.Duration(n/4%5) * 300 * time.Microsecond)
			if n%3 == 0 {
				_ = conn.(*net.TCPConn).SetLinger(0) // A reset.
			}
			conn.Close()
		}
	}
}

func mustRequest(t *testing.T, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
