package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// patient keeps the client's connection pool from giving up on a server. After several failed
// attempts the pool would connect only once a second, and fail every command until then. Here the
// breakers decide when to try again, and they do so sooner. So the pool always gets a connection;
// if none could be made, the first use of the connection returns the reason.
type patient struct {
	// byTLS is true if the URL asks for TLS.
	byTLS bool
}

// DialHook implements redis.Hook.
func (p patient) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil {
			if p.byTLS && speaksPlainly(addr) {
				err = fmt.Errorf("the server does not speak TLS there: write redis://, or its port for TLS: %w", err)
			}
			// The client reports the cause of the first failure.
			return unmade{fmt.Errorf("no connection: %w", err)}, nil
		}
		if system, ok := conn.(syscall.Conn); ok {
			return quotedSystem{&quoted{Conn: conn}, system}, nil
		}
		return &quoted{Conn: conn}, nil
	}
}

// ProcessHook implements redis.Hook, and changes nothing.
func (patient) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook, and changes nothing.
func (patient) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// probeTime bounds speaksPlainly.
const probeTime = 200 * time.Millisecond

// speaksPlainly reports whether a server answers without TLS. Such a server reads the start of TLS
// as the start of a command, and waits for the rest.
func speaksPlainly(addr string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer conn.Close()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	var answer [1]byte
	_, err = conn.Read(answer[:])
	return err == nil && (answer[0] == '+' || answer[0] == '-')
}

// quoted is a connection that reports its end in the server's own words. A server that refuses a
// client sends the reason and closes the connection; without this the client would report only the
// end.
type quoted struct {
	net.Conn
	// last is the error in the server's last answer; nil if that answer was no error.
	last atomic.Pointer[string]
}

// longestQuote bounds the kept text of a server, in bytes.
const longestQuote = 256

// Read implements net.Conn.
func (q *quoted) Read(p []byte) (int, error) {
	n, err := q.Conn.Read(p)
	if n > 0 {
		q.note(p[:n])
	}
	return n, q.quote(err)
}

// Write implements net.Conn.
func (q *quoted) Write(p []byte) (int, error) {
	n, err := q.Conn.Write(p)
	ended := errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
	if ended && q.last.Load() == nil {
		unread := make([]byte, longestQuote)
		if n, _ := q.Conn.Read(unread); n > 0 { // The read does not wait: the server has closed the connection.
			q.note(unread[:n])
		}
	}
	return n, q.quote(err)
}

// note keeps the text of an answer that is an error.
func (q *quoted) note(answer []byte) {
	switch {
	case answer[0] == '-':
		line, _, _ := strings.Cut(string(answer[1:min(len(answer), longestQuote)]), "\r\n")
		q.last.Store(&line)
	case q.last.Load() != nil:
		q.last.Store(nil)
	}
}

// quote adds the server's last words to an error of the connection.
func (q *quoted) quote(err error) error {
	if last := q.last.Load(); err != nil && last != nil {
		return fmt.Errorf("%s: %w", *last, err)
	}
	return err
}

// quotedSystem is a quoted connection without TLS. The client can ask the system whether the server
// has closed such a connection while it was idle.
type quotedSystem struct {
	*quoted
	syscall.Conn
}

// unmade stands in for a connection that could not be made.
type unmade struct{ err error }

func (u unmade) Read([]byte) (int, error)         { return 0, u.err }
func (u unmade) Write([]byte) (int, error)        { return 0, u.err }
func (u unmade) Close() error                     { return nil }
func (u unmade) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (u unmade) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (u unmade) SetDeadline(time.Time) error      { return nil }
func (u unmade) SetReadDeadline(time.Time) error  { return nil }
func (u unmade) SetWriteDeadline(time.Time) error { return nil }
