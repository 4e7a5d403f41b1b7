package access

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// StrangerIdle is the longest wait of a connection without a valid token for its next request.
const StrangerIdle = 10 * time.Second

// Counts are the numbers of connections with a valid token, without a token, and closed to make
// room.
type Counts struct{ Known, Strangers, Closed int }

// Listener bounds its connections so that callers without a token cannot lock others out. At the
// bound it closes the oldest connection without a valid token, of the address that has the most of
// them. People with a token have at most half of the connections, so that the rest is free for
// nodes. Make a Listener with NewListener. It is safe for concurrent use.
type Listener struct {
	net.Listener
	bound int
	now   func() time.Time
	// full is called when the bound is reached. It is called again only after the count has fallen
	// well below the bound.
	full func(address string)

	mu        sync.Mutex
	left      chan struct{} // closed when a connection ends, and then replaced
	ended     chan struct{} // closed with the listener
	once      sync.Once
	count     int
	people    int
	closed    int
	next      uint64
	atBound   bool
	strangers map[string][]*Conn // by network, oldest first
}

// NewListener makes a Listener over inner for at most bound connections, 0 for no bound. now is the
// clock. full is called with the network that has the most connections without a token.
func NewListener(inner net.Listener, bound int, now func() time.Time, full func(address string)) *Listener {
	return &Listener{
		Listener: inner, bound: bound, now: now, full: full,
		left: make(chan struct{}), ended: make(chan struct{}), strangers: map[string][]*Conn{},
	}
}

// Counts returns the current numbers.
func (l *Listener) Counts() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	strangers := 0
	for _, of := range l.strangers {
		strangers += len(of)
	}
	return Counts{Known: l.count - strangers, Strangers: strangers, Closed: l.closed}
}

// Accept implements net.Listener. If all connections have a valid token, it waits until one of them
// ends.
func (l *Listener) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	for {
		victim, full, left := l.findVictim()
		if victim != nil {
			_ = victim.Close() // The connection may be gone already.
			continue
		}
		if !full {
			return l.addConn(inner), nil
		}
		select {
		case <-left:
		case <-l.ended:
			return nil, net.ErrClosed
		}
	}
}

// findVictim returns the connection to close for a new connection. full is true if the bound is
// reached; without a victim the new connection must wait.
func (l *Listener) findVictim() (victim *Conn, full bool, left <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bound == 0 || l.count < l.bound {
		return nil, false, nil
	}
	for _, of := range l.strangers {
		if victim == nil {
			victim = of[0]
			continue
		}
		most := len(l.strangers[victim.network])
		if len(of) > most || len(of) == most && of[0].number < victim.number {
			victim = of[0]
		}
	}
	if !l.atBound {
		l.atBound = true
		address := ""
		if victim != nil {
			address = victim.network
		}
		l.full(address)
	}
	if victim != nil {
		l.closed++
	}
	return victim, true, l.left
}

// addConn counts a new connection.
func (l *Listener) addConn(inner net.Conn) *Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	c := &Conn{Conn: inner, listener: l, network: Network(inner.RemoteAddr().String()), number: l.next}
	l.count++
	l.strangers[c.network] = append(l.strangers[c.network], c)
	return c
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.ended) })
	return l.Listener.Close()
}

// forgetConn removes a connection from the list of connections without a token. The caller holds
// the lock.
func (l *Listener) forgetConn(c *Conn) {
	of := l.strangers[c.network]
	for i, one := range of {
		if one != c {
			continue
		}
		if len(of) == 1 {
			delete(l.strangers, c.network)
		} else {
			l.strangers[c.network] = append(of[:i:i], of[i+1:]...)
		}
		return
	}
}

// Conn is a connection of a Listener.
type Conn struct {
	net.Conn
	listener *Listener
	network  string
	number   uint64
	// known is true once a valid token was used; idle while the connection waits for a request.
	known, idle atomic.Bool
	// person is true if it counts as a connection of people, closed if it is not counted any more.
	// The lock guards both.
	person, closed bool
	once           sync.Once
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.once.Do(func() {
		l := c.listener
		l.mu.Lock()
		defer l.mu.Unlock()
		l.forgetConn(c)
		l.count--
		c.closed = true
		if c.person {
			l.people--
		}
		if l.count < l.bound-max(l.bound/4, 1) { // Closing one to make room leaves fewer than bound.
			l.atBound = false
		}
		close(l.left)
		l.left = make(chan struct{})
	})
	return c.Conn.Close()
}

// SetReadDeadline implements net.Conn. The server sets how long an idle connection may wait.
// Without a valid token that time is shorter.
func (c *Conn) SetReadDeadline(t time.Time) error {
	if c.idle.Load() && !c.known.Load() {
		if soon := c.listener.now().Add(StrangerIdle); t.IsZero() || t.After(soon) {
			t = soon
		}
	}
	return c.Conn.SetReadDeadline(t)
}

// connKey is the context key of the connection.
type connKey struct{}

// ConnContext puts the connection into a context, for http.Server.ConnContext.
func ConnContext(ctx context.Context, conn net.Conn) context.Context {
	if c := listenerConn(conn); c != nil {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

// ConnState notes whether a connection is idle, for http.Server.ConnState.
func ConnState(conn net.Conn, state http.ConnState) {
	if c := listenerConn(conn); c != nil {
		c.idle.Store(state == http.StateIdle)
	}
}

// MarkKnown records that the request of this context has a valid token, so that its connection is
// not closed.
func MarkKnown(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*Conn); ok {
		c.markKnown()
	}
}

// MarkPerson records, as MarkKnown does, that a request of people has a valid token. It returns
// false if people already have half of the connections. Then the connection still counts as a
// connection without a token.
func MarkPerson(ctx context.Context) bool {
	c, ok := ctx.Value(connKey{}).(*Conn)
	if !ok {
		return true
	}
	if !c.listener.admitPerson(c) {
		return false
	}
	c.markKnown()
	return true
}

// admitPerson counts a connection as one of people, if there is room.
func (l *Listener) admitPerson(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.closed || c.person || c.known.Load(): // A connection that a node has used counts as a node's.
		return true
	case l.bound > 0 && l.people >= max(l.bound/2, 1):
		return false
	}
	c.person = true
	l.people++
	return true
}

// MarkKnownConn records, as MarkKnown does, that a request on a connection has a valid token. The
// connection may also be the TLS connection on top of it. Connections of other listeners are
// ignored.
func MarkKnownConn(conn net.Conn) {
	if c := listenerConn(conn); c != nil {
		c.markKnown()
	}
}

// markKnown records that a valid token was used on the connection.
func (c *Conn) markKnown() {
	if c.known.Load() || c.known.Swap(true) {
		return
	}
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.forgetConn(c)
}

// listenerConn returns the connection of a Listener, also if it is below TLS; nil for a connection
// of another listener.
func listenerConn(conn net.Conn) *Conn {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	c, _ := conn.(*Conn)
	return c
}

// Network returns the address of a connection's other end. For IPv6 it returns the /64, which
// usually belongs to one client.
func Network(remote string) string {
	peer, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	address := peer.Addr().Unmap().WithZone("")
	if address.Is6() {
		address = netip.PrefixFrom(address, 64).Masked().Addr()
	}
	return address.String()
}
