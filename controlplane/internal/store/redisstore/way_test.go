package redisstore_test

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// way is an address that leads to a server, and can be redirected.
type way struct {
	listener net.Listener

	// back is how long each answer is on its way.
	back atomic.Int64

	mu    sync.Mutex
	to    string
	conns []net.Conn
}

func startWay(t *testing.T, to string) *way {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &way{listener: l, to: to}
	t.Cleanup(func() { l.Close(); w.lead("") })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go w.join(from)
		}
	}()
	return w
}

func (w *way) addr() string { return w.listener.Addr().String() }

// lead ends all connections; new ones lead to another server.
func (w *way) lead(to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		c.Close()
	}
	w.to, w.conns = to, nil
}

// redirect makes new connections lead to another server; open connections go on.
func (w *way) redirect(to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.to = to
}

func (w *way) join(from net.Conn) {
	defer from.Close()
	w.mu.Lock()
	target := w.to
	w.mu.Unlock()
	to, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer to.Close()
	w.mu.Lock()
	w.conns = append(w.conns, from, to)
	stale := target != w.to
	w.mu.Unlock()
	if stale {
		return
	}
	go func() { w.bring(from, to); from.Close() }()
	_, _ = io.Copy(to, from)
}

// bring brings answers to a client, each as late as the way is long. A client that waits for each
// answer before it asks again sees no more than that.
func (w *way) bring(client io.Writer, server io.Reader) {
	answer := make([]byte, 64<<10)
	for {
		n, err := server.Read(answer)
		time.Sleep(time.Duration(w.back.Load()))
		if n > 0 {
			if _, err := client.Write(answer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
