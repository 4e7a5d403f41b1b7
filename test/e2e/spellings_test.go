package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// spelling is a row of the table of spellings.
type spelling struct{ place, said, is string }

func spellings(t *testing.T) (rows []spelling) {
	t.Helper()
	text, err := os.ReadFile("../../shared/spelling/testdata/spellings.txt")
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if line := lines.Text(); line != "" && line[0] != '#' {
			cells := strings.Split(line, " | ")
			rows = append(rows, spelling{strings.TrimSpace(cells[0]),
				strings.ReplaceAll(strings.TrimSpace(cells[1]), `\t`, "\t"), strings.TrimSpace(cells[2])})
		}
	}
	return rows
}

// raw returns the request of a row, byte by byte as a client can write it.
func (s spelling) raw(method, prefix string) string {
	target, headers := prefix, ""
	switch s.place {
	case "query":
		target += s.said
	case "path":
		target = s.said
	default:
		for _, header := range strings.Split(s.said, "¶") {
			headers += strings.TrimLeft(header, " ") + "\r\n"
		}
	}
	return method + " " + target + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" + headers + "\r\n"
}

// exchange sends bytes and returns the status and the body.
func exchange(t *testing.T, address, raw string) (status int, body string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, raw); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text)
}

// inGo answers with its reading of a request: the key at each place, and the path.
var inGo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") {
		token = ""
	}
	cookie := ""
	if c, err := r.Cookie("session"); err == nil {
		cookie = c.Value
	}
	fmt.Fprintf(w, "header=%s\nauthorization=%s\ncookie=%s\nquery=%s\npath=%s\n", r.Header.Get("X-Api-Key"),
		strings.TrimSpace(token), strings.TrimSpace(cookie), r.URL.Query().Get("key"), r.URL.Path)
})

// inPython is a server by the rules of WSGI, with cookies as http.cookies reads them.
const inPython = `
import sys
from http.cookies import SimpleCookie
from urllib.parse import parse_qs
from wsgiref.simple_server import make_server, WSGIRequestHandler
def app(env, start):
    scheme, _, token = env.get('HTTP_AUTHORIZATION', '').partition(' ')
    try:
        cookie = SimpleCookie(env.get('HTTP_COOKIE', '')).get('session')
    except Exception:
        cookie = None
    start('200 OK', [('Content-Type', 'text/plain; charset=latin-1')])
    return [('header=%s\nauthorization=%s\ncookie=%s\nquery=%s\npath=%s\n' % (
        env.get('HTTP_X_API_KEY', '').strip(), token.strip() if scheme.lower() == 'bearer' else '',
        cookie.value if cookie else '', parse_qs(env.get('QUERY_STRING', '')).get('key', [''])[-1],
        env['PATH_INFO'])).encode('latin-1', 'replace')]
class Quiet(WSGIRequestHandler):
    def log_message(self, *args): pass
make_server('127.0.0.1', int(sys.argv[1]), app, handler_class=Quiet).serve_forever()
`

// inNode is a server of Node's http. Cookies are read as the module cookie reads them, and the path
// as URL does, decoded.
const inNode = `
const decoded = (text, decode) => { try { return decode(text) } catch { return text } };
require("node:http").createServer((request, response) => {
  const [scheme, token = ""] = (request.headers.authorization ?? "").split(/ +(.*)/s);
  const cookies = {};
  for (const pair of (request.headers.cookie ?? "").split(";")) {
    const at = pair.indexOf("="), name = pair.slice(0, at).trim();
    if (at < 0 || name in cookies) continue;
    cookies[name] = decoded(pair.slice(at + 1).trim().replace(/^"(.*)"$/, "$1"), decodeURIComponent);
  }
  const url = new URL("http://h" + request.url);
  response.setHeader("content-type", "text/plain; charset=utf-8");
  response.end("header=" + (request.headers["x-api-key"] ?? "") +
    "\nauthorization=" + (scheme.toLowerCase() === "bearer" ? token.trim() : "") +
    "\ncookie=" + (cookies.session ?? "") +
    "\nquery=" + (url.searchParams.get("key") ?? "") +
    "\npath=" + decoded(url.pathname, decodeURI) + "\n");
}).listen(Number(process.argv[2]), "127.0.0.1");
`

