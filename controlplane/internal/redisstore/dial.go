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

// patient keeps the client's pool from giving up on a server. After as many failed attempts to
// connect as it has connections, the pool would try only once a second, and until then fail every
// command. Here the breakers decide that, and sooner. So the pool gets a connection in any case;
// one that could not be made returns the reason at its first use.
type patient struct {
	// byTLS: the URL asks for TLS.
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

// speaksPlainly reports whether a server answers without TLS. Such a server takes the beginning of
// TLS for the beginning of a command, and waits for the rest.
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

// quoted is a connection whose end is reported in the server's own words: a server that refuses a
// client says why, and then ends the connection, and the client reports only the end.
type quoted struct {
	net.Conn
	// last is the error that the server sent last, nil after any other answer.
	last atomic.Pointer[string]
}

// longestQuote bounds how much of the server's words is kept.
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
		if n, _ := q.Conn.Read(unread); n > 0 { // It does not wait: the server has ended.
			q.note(unread[:n])
		}
	}
	return n, q.quote(err)
}

// note keeps an answer if it is an error.
func (q *quoted) note(answer []byte) {
	switch {
	case answer[0] == '-':
		line, _, _ := strings.Cut(string(answer[1:min(len(answer), longestQuote)]), "\r\n")
		q.last.Store(&line)
	case q.last.Load() != nil:
		q.last.Store(nil)
	}
}

// quote is an error of the connection with the server's last words.
func (q *quoted) quote(err error) error {
	if last := q.last.Load(); err != nil && last != nil {
		return fmt.Errorf("%s: %w", *last, err)
	}
	return err
}

// quotedSystem is quoted where the client can ask the system whether the server has ended an idle
// connection, which it cannot of TLS.
type quotedSystem struct {
	*quoted
	syscall.Conn
}

// unmade is a connection that could not be made.
type unmade struct{ err error }

func (u unmade) Read([]byte) (int, error)         { return 0, u.err }
func (u unmade) Write([]byte) (int, error)        { return 0, u.err }
func (u unmade) Close() error                     { return nil }
func (u unmade) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (u unmade) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (u unmade) SetDeadline(time.Time) error      { return nil }
func (u unmade) SetReadDeadline(time.Time) error  { return nil }
func (u unmade) SetWriteDeadline(time.Time) error { return nil }
