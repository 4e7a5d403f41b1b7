package grpcserver_test

import (
	"context"
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weir-proxy/weir/controlplane/internal/serve/grpcserver"
)

// frames counts the HTTP/2 frames that a connection brings: probes are pings that answer none.
type frames struct {
	net.Conn
	mu             sync.Mutex
	unread         []byte
	total, probing int
}

func (f *frames) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unread = append(f.unread, p[:n]...)
	const head, typeOfPing, acknowledges = 9, 6, 1
	for len(f.unread) >= head {
		size := head + int(binary.BigEndian.Uint32(f.unread)>>8)
		if len(f.unread) < size {
			break
		}
		f.total++
		if f.unread[3] == typeOfPing && f.unread[4]&acknowledges == 0 {
			f.probing++
		}
		f.unread = f.unread[size:]
	}
	return n, err
}

// gRPC's own search for better windows is a ping for each burst of calls, which Envoy must answer.
func TestCallsCauseNoProbes(t *testing.T) {
	w := start(t, func(*grpcserver.Config) {})
	seen := &frames{}
	w.dial(insecure.NewCredentials(), grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
		seen.Conn = conn
		return seen, err
	}))
	ctx := bearer(t.Context(), nodeSecret)
	// The longest together are more than HTTP/2's own window.
	for _, length := range []int{1, 100, 60 << 10, 100} {
		for range 10 {
			if got := w.call(ctx, strings.Repeat("x", length)); got != codes.OK {
				t.Fatalf("a message of %d bytes: %s", length, got)
			}
		}
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if seen.total < 80 || seen.probing != 0 {
		t.Errorf("the server sent %d probes among %d frames", seen.probing, seen.total)
	}
}
