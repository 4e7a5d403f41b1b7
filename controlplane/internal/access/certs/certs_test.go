package certs_test

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/access/certs"
	"github.com/weir-proxy/weir/test/support/certtest"
	"github.com/weir-proxy/weir/test/support/logtest"
)

// world is a server that wants certificates of its clients, and the file of their authorities.
type world struct {
	t            *testing.T
	server       *certtest.Authority
	old, other   *certtest.Authority
	file         string
	pool         *certs.Pool
	address      string
	oldClient    *tls.Config
	othersClient *tls.Config
}

var quiet = slog.New(slog.DiscardHandler)

func start(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, server: certtest.New(t, "server"), old: certtest.New(t, "old"), other: certtest.New(t, "other"),
		file: filepath.Join(t.TempDir(), "clients.pem")}
	w.write(w.text(w.old) + w.text(w.other))
	own := w.server.Issue(t.TempDir(), "control-plane")
	pair, err := certs.Load(own.Cert, own.Key)
	if err != nil {
		t.Fatal(err)
	}
	if w.pool, err = certs.LoadPool(w.file); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(w.pool.Guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "served")
	})))
	s.TLS = certs.Server(certs.HTTP1, pair, w.pool, quiet)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	s.StartTLS()
	t.Cleanup(s.Close)
	w.address = s.Listener.Addr().String()
	w.oldClient = w.server.Client(w.old.Issue(t.TempDir(), "envoy-1"))
	w.othersClient = w.server.Client(w.other.Issue(t.TempDir(), "envoy-2"))
	for _, c := range []*tls.Config{w.oldClient, w.othersClient} {
		c.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	}
	return w
}

