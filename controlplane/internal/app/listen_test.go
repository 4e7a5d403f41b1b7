package app_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/access/certs"
	"github.com/weir-proxy/weir/controlplane/internal/app"
	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
	"github.com/weir-proxy/weir/test/support/certtest"
	"github.com/weir-proxy/weir/test/support/logtest"
)

// bare are settings with nothing but a token.
func bare(t *testing.T) settings.Settings {
	return settings.Settings{
		Listen: "127.0.0.1:0", DataDir: t.TempDir(), LostFill: 50,
		Tokens: auth.Tokens{{Name: "all", Role: auth.Admin, Sum: auth.Sum(secret)}},
	}
}

// speak changes the plane's client to TLS, and where it calls.
func (p *plane) speak(address net.Addr, config *tls.Config) {
	p.http.CloseIdleConnections()
	p.url = "https://" + address.String()
	p.http.Transport = &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, DisableKeepAlives: true}
}

func load(t *testing.T, files certtest.Files) *certs.Pair {
	t.Helper()
	pair, err := certs.Load(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// People and nodes have doors of their own; the nodes' wants a certificate and a token.
func TestNodesNeedACertificate(t *testing.T) {
	ours, others := certtest.New(t, "ours"), certtest.New(t, "others")
	pool, err := certs.LoadPool(ours.Path)
	if err != nil {
		t.Fatal(err)
	}
	s := bare(t)
	s.Listeners = settings.Listeners{TLS: load(t, ours.Issue(t.TempDir(), "weir")), Node: "127.0.0.1:0",
		NodeClients: pool}
	p := startWith(t, s, slog.New(slog.DiscardHandler))
	const poll = "/node/v1/snapshot?node=n&after=1"
	p.speak(p.app.Addr(), ours.Client())
	p.until("/readyz", 200)
	p.put(1)
	if a := p.do("GET", poll, nil); a.status != 404 {
		t.Errorf("nodes' path at the people's door: %d", a.status)
	}
	nodes := p.app.AddrOf("nodes")
	p.speak(nodes, ours.Client(ours.Issue(t.TempDir(), "envoy")))
	if a := p.do("GET", poll, nil); a.status != 204 {
		t.Errorf("with certificate and token: %d", a.status)
	}
	if a := p.do("GET", poll, nil, "Authorization", "Bearer of-nothing-that-is-known"); a.status != 401 {
		t.Errorf("with a certificate and a wrong token: %d", a.status)
	}
	if a := p.do("GET", "/v1/policyset", nil); a.status != 404 {
		t.Errorf("people's path at the nodes' door: %d", a.status)
	}
	for name, config := range map[string]*tls.Config{
		"without a certificate":         ours.Client(),
		"with one of another authority": ours.Client(others.Issue(t.TempDir(), "envoy")),
	} {
		p.speak(nodes, config)
		if a, err := p.try("GET", poll, nil); err == nil || !strings.Contains(err.Error(), "tls: ") {
			t.Errorf("%s: %d, %v", name, a.status, err)
		}
	}
}

// A certificate is renewed by writing its files. Files that make no sense are not used.
func TestCertificatesAreRenewed(t *testing.T) {
	before, after := certtest.New(t, "before"), certtest.New(t, "after")
	dir := t.TempDir()
	files := before.Issue(dir, "weir")
	var log logtest.Buffer
	s := bare(t)
	s.Listeners.TLS = load(t, files)
	p := startWith(t, s, slog.New(slog.NewTextHandler(&log, nil)))
	ask := func(authority *certtest.Authority) error {
		p.speak(p.app.Addr(), authority.Client())
		_, err := p.try("GET", "/healthz", nil)
		return err
	}
	if err := ask(before); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files.Cert, []byte("half a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := ask(before); err != nil {
			t.Errorf("while the file is broken: %v", err)
		}
	}
	if n := strings.Count(log.String(), "cannot use a certificate"); n != 1 {
		t.Errorf("the log says %d times that it is broken:\n%s", n, log.String())
	}
	after.Issue(dir, "weir")
	if err := ask(after); err != nil {
		t.Errorf("after the renewal: %v", err)
	}
	if err := ask(before); err == nil {
		t.Error("the old certificate is still shown")
	}
	if !strings.Contains(log.String(), "a certificate has changed and is in use") {
		t.Error(log.String())
	}
}

// Clients that send their request drop by drop are cut off, and others are served meanwhile.
func TestSlowClientsAreCutOff(t *testing.T) {
	defer app.Impatient(300*time.Millisecond, 600*time.Millisecond)()
	p := start(t, t.TempDir(), "")
	address := strings.TrimPrefix(p.url, "http://")
	var slow sync.WaitGroup
	for _, begin := range []string{
		"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ",
		"PUT /v1/policyset HTTP/1.1\r\nHost: x\r\nIf-Match: *\r\nAuthorization: Bearer " + secret +
			"\r\nContent-Length: 100000\r\n\r\n",
		"POST /node/v1/leases HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + secret +
			"\r\nContent-Length: 10000\r\n\r\n",
		"",
	} {
		for range 20 {
			slow.Go(func() {
				if err := dribble(address, begin); err != nil {
					t.Errorf("%.20q: %v", begin, err)
				}
			})
		}
	}
	for range 50 {
		if a := p.do("GET", "/healthz", nil); a.status != 200 {
			t.Errorf("another client gets %d", a.status)
		}
	}
	slow.Wait()
}

// dribble sends a beginning, and then a byte at a time until the other end has enough. The error
// says that it does not.
func dribble(address, begin string) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	cut := make(chan struct{})
	go func() { // Until the server closes; it may say why before.
		io.Copy(io.Discard, conn)
		close(cut)
	}()
	if _, err := conn.Write([]byte(begin)); err != nil {
		return err
	}
	ticker, limit := time.NewTicker(50*time.Millisecond), time.After(20*time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-cut:
			return nil
		case <-limit:
			return fmt.Errorf("it is still served")
		case <-ticker.C:
			if begin != "" {
				conn.Write([]byte("x"))
			}
		}
	}
}

