package access_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-proxy/weir/controlplane/internal/access"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a listener of five connections, and a server whose every request with a token is a known
// caller's.
type world struct {
	t        *testing.T
	listener *access.Listener
	warned   []string
}

func start(t *testing.T, bound int) *world {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t}
	warn := func(address string) { w.warned = append(w.warned, address) }
	w.listener = access.NewListener(inner, bound, time.Now, warn)
	server := &http.Server{ConnContext: access.ConnContext, ConnState: access.ConnState,
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			switch r.Header.Get("Authorization") {
			case "":
			case "Bearer person":
				if !access.MarkPerson(r.Context()) {
					rw.WriteHeader(http.StatusTooManyRequests)
				}
			default:
				access.MarkKnown(r.Context())
			}
		})}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(w.listener) }()
	t.Cleanup(func() {
		server.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return w
}

// dial opens a connection from an address.
func (w *world) dial(from string) net.Conn {
	w.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	c, err := d.Dial("tcp", w.listener.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	return c
}

// ask makes a request on a connection and reports whether it was answered.
func (w *world) ask(c net.Conn, token string) bool {
	w.t.Helper()
	return w.status(c, token) == http.StatusOK
}

// status makes a request on a connection and returns the status, 0 if it was not answered.
func (w *world) status(c net.Conn, token string) (status int) {
	w.t.Helper()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		w.t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n"+token+"\r\n"); err != nil {
		return 0
	}
	b := make([]byte, 1024)
	n, err := c.Read(b)
	if _, scan := fmt.Sscanf(string(b[:n]), "HTTP/1.1 %d", &status); err != nil || scan != nil {
		return 0
	}
	return status
}

// gone reports whether the other end has closed a connection.
func (w *world) gone(c net.Conn) bool {
	w.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		w.t.Fatal(err)
	}
	_, err := c.Read(make([]byte, 1))
	var late net.Error
	return err != nil && !(errors.As(err, &late) && late.Timeout())
}

const token = "Authorization: Bearer x\r\n"

// A caller with a token gets in whatever strangers do. It pushes out the oldest stranger of the
// address that has most strangers.
func TestStrangersMakeRoom(t *testing.T) {
	w := start(t, 5)
	known := w.dial("127.0.0.1")
	if !w.ask(known, token) {
		t.Fatal("a known caller is not served")
	}
	quiet := w.dial("127.0.0.3")
	if !w.ask(quiet, "") {
		t.Fatal("a stranger is not served")
	}
	var greedy []net.Conn
	for range 20 {
		c := w.dial("127.0.0.2")
		if !w.ask(c, "") {
			t.Fatal("a stranger is not served")
		}
		greedy = append(greedy, c)
	}
	for i, c := range greedy[:17] {
		if !w.gone(c) {
			t.Fatalf("connection %d is still open", i)
		}
	}
	if !w.ask(quiet, "") || !w.ask(known, token) {
		t.Error("others were closed in place of who has most")
	}
	if late := w.dial("127.0.0.1"); !w.ask(late, token) {
		t.Error("another known caller does not get in")
	}
	if got := w.listener.Counts(); got.Known != 2 || got.Strangers != 3 || got.Closed != 18 {
		t.Errorf("%+v", got)
	}
	if len(w.warned) != 1 || w.warned[0] != "127.0.0.2" {
		t.Errorf("warned of %q", w.warned)
	}
}

// While known callers have all connections, further callers wait until a known caller leaves.
func TestKnownCallersStay(t *testing.T) {
	w := start(t, 3)
	var known []net.Conn
	for range 3 {
		c := w.dial("127.0.0.1")
		if !w.ask(c, token) {
			t.Fatal("a known caller is not served")
		}
		known = append(known, c)
	}
	late := w.dial("127.0.0.1")
	answered := make(chan bool, 1)
	go func() { answered <- w.ask(late, token) }()
	select {
	case <-answered:
		t.Error("a fourth connection is answered")
	case <-time.After(100 * time.Millisecond): // It may be too short to notice, never wrong.
	}
	known[1].Close()
	if !<-answered {
		t.Error("it is not answered after another has left")
	}
	if !w.ask(known[0], token) || !w.ask(known[2], token) {
		t.Error("a known caller was closed")
	}
}

