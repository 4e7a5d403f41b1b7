package redisstore_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/support/redistest"
)

// A Redis that is back is used at once, however often connecting to it has failed.
func TestAServerThatIsBackIsUsedAtOnce(t *testing.T) {
	server := redistest.Start(t)
	client := openURL(t, server.URL()+"?pool_size=1", slog.New(slog.DiscardHandler)).Client()
	for range 3 {
		server.Kill()
		for range 5 {
			var network *net.OpError
			if err := client.Ping(t.Context()).Err(); err == nil ||
				!errors.As(err, &network) && !errors.Is(err, io.EOF) {
				t.Fatalf("of a dead server: %v", err) // The end of a connection that was open, or that there is none.
			}
		}
		server.Restart()
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Fatalf("a server that is back does not answer: %v", err)
		}
	}
}

// A server that refuses a connection says why before it ends it, and that is reported.
func TestARefusalIsInTheServersWords(t *testing.T) {
	for _, refusal := range []string{
		"-DENIED Redis is running in protected mode.", "-ERR max number of clients reached", "-NOPERM no such thing",
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte(refusal + "\r\n"))
				_ = conn.Close()
			}
		}()
		client := openURL(t, "redis://user:secret@"+listener.Addr().String(), slog.New(slog.DiscardHandler)).Client()
		for range 10 {
			err := client.Ping(t.Context()).Err()
			if err == nil || !strings.Contains(err.Error(), refusal[1:]) {
				t.Errorf("refused with %s: %v", refusal, err)
			}
		}
	}
}

// A server that does not speak TLS takes the handshake for a command and waits for its rest: the
// error explains more than that time is up.
func TestAServerWithoutTLSIsNamed(t *testing.T) {
	t.Parallel()
	plain := strings.TrimPrefix(redistest.Start(t).URL(), "redis://")
	client := openURL(t, "rediss://"+plain, slog.New(slog.DiscardHandler)).Client()
	if err := client.Ping(t.Context()).Err(); err == nil ||
		!strings.Contains(err.Error(), "does not speak TLS there: write redis://") {
		t.Error(err)
	}
}