// startServer runs a server of another language, whose last argument is the port to listen on, and
// waits until it listens.
func startServer(t *testing.T, program, name, source string) (address string) {
	t.Helper()
	port, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(program, file, fmt.Sprint(port))
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	address = fmt.Sprintf("127.0.0.1:%d", port)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := stack.Await(ctx, name+" to listen", func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			conn.Close()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return address
}

// The table of spellings through a real Envoy: each row is the caller or the path that it says. A
// request that a server in Go, Python or Node reads as one of the caller K, or of the path /login,
// has been counted as that, or was refused.
func TestSpellingsBeforeRealServers(t *testing.T) {
	t.Parallel()
	policies := `
version: weir/v1
identity: {consumer: [SOURCE]}
policies:
  - {name: p, match: {methods: [POST], paths: [/counted]}, partition: [consumer], limit: {quota: 1, window: 24h},
     mode: local}
  - {name: l, match: {methods: [POST], paths: [/login]}, partition: [], limit: {quota: 1, window: 24h}, mode: local}
`
	sources := map[string]string{"header": "{header: x-api-key}", "authorization": "{header: authorization}",
		"cookie": "{cookie: session}", "query": "{query: key}", "path": "{header: x-unused}"}
	cache, err := stack.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	servers := []string{
		startServer(t, "python3", "server.py", inPython),
		startServer(t, filepath.Join(cache, "clients", "node"), "server.cjs", inNode),
	}
	for _, place := range []string{"header", "authorization", "cookie", "query", "path"} {
		w := start(t, setup{embedded: true, policies: strings.Replace(policies, "SOURCE", sources[place], 1),
			handler: all(t, servers)})
		address := strings.TrimPrefix(w.envoys[0].URL(), "http://")
		first, ours := true, place+"=K\n"
		if place == "path" {
			ours = "path=/login\n"
		}
		for _, row := range spellings(t) {
			if row.place != place {
				continue
			}
			if first {
				if status, _ := exchange(t, address, row.raw("POST", "/counted")); status != 200 {
					t.Fatalf("%s: the plain spelling gets %d", place, status)
				}
				first = false
				_, read := exchange(t, address, row.raw("GET", "/free"))
				if n := strings.Count(read, ours); n != 3 {
					t.Fatalf("%s: %d of three servers read the plain spelling:\n%s", place, n, read)
				}
			}
			status, _ := exchange(t, address, row.raw("POST", "/counted"))
			want := map[string]int{"one": 429, "several": 400, "envoy": 400, "other": 200, "absent": 200}[row.is]
			if row.is == "other" && status == 429 { // Two rows can be one other caller.
				status = 200
			}
			if status != want {
				t.Errorf("%s %q, which is %s: %d, want %d", place, row.said, row.is, status, want)
			}
			if row.is != "other" && row.is != "absent" {
				continue
			}
			_, read := exchange(t, address, row.raw("GET", "/free"))
			if strings.Contains(read, ours) {
				t.Errorf("%s %q is %s, and a server reads\n%s", place, row.said, row.is, read)
			}
		}
	}
}

// all answers with the readings of a request by a server in Go and by servers in other languages.
func all(t *testing.T, servers []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inGo(w, r)
		raw := "GET " + r.RequestURI + " HTTP/1.0\r\n"
		for name, values := range r.Header {
			for _, value := range values {
				raw += name + ": " + value + "\r\n"
			}
		}
		for _, server := range servers {
			pass(t, w, server, raw)
		}
	})
}

// pass sends bytes to a server and writes the body of its answer.
func pass(t *testing.T, w io.Writer, server, raw string) {
	conn, err := net.Dial("tcp", server)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, raw+"\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Error(err)
		return
	}
	defer answer.Body.Close()
	_, _ = io.Copy(w, answer.Body)
}

// Methods have one spelling: with HTTP/2 a client may write post, and servers by the rules of WSGI
// take it for POST.
func TestMethodsHaveOneSpelling(t *testing.T) {
	t.Parallel()
	w := start(t, setup{embedded: true, policies: `
version: weir/v1
policies:
  - {name: p, match: {methods: [POST], paths: [/login]}, partition: [], limit: {quota: 1, window: 24h}, mode: local}
`})
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: &h2}}
	for i, method := range []string{"POST", "post", "Post", "POST", "GET", "get"} {
		request, err := http.NewRequest(method, w.envoys[0].URL()+"/login", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		limited := i > 0 && strings.EqualFold(method, "POST")
		if got := answer.StatusCode == http.StatusTooManyRequests; got != limited {
			t.Errorf("%s gets %d", method, answer.StatusCode)
		}
	}
}