func TestWithoutABound(t *testing.T) {
	w := start(t, 0)
	for range 10 {
		if !w.ask(w.dial("127.0.0.1"), "") {
			t.Fatal("not served")
		}
	}
	if got := w.listener.Counts(); got.Strangers != 10 || got.Closed != 0 {
		t.Errorf("%+v", got)
	}
}

// deadlines is a connection that notes its deadlines.
type deadlines struct {
	net.Conn
	set time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set = t
	return nil
}
func (d *deadlines) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
func (d *deadlines) Close() error         { return nil }

// one is a listener of one connection.
type one struct{ net.Conn }

func (o one) Accept() (net.Conn, error) { return o.Conn, nil }
func (o one) Close() error              { return nil }
func (o one) Addr() net.Addr            { return nil }

// An idle connection without a token is closed earlier than a connection with a token.
func TestIdleStrangersLeaveSoon(t *testing.T) {
	inner := &deadlines{}
	l := access.NewListener(one{inner}, 1, time.Now, func(string) {})
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, step := range []struct {
		state   http.ConnState
		known   bool
		shorter bool
	}{{http.StateActive, false, false}, {http.StateIdle, false, true}, {http.StateActive, true, false}, {http.StateIdle,
		true, false}} {
		if step.known {
			access.MarkKnown(access.ConnContext(t.Context(), c))
		}
		access.ConnState(c, step.state)
		wanted := time.Now().Add(90 * time.Second)
		if err := c.SetReadDeadline(wanted); err != nil {
			t.Fatal(err)
		}
		if shorter := inner.set.Before(wanted); shorter != step.shorter ||
			shorter && inner.set.Before(wanted.Add(access.StrangerIdle-90*time.Second)) {
			t.Errorf("%v, known %v: %v before", step.state, step.known, wanted.Sub(inner.set))
		}
	}
}

// People have half of the connections, and nodes get in whatever they do. A place that one of them
// leaves is another's.
func TestPeopleLeaveRoomForNodes(t *testing.T) {
	w := start(t, 6)
	const person = "Authorization: Bearer person\r\n"
	var people []net.Conn
	for range 3 {
		c := w.dial("127.0.0.1")
		if got := w.status(c, person); got != http.StatusOK {
			t.Fatalf("a person is answered %d", got)
		}
		people = append(people, c)
	}
	for range 20 {
		if got := w.status(w.dial("127.0.0.1"), person); got != http.StatusTooManyRequests {
			t.Fatalf("a person too many is answered %d", got)
		}
	}
	for range 3 {
		c := w.dial("127.0.0.2")
		for range 2 {
			if !w.ask(c, token) {
				t.Fatal("a node is not served")
			}
		}
	}
	if got := w.status(people[0], person); got != http.StatusOK {
		t.Errorf("a person that has a place is answered %d", got)
	}
	people[1].Close()
	for deadline := time.Now().Add(10 * time.Second); ; {
		if c := w.dial("127.0.0.1"); w.status(c, person) == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the place of a person that has left stays empty")
		}
	}
}

// A connection that a node has used before a person is a node's.
func TestAConnectionOfBoth(t *testing.T) {
	w := start(t, 2)
	both := w.dial("127.0.0.1")
	const person = "Authorization: Bearer person\r\n"
	if !w.ask(both, token) || w.status(both, person) != http.StatusOK {
		t.Fatal("the node is not served")
	}
	if got := w.status(w.dial("127.0.0.1"), person); got != http.StatusOK {
		t.Errorf("a person is answered %d", got)
	}
}

func TestNetwork(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::",
		"[fe80::1%eth0]:80":         "fe80::", "nowhere": "nowhere",
	} {
		if got := access.Network(address); got != want {
			t.Errorf("%s is of %s, want %s", address, got, want)
		}
	}
}
