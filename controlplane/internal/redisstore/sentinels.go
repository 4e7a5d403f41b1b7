package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// askEvery is how often each Sentinel is asked, and askTime how long one may take before its
	// last answer counts no more.
	askEvery = 100 * time.Millisecond
	askTime  = 500 * time.Millisecond
	// othersEvery is how many answers of a Sentinel pass before it is asked again which others
	// there are.
	othersEvery = 100
	// forgetAfter is how many questions in a row, at least five minutes, pass without an answer
	// until a Sentinel is forgotten, unless the URL names it. Where Sentinels get new addresses,
	// the old ones would be asked for ever.
	forgetAfter = 3000
)

// sentinels follow what Sentinels say is the primary. All of them are asked, so that one that hangs
// or has been cut off keeps no control plane on a primary that the others have replaced.
type sentinels struct {
	name    string
	options *redis.UniversalOptions
	log     *slog.Logger
	// dialer makes connections, within a time.
	dialer func(timeout time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error)

	mu sync.Mutex
	// said is what each Sentinel says, by its address; the zero word while one does not answer.
	said map[string]word
	// primary is what is followed, since that word; its address is empty before there is one.
	primary word
	failure error         // of the last Sentinel that could not be asked
	known   chan struct{} // closed once there is a primary
	// conns are the connections that there are, with the address that they lead to.
	conns map[*ledConn]string
	more  func(addr string) // has another Sentinel followed
}

// word is what a Sentinel says: the address of the primary, and the number of the election that
// made it that. A later election has a higher number.
type word struct {
	addr  string
	epoch int64
}

func newSentinels(options *redis.UniversalOptions, log *slog.Logger) *sentinels {
	return &sentinels{
		name: options.MasterName, options: options, log: log,
		said: map[string]word{}, known: make(chan struct{}), conns: map[*ledConn]string{},
	}
}

// run asks the Sentinels until ctx ends; begin begins a goroutine.
func (s *sentinels) run(ctx context.Context, begin func(func())) {
	s.more = func(addr string) { begin(func() { s.follow(ctx, addr) }) }
	for _, addr := range s.options.Addrs {
		s.meet(addr)
	}
}

// forget forgets a Sentinel unless the URL names it. If others still know it, it is met again.
func (s *sentinels) forget(addr string) bool {
	if slices.Contains(s.options.Addrs, addr) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.said, addr)
	return true
}

// meet has a Sentinel followed unless it is already.
func (s *sentinels) meet(addr string) {
	s.mu.Lock()
	_, known := s.said[addr]
	if !known {
		s.said[addr] = word{}
	}
	s.mu.Unlock()
	if !known {
		s.more(addr)
	}
}

