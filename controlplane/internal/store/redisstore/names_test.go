package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/test/support/dnstest"
	"github.com/weir-proxy/weir/test/support/logtest"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// forward leads connections to an address somewhere else.
func forward(t *testing.T, from, to string) *net.TCPAddr {
	t.Helper()
	listener, err := net.Listen("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				// It reads no resolver that the test replaces.
				server, err := (&net.Dialer{Resolver: &net.Resolver{}}).Dial("tcp", to)
				if err != nil {
					return
				}
				defer server.Close()
				go func() {
					defer client.Close()
					_, _ = io.Copy(client, server)
				}()
				_, _ = io.Copy(server, client)
			}()
		}
	}()
	return listener.Addr().(*net.TCPAddr)
}

// The name of a Redis leads to a new place. All control planes follow within some seconds, also
// while the old server goes on. They do not go where no name server sends them, and do not leave
// their server while no name server answers.
func TestTheNameOfRedisIsFollowed(t *testing.T) {
	names := dnstest.Start(t)
	names.Resolve()
	first, second := redistest.Start(t), redistest.Start(t)
	port := forward(t, "127.0.0.1:0", first.Addr()).Port
	forward(t, fmt.Sprintf("127.0.0.2:%d", port), second.Addr())
	names.Answer("127.0.0.1")
	log := &logtest.Buffer{}
	s := openURL(t, fmt.Sprintf("redis://redis.test.:%d/0", port), slog.New(slog.NewTextHandler(log, nil)))
	write := func(key string) {
		t.Helper()
		if err := s.Client().Set(t.Context(), key, "1", 0).Err(); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	write("at-first")
	if !first.Has("at-first") {
		t.Fatal("it did not go where the name led")
	}
	// Calls that are under way when the name leads somewhere else end where they have begun.
	calls := t.Context()
	moved, stop := context.WithCancel(calls)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for moved.Err() == nil {
			if err := s.Client().BLPop(calls, time.Second, "never").Err(); !errors.Is(err, redis.Nil) {
				t.Errorf("a call under way: %v", err)
			}
		}
	}()
	defer func() { stop(); <-done }()
	for s.Client().PoolStats().TotalConns < 2 { // Two calls at once have a connection each.
		write("first")
	}
	names.Answer("127.0.0.3", "127.0.0.1") // It still leads there, too.
	time.Sleep(10 * time.Second)
	write("both")
	names.Silence()
	time.Sleep(10 * time.Second)
	write("silence")
	if !first.Has("both") || !first.Has("silence") {
		t.Error("it has left a server that the name still leads to")
	}
	names.Answer("127.0.0.2")
	begin := time.Now()
	for n := 0; !second.Has(fmt.Sprint("moved-", n)); n++ {
		if time.Since(begin) > 20*time.Second {
			t.Fatalf("it is still at the old server; its log says %s", log)
		}
		time.Sleep(50 * time.Millisecond)
		write(fmt.Sprint("moved-", n+1))
	}
	t.Logf("it follows after %v", time.Since(begin).Round(time.Millisecond))
	time.Sleep(4 * time.Second) // Until the last connection to the old server has ended.
	if !strings.Contains(log.String(), "resolves to other addresses") || strings.Count(log.String(), "\n") > 2 {
		t.Errorf("the log says %s", log)
	}
}

// reached is a connection to an address.
type reached struct {
	net.Conn
	at net.TCPAddr
}

func (r reached) RemoteAddr() net.Addr { return &r.at }
func (reached) Close() error           { return nil }

// An address that holds on one link alone comes from a name without the link, or with its number,
// and from a connection with its name.
func TestAnAddressOfALinkIsKnown(t *testing.T) {
	names := dnstest.Start(t)
	names.Resolve()
	names.Answer("fe80::1", "10.0.0.1")
	for address, want := range map[string]bool{"fe80::1": true, "fe80::2": false, "10.0.0.1": true, "10.0.0.2": false} {
		conn := reached{at: net.TCPAddr{IP: net.ParseIP(address), Port: 6379}}
		if conn.at.IP.To4() == nil {
			conn.at.Zone = "eth0"
		}
		if stays, err := redisstore.Stays(t.Context(), "redis.test.:6379", conn); stays != want || err != nil {
			t.Errorf("%s: it stays: %t, %v", conn.RemoteAddr(), stays, err)
		}
	}
}