// Operators and nodes are served however many connections strangers open and keep: on new
// connections and on their old connections. The log says it once, and the metrics count the
// connections.
func TestStrangersLockNoCallerOut(t *testing.T) {
	s := bare(t)
	s.Limits.Connections = 20
	var log logtest.Buffer
	p := startWith(t, s, slog.New(slog.NewTextHandler(&log, nil)))
	p.until("/readyz", http.StatusOK)
	polled := make(chan answer, 1)
	go func() {
		a, _ := p.try("GET", "/node/v1/snapshot?node=n&boot=1&after=0&wait=25s", nil)
		polled <- a
	}()
	p.until("/v1/nodes", http.StatusOK, `"id":"n"`)
	for range 200 {
		conn, err := net.Dial("tcp", p.app.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if got := request(t, conn); !strings.HasPrefix(got, "HTTP/1.1 200") {
			t.Fatalf("%q", got)
		}
		if a := p.do("GET", "/v1/nodes", nil, "Connection", "close"); a.status != http.StatusOK {
			t.Fatalf("an operator gets %d", a.status)
		}
	}
	p.put(10)
	if a := <-polled; a.status != http.StatusOK {
		t.Errorf("the node's long poll ends with %d", a.status)
	}
	p.until("/metrics", http.StatusOK, `weir_connections{listener="all",token="none"} 1`)
	if got := strings.Count(log.String(), "the maximum of connections is reached"); got != 1 {
		t.Errorf("the log says it %d times:\n%s", got, log.String())
	}
	if a, err := p.try("GET", "/v1/nodes", nil, "Authorization", "Bearer wrong"); err != nil ||
		a.status != http.StatusUnauthorized || !a.closes {
		t.Errorf("a wrong token: %d, %v; the connection ends: %v", a.status, err, a.closes)
	}
}

func request(t *testing.T, conn net.Conn) string {
	t.Helper()
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1024)
	n, err := conn.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// Profiles are at a door of their own, and nowhere without it.
func TestProfilesHaveADoorOfTheirOwn(t *testing.T) {
	s := bare(t)
	s.Listeners.Debug = "127.0.0.1:0"
	p := startWith(t, s, slog.New(slog.DiscardHandler))
	if a := p.do("GET", "/debug/pprof/goroutine?debug=1", nil); a.status != 404 {
		t.Errorf("at the usual door: %d", a.status)
	}
	p.url = "http://" + p.app.AddrOf("debug").String()
	if a := p.do("GET", "/debug/pprof/goroutine?debug=1", nil); a.status != 200 ||
		!strings.Contains(string(a.body), "goroutine profile") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if start(t, t.TempDir(), "").app.AddrOf("debug") != nil {
		t.Error("it is open without being asked for")
	}
}

// A token is put into the file, used, and taken out again while everything runs.
func TestTheTokensFileIsFollowed(t *testing.T) {
	path := t.TempDir() + "/tokens"
	write := func(lines string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# none yet")
	s := bare(t)
	s.TokensFile = path
	p := startWith(t, s, slog.New(slog.DiscardHandler))
	fresh := auth.NewSecret()
	until := func(status int) {
		t.Helper()
		deadline := time.Now().Add(20 * time.Second)
		for p.do("GET", "/v1/nodes", nil, "Authorization", "Bearer "+fresh).status != status {
			if time.Now().After(deadline) {
				t.Fatalf("it does not become %d", status)
			}
			time.Sleep(100 * time.Millisecond) // Wrong tokens have a rate.
		}
	}
	until(401)
	write(auth.Token{Name: "ci", Role: auth.Viewer, Sum: auth.Sum(fresh),
		Expires: time.Now().Add(240 * time.Hour)}.Line())
	until(200)
	if a := p.until("/metrics", 200, "\nweir_store_poll_age_seconds 0."); !strings.Contains(string(a.body),
		"\nweir_token_expires_seconds{name=\"ci\"} 86") ||
		!strings.Contains(string(a.body), `weir_auth_failures_total{reason="unknown"}`) {
		t.Errorf("the metrics lack it:\n%s", a.body)
	}
	write("# none")
	until(401)
}
