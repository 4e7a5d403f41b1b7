package redisstore

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// Connections to a server stay open as long as it lives. If its name resolves to another server and
// the old server goes on, older control planes would grant on the old server the same tokens that
// newer control planes grant on the new server.

const (
	// namesEvery is the interval between look-ups of server names.
	namesEvery = 2 * time.Second
	// movedAfter is the number of answers in a row that must lack an address until its connections
	// end: a name server may return only a part of the addresses each time.
	movedAfter = 3
)

// names follow the addresses of server names.
type names struct {
	log *slog.Logger

	mu    sync.Mutex
	conns map[*namedConn]struct{}
}

func newNames(log *slog.Logger) *names {
	return &names{log: log, conns: map[*namedConn]struct{}{}}
}

// namedConn is a connection to a server that the URL names by a host name.
type namedConn struct {
	net.Conn
	by   *names
	host string
	at   netip.Addr
	// missing is the number of answers in a row without the address at.
	missing int
	// left is set when no new call may use the connection.
	left atomic.Bool
}

// errLeft is the error of a connection whose server name resolves to another server.
var errLeft = errors.New("the name of the server resolves to another server")

// SyscallConn implements syscall.Conn. The client calls it before each call, and takes another
// connection if it returns an error.
func (c *namedConn) SyscallConn() (syscall.RawConn, error) {
	if c.left.Load() {
		return nil, errLeft
	}
	if its, ok := c.Conn.(syscall.Conn); ok {
		return its.SyscallConn()
	}
	return unseenConn{}, nil
}

// unseenConn is a connection whose state in the system cannot be seen: a TLS connection.
type unseenConn struct{}

// Control implements syscall.RawConn.
func (unseenConn) Control(func(uintptr)) error { return nil }

// Read implements syscall.RawConn.
func (unseenConn) Read(func(uintptr) bool) error { return nil }

// Write implements syscall.RawConn.
func (unseenConn) Write(func(uintptr) bool) error { return nil }

// Close implements net.Conn.
func (c *namedConn) Close() error {
	c.by.mu.Lock()
	delete(c.by.conns, c)
	c.by.mu.Unlock()
	return c.Conn.Close()
}

// DialHook implements redis.Hook.
func (n *names) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		host, _, wrong := net.SplitHostPort(addr)
		if err != nil || wrong != nil || isAddress(host) {
			return conn, err
		}
		at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
		if err != nil {
			return conn, nil
		}
		c := &namedConn{Conn: conn, by: n, host: host, at: withoutZone(at.Addr())}
		n.mu.Lock()
		n.conns[c] = struct{}{}
		n.mu.Unlock()
		return c, nil
	}
}

// withoutZone returns an address without its zone. A name server leaves the zone out, and
// connections name it as the system does.
func withoutZone(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// isAddress reports whether a host is an IP address, not a name.
func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// ProcessHook implements redis.Hook, and changes nothing.
func (*names) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook, and changes nothing.
func (*names) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// byHost returns the open connections by the names of their servers.
func (n *names) byHost() map[string][]*namedConn {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := map[string][]*namedConn{}
	for c := range n.conns {
		all[c.host] = append(all[c.host], c)
	}
	return all
}

// follow looks up all server names. If a name no longer resolves to the address of a connection, no
// new call uses the connection, and one look later it is closed: by then calls under way have their
// answers. While no name server answers, all connections stay.
func (n *names) follow(ctx context.Context) {
	for host, conns := range n.byHost() {
		ctx, cancel := context.WithTimeout(ctx, namesEvery)
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		cancel()
		if err != nil || len(found) == 0 {
			continue
		}
		for i := range found {
			found[i] = withoutZone(found[i])
		}
		// Count the answers without each address, and close connections in two steps.
		var left []*namedConn
		for _, c := range conns {
			c.missing++
			if slices.Contains(found, c.at) {
				c.missing = 0
			}
			switch {
			case c.missing > movedAfter:
				_ = c.Close()
			case c.missing == movedAfter:
				c.left.Store(true)
				left = append(left, c)
			}
		}
		if len(left) == 0 {
			continue
		}
		n.log.Warn("the name of a Redis server resolves to other addresses: connections to the old address end",
			"name", host, "old", left[0].at.String(), "addresses", found, "connections", len(left))
	}
}