func (w *world) text(a *certtest.Authority) string {
	w.t.Helper()
	text, err := os.ReadFile(a.Path)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

func (w *world) write(text string) {
	w.t.Helper()
	if err := os.WriteFile(w.file, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// client keeps its connection open from one request to the next.
func (w *world) client(config *tls.Config) *http.Client {
	transport := &http.Transport{TLSClientConfig: config}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// served reports whether the server behind the certificates answers a request.
func (w *world) served(c *http.Client) bool {
	w.t.Helper()
	answer, err := c.Get("https://" + w.address)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return err == nil && string(body) == "served"
}

// An authority that is taken out of the file is out for new connections, for TLS sessions that go
// on, and for connections that are open.
func TestARemovedAuthorityIsOutAtOnce(t *testing.T) {
	w := start(t)
	open, kept := w.client(w.oldClient), w.client(w.othersClient)
	if !w.served(open) || !w.served(kept) {
		t.Fatal("a client of an authority in the file is refused")
	}
	w.write(w.text(w.other))
	w.pool.Trouble(quiet) // As the control plane looks every second.
	if w.served(open) {
		t.Error("an open connection goes on")
	}
	if w.served(w.client(w.oldClient)) {
		t.Error("a TLS session goes on over a new connection")
	}
	fresh := w.oldClient.Clone()
	fresh.ClientSessionCache = nil
	if w.served(w.client(fresh)) {
		t.Error("a new connection is taken")
	}
	if !w.served(kept) || !w.served(w.client(w.othersClient)) {
		t.Error("a client of the authority that stays is refused")
	}
}

// A mistake in one certificate keeps no other one alive, and is named with its line.
func TestAWrongCertificateKeepsNoOtherAlive(t *testing.T) {
	for name, damage := range map[string]func(string) string{
		"a letter is lost":    func(pem string) string { return strings.Replace(pem, "\nM", "\n", 1) },
		"not base64":          func(pem string) string { return strings.Replace(pem, "\nMII", "\n***", 1) },
		"the end is missing":  func(pem string) string { return pem[:len(pem)/2] },
		"something else":      func(string) string { return block("CERTIFICATE") },
		"a key, by a mistake": func(string) string { return block("PRIVATE KEY") },
	} {
		w := start(t)
		open, kept := w.client(w.oldClient), w.client(w.othersClient)
		if !w.served(open) || !w.served(kept) {
			t.Fatal("a client of an authority in the file is refused")
		}
		lines := strings.Count(w.text(w.other), "\n")
		w.write(w.text(w.other) + damage(w.text(w.old)))
		w.pool.Trouble(quiet)
		w.pool.Trouble(quiet) // The file may be half written: a mistake counts once it is seen again.
		if w.served(open) || w.served(w.client(w.oldClient)) {
			t.Errorf("%s: the removed authority still counts", name)
		}
		if !w.served(kept) || !w.served(w.client(w.othersClient)) {
			t.Errorf("%s: the right certificate does not count", name)
		}
		want := "line " + string(rune('0'+(lines+1)/10)) + string(rune('0'+(lines+1)%10))
		if got := w.pool.Trouble(quiet); !strings.Contains(got, want) {
			t.Errorf("%s: %q names no %s", name, got, want)
		}
		if _, err := certs.LoadPool(w.file); err == nil {
			t.Errorf("%s: a control plane starts with it", name)
		}
		if p, err := certs.LoadRight(w.file); err != nil || !strings.Contains(p.Trouble(quiet), want) {
			t.Errorf("%s: authorities of a server: %v, %q", name, err, p.Trouble(quiet))
		}
		w.write(w.text(w.other) + w.text(w.old))
		if got := w.pool.Trouble(quiet); got != "" || !w.served(w.client(w.oldClient)) {
			t.Errorf("%s: mended: %q", name, got)
		}
	}
}

// Handshakes may come faster than a file is written: a half-written file counts only if it is
// right.
func TestAFileThatIsBeingWrittenCountsNotYet(t *testing.T) {
	w := start(t)
	half := w.text(w.old)
	w.write(w.text(w.other) + half[:len(half)/2])
	for range 5 {
		if !w.served(w.client(w.oldClient)) {
			t.Fatal("a handshake has taken a half-written file for the whole")
		}
	}
	w.write(w.text(w.other) + half)
	w.pool.Trouble(quiet)
	if got := w.pool.Trouble(quiet); got != "" || !w.served(w.client(w.oldClient)) {
		t.Errorf("the file is written: %q", got)
	}
}

// A password is one line. While the file has none, the earlier password is used.
func TestAPasswordIsOneLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(" first \n")
	password, err := certs.LoadSecret(path)
	if err != nil || password.Current(quiet) != "first" {
		t.Fatalf("%v: %q", err, password.Current(quiet))
	}
	for text, want := range map[string]string{
		"": "empty", " \n\n": "empty", "one\ntwo": "line 2", "\none\n\n two\n": "line 4",
		"a\x00b": "control characters", "one\r\ntwo": "line 2",
	} {
		write(text)
		if got := password.Trouble(quiet); !strings.Contains(got, want) || password.Current(quiet) != "first" {
			t.Errorf("%q: %q, and %q is used", text, got, password.Current(quiet))
		}
		if _, err := certs.LoadSecret(path); err == nil {
			t.Errorf("%q: a control plane starts with it", text)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if password.Trouble(quiet) == "" || password.Current(quiet) != "first" {
		t.Error("the file is gone, and nothing is said, or the password is lost")
	}
	write("second\r\n")
	if got := password.Trouble(quiet); got != "" || password.Current(quiet) != "second" {
		t.Errorf("%q, and %q is used", got, password.Current(quiet))
	}
}

// The log says of each kind of file which content is in use. Only authorities have parts that can
// count as absent.
func TestTheLogSaysWhichContentIsInUse(t *testing.T) {
	authority, dir := certtest.New(t, "authority"), t.TempDir()
	own := authority.Issue(dir, "weir")
	password := filepath.Join(dir, "password")
	spoil := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	spoil(password, "secret")
	pair, pairErr := certs.Load(own.Cert, own.Key)
	pool, poolErr := certs.LoadPool(authority.Path)
	secret, secretErr := certs.LoadSecret(password)
	if err := errors.Join(pairErr, poolErr, secretErr); err != nil {
		t.Fatal(err)
	}
	spoil(own.Cert, "half a certificate")
	spoil(authority.Path, "half a certificate")
	spoil(password, "")
	const previous = "the previous content of the file stays in use"
	for _, c := range []struct {
		file interface{ Trouble(*slog.Logger) string }
		want string
	}{
		{pair, "cannot use a certificate: " + previous},
		{secret, "cannot use a password: " + previous},
		{pool, "cannot use a certificate: a wrong certificate of several counts as absent; if none is valid, " +
			previous},
	} {
		var log logtest.Buffer
		c.file.Trouble(slog.New(slog.NewTextHandler(&log, nil)))
		if !strings.Contains(log.String(), "msg=\""+c.want+"\"") {
			t.Errorf("the log says\n%s\nwant %q", log.String(), c.want)
		}
	}
}

// block is one of PEM that holds a greeting.
func block(kind string) string {
	return "-----BEGIN " + kind + "-----\naGVsbG8=\n-----END " + kind + "-----\n"
}

// A file without a certificate changes nothing: without an authority no client could connect.
func TestAFileWithoutAuthoritiesChangesNothing(t *testing.T) {
	w := start(t)
	kept := w.client(w.oldClient)
	for name, text := range map[string]string{"empty": "", "a text": "hello\n", "a comment": "# none\n"} {
		w.write(text)
		for range 3 {
			if w.pool.Trouble(quiet) == "" {
				t.Errorf("%s: no trouble", name)
			}
		}
		if !w.served(kept) || !w.served(w.client(w.oldClient)) {
			t.Errorf("%s: a client is refused", name)
		}
	}
	if err := os.Remove(w.file); err != nil {
		t.Fatal(err)
	}
	if w.pool.Trouble(quiet) == "" || !w.served(w.client(w.oldClient)) {
		t.Error("the file is gone: a client is refused, or nothing is said")
	}
}

// A certificate of the listener's own that does not fit its key changes nothing, and is reported.
func TestACertificateThatDoesNotFit(t *testing.T) {
	ours, dir := certtest.New(t, "ours"), t.TempDir()
	files := ours.Issue(dir, "one")
	pair, err := certs.Load(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(files.Key)
	if err != nil {
		t.Fatal(err)
	}
	ours.Issue(dir, "two")
	if err := os.WriteFile(files.Key, key, 0o600); err != nil { // The key of the first.
		t.Fatal(err)
	}
	if got := pair.Trouble(quiet); !strings.Contains(got, files.Cert) {
		t.Errorf("a certificate with another one's key: %q", got)
	}
	socket, err := tls.Listen("tcp", "127.0.0.1:0", certs.Server(certs.HTTP1, pair, nil, quiet))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	go func() {
		for {
			c, err := socket.Accept()
			if err != nil {
				return
			}
			_ = c.(*tls.Conn).Handshake()
			_ = c.Close()
		}
	}()
	c, err := tls.Dial("tcp", socket.Addr().(*net.TCPAddr).String(), ours.Client())
	if err != nil {
		t.Fatalf("the earlier certificate is not shown: %v", err)
	}
	_ = c.Close()
}
