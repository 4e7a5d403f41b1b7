package redisstore_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"

	"github.com/weir-proxy/weir/test/redistest"
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
