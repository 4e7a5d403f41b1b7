package redisstore

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
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
}

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
		if err != nil || wrong != nil || net.ParseIP(host) != nil {
			return conn, err
		}
		at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
		if err != nil {
			return conn, nil
		}
		c := &namedConn{Conn: conn, by: n, host: host, at: at.Addr().Unmap()}
		n.mu.Lock()
		n.conns[c] = struct{}{}
		n.mu.Unlock()
		return withSystem(c, conn), nil
	}
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

// follow ends connections to servers to which their names lead no longer. While no name server
// answers, all stay.
func (n *names) follow(ctx context.Context) {
	for host, conns := range n.byHost() {
		ctx, cancel := context.WithTimeout(ctx, namesEvery)
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		cancel()
		if err != nil || len(found) == 0 {
			continue
		}
		for i := range found {
			found[i] = found[i].Unmap()
		}
		var left []*namedConn
		for _, c := range conns {
			c.missing++
			if slices.Contains(found, c.at) {
				c.missing = 0
			}
			if c.missing >= movedAfter {
				left = append(left, c)
			}
		}
		if len(left) == 0 {
			continue
		}
		n.log.Warn("the name of a Redis server resolves to other addresses: connections to the old one end",
			"name", host, "old", left[0].at.String(), "addresses", found, "connections", len(left))
		for _, c := range left {
			_ = c.Close()
		}
	}
}
