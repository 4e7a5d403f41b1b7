package redisstore

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// patient keeps the client's pool from giving up on a server. After as many failed attempts to
// connect as it has connections, the pool would try only once a second, and until then fail every
// command. Here the breakers decide that, and sooner. So the pool gets a connection in any case;
// one that could not be made returns the reason at its first use.
type patient struct{}

// DialHook implements redis.Hook.
func (patient) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil {
			// The client reports the cause of the first failure.
			return unmade{fmt.Errorf("no connection: %w", err)}, nil
		}
		return conn, nil
	}
}

// ProcessHook implements redis.Hook, and changes nothing.
func (patient) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook, and changes nothing.
func (patient) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
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