// follow asks one Sentinel until ctx ends, or it is forgotten.
func (s *sentinels) follow(ctx context.Context, addr string) {
	client := redis.NewSentinelClient(s.sentinel(addr))
	defer client.Close()
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for n, failed := 0, 0; ; n++ {
		timed, cancel := context.WithTimeout(ctx, askTime)
		said, err := ask(timed, client, s.name)
		if err == nil && n%othersEvery == 0 {
			s.meetOthers(timed, client)
		}
		cancel()
		if ctx.Err() == nil {
			s.note(addr, said, err)
		}
		if failed++; err == nil {
			failed = 0
		}
		if failed >= forgetAfter && s.forget(addr) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// sentinel are the options of a Sentinel's client.
func (s *sentinels) sentinel(addr string) *redis.Options {
	d := defaults()
	o := s.options
	return &redis.Options{
		Addr: addr, Username: o.SentinelUsername, Password: o.SentinelPassword, Dialer: s.dialer(askTime),
		MaxRetries: d.MaxRetries, ContextTimeoutEnabled: true, PoolSize: 1,
		DialTimeout: askTime, DialerRetries: 1, ReadTimeout: askTime, WriteTimeout: askTime, PoolTimeout: askTime,
		DisableIdentity: true, MaintNotificationsConfig: d.MaintNotificationsConfig,
	}
}

// SentinelACL are the rights that Weir needs at a Sentinel, as docs/redis.md has them.
const SentinelACL = "-@all +sentinel|get-master-addr-by-name +sentinel|master +sentinel|sentinels"

// ask asks a Sentinel for its word. During a failover the Sentinel that leads it has the old
// address beside the new election in its facts, and the new address where it is asked for that
// alone. It is asked for the address last, so that no old address comes with a new election.
func ask(ctx context.Context, client *redis.SentinelClient, name string) (word, error) {
	facts, err := client.Master(ctx, name).Result()
	if err != nil {
		return word{}, err
	}
	addr, err := client.GetMasterAddrByName(ctx, name).Result()
	if err != nil {
		return word{}, err
	}
	epoch, err := strconv.ParseInt(facts["config-epoch"], 10, 64)
	if err != nil || len(addr) != 2 || addr[0] == "" || addr[1] == "" {
		return word{}, errors.New("the Sentinel's answer cannot be read")
	}
	return word{addr: net.JoinHostPort(addr[0], addr[1]), epoch: epoch}, nil
}

// meetOthers follows the Sentinels that one of them knows, which the URL need not name.
func (s *sentinels) meetOthers(ctx context.Context, client *redis.SentinelClient) {
	others, err := client.Sentinels(ctx, s.name).Result()
	if err != nil {
		return
	}
	for _, o := range others {
		if o["ip"] != "" && o["port"] != "" {
			s.meet(net.JoinHostPort(o["ip"], o["port"]))
		}
	}
}

// note notes what a Sentinel has said, and follows the latest election.
func (s *sentinels) note(sentinel string, said word, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said[sentinel] = said
	if err != nil {
		s.failure = err
		return
	}
	best, answer := latest(s.said, s.primary.addr)
	// Only most of them can say that there was no such election: all were set up anew.
	if best.epoch < s.primary.epoch && 2*answer <= len(s.said) {
		return
	}
	if best.addr == s.primary.addr {
		s.primary = best
		return
	}
	first := s.primary.addr == ""
	if !first {
		s.log.Warn("the Sentinels have made another Redis the primary", "server", best.addr, "before", s.primary.addr,
			"epoch", best.epoch)
	}
	s.primary = best
	if first {
		close(s.known)
	}
	for conn, addr := range s.conns {
		if addr != best.addr {
			delete(s.conns, conn)
			_ = conn.Conn.Close() // Its calls fail, as those of a dead primary would.
		}
	}
}

// latest is the word of the latest election, and how many have a word. Where some have heard of its
// outcome before others, most count, and then the address that is followed already.
func latest(said map[string]word, followed string) (best word, answer int) {
	votes := map[word]int{}
	for _, w := range said {
		if w.addr != "" {
			votes[w]++
			answer++
		}
	}
	best.epoch = -1
	for w, n := range votes {
		switch {
		case w.epoch != best.epoch:
			if w.epoch < best.epoch {
				continue
			}
		case n < votes[best], n == votes[best] && best.addr == followed:
			continue
		case n == votes[best] && w.addr != followed && w.addr > best.addr:
			continue // Any order will do, as long as it is the same each time.
		}
		best = w
	}
	return best, answer
}

// errNoSentinel: no Sentinel has answered yet.
var errNoSentinel = errors.New("no Sentinel says where the primary is")

// dial makes a connection to the primary.
func (s *sentinels) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	patience := time.NewTimer(s.options.DialTimeout)
	defer patience.Stop()
	select {
	case <-s.known:
	case <-ctx.Done():
		return nil, s.unknown()
	case <-patience.C:
		return nil, s.unknown()
	}
	s.mu.Lock()
	addr := s.primary.addr
	s.mu.Unlock()
	conn, err := s.dialer(s.options.DialTimeout)(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return s.keep(conn, addr), nil
}

func (s *sentinels) unknown() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil {
		return errNoSentinel
	}
	return fmt.Errorf("%w: %w", errNoSentinel, s.failure)
}

// keep has a connection closed when its server is the primary no more.
func (s *sentinels) keep(conn net.Conn, addr string) net.Conn {
	led := &ledConn{conn, s}
	s.mu.Lock()
	s.conns[led] = addr
	stale := addr != s.primary.addr
	s.mu.Unlock()
	if stale {
		_ = led.Close() // Its first use fails.
	}
	return withSystem(led, conn)
}

// ledConn is a connection that is closed once its server is the primary no more.
type ledConn struct {
	net.Conn
	by *sentinels
}

// Close implements net.Conn.
func (c *ledConn) Close() error {
	c.by.mu.Lock()
	delete(c.by.conns, c)
	c.by.mu.Unlock()
	return c.Conn.Close()
}

// withSystem is a connection of our own around another one, so that the client can still ask the
// system whether the server has ended it.
func withSystem(own, inner net.Conn) net.Conn {
	if its, ok := inner.(system); ok {
		return systemConn{own, its}
	}
	return own
}

// systemConn has both. The alias gives the second field another name than the first.
type systemConn struct {
	net.Conn
	system
}

type system = syscall.Conn
