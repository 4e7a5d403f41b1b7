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

// Connections to a server stay open for as long as it lives. When its name leads to another server
// from now on and the old one goes on, control planes that started before that would grant the same
// tokens there as later ones grant here.

const (
	// namesEvery is how often names of servers are looked up.
	namesEvery = 2 * time.Second
	// movedAfter is in how many answers in a row an address is missing until connections to it
	// end: name servers may give a part of the addresses each time.
	movedAfter = 3
)

// names follow where the names of servers lead.
type names struct {
	log *slog.Logger

	mu    sync.Mutex
	conns map[*namedConn]struct{}
}

func newNames(log *slog.Logger) *names {
	return &names{log: log, conns: map[*namedConn]struct{}{}}
}

// namedConn is a connection to a server that was called by its name.
type namedConn struct {
	net.Conn
	by   *names
	host string
	at   netip.Addr
	// missing is in how many answers in a row at was not.
	missing int
	// left is set when no call may begin on it any more.
	left atomic.Bool
}

// errLeft is for a connection to a server to which its name leads no longer.
var errLeft = errors.New("the name of the server leads to another one")

// SyscallConn implements syscall.Conn. The client asks for it before each call, and takes another
// connection where there is an error.
func (c *namedConn) SyscallConn() (syscall.RawConn, error) {
	if c.left.Load() {
		return nil, errLeft
	}
	if its, ok := c.Conn.(syscall.Conn); ok {
		return its.SyscallConn()
	}
	return unseenConn{}, nil
}

// unseenConn is a connection whose state in the system cannot be seen: that of TLS.
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
		c := &namedConn{Conn: conn, by: n, host: host, at: plain(at.Addr())}
		n.mu.Lock()
		n.conns[c] = struct{}{}
		n.mu.Unlock()
		return c, nil
	}
}

// plain is an address without its link, which a name server leaves out and connections name as the
// system does.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// isAddress reports whether a host has no name that could lead elsewhere.
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

// byHost returns the connections that there are, by the names of their servers.
func (n *names) byHost() map[string][]*namedConn {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := map[string][]*namedConn{}
	for c := range n.conns {
		all[c.host] = append(all[c.host], c)
	}
	return all
}

// follow has no call begin on connections to servers to which their names lead no longer, and ends
// those connections a look later: calls that were under way have their answers by then. While no
// name server answers, all stay.
func (n *names) follow(ctx context.Context) {
	for host, conns := range n.byHost() {
		ctx, cancel := context.WithTimeout(ctx, namesEvery)
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		cancel()
		if err != nil || len(found) == 0 {
			continue
		}
		for i := range found {
			found[i] = plain(found[i])
		}
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
		n.log.Warn("the name of a Redis server resolves to other addresses: connections to the old one end",
			"name", host, "old", left[0].at.String(), "addresses", found, "connections", len(left))
	}
}
