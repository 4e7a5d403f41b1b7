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
	// askEvery is the interval between questions to each Sentinel. After askTime without an answer
	// the last answer of a Sentinel counts no more.
	askEvery = 100 * time.Millisecond
	askTime  = 500 * time.Millisecond
	// othersEvery is the number of answers of a Sentinel after which it is asked again for the
	// other Sentinels.
	othersEvery = 100
	// forgetAfter is the number of questions in a row without an answer, at least five minutes,
	// after which a Sentinel is forgotten, unless the URL names it. If Sentinels get new addresses,
	// the old ones would be asked for ever.
	forgetAfter = 3000
)

// sentinels follow the primary according to the Sentinels. All Sentinels are asked. So a Sentinel
// that hangs or has been cut off cannot keep a control plane on a primary that the other Sentinels
// have replaced.
type sentinels struct {
	name    string
	options *redis.UniversalOptions
	log     *slog.Logger
	// dialer returns a function that makes connections within a time-out.
	dialer func(timeout time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error)

	mu sync.Mutex
	// said has the last answer of each Sentinel, by its address; the zero value while it does not
	// answer.
	said map[string]word
	// primary is the primary in use; its address is empty before the first answer.
	primary word
	failure error         // the last error of a question to a Sentinel
	known   chan struct{} // closed once there is a primary
	// conns are the open connections, with the addresses of their servers.
	conns map[*ledConn]string
	more  func(addr string) // starts to follow one more Sentinel
}

// word is the answer of a Sentinel: the address of the primary, and the number of the election that
// chose it. A later election has a higher number.
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

// askSentinels asks the Sentinels until ctx ends; begin starts a goroutine.
func (s *sentinels) askSentinels(ctx context.Context, begin func(func())) {
	s.more = func(addr string) { begin(func() { s.askSentinel(ctx, addr) }) }
	for _, addr := range s.options.Addrs {
		s.startAsking(addr)
	}
}

// forgetSentinel forgets a Sentinel unless the URL names it. If other Sentinels still name it, it
// is asked again.
func (s *sentinels) forgetSentinel(addr string) bool {
	if slices.Contains(s.options.Addrs, addr) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.said, addr)
	return true
}

// startAsking starts to follow a Sentinel, unless it is followed already.
func (s *sentinels) startAsking(addr string) {
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

// askSentinel asks one Sentinel until ctx ends, or until the Sentinel is forgotten.
func (s *sentinels) askSentinel(ctx context.Context, addr string) {
	client := redis.NewSentinelClient(s.sentinelOptions(addr))
	defer client.Close()
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	// Ask for the primary, and from time to time for the other Sentinels.
	for n, failed := 0, 0; ; n++ {
		timed, cancel := context.WithTimeout(ctx, askTime)
		said, err := askPrimary(timed, client, s.name)
		if err == nil && n%othersEvery == 0 {
			s.meetOthers(timed, client)
		}
		cancel()
		if ctx.Err() == nil {
			s.note(addr, said, err)
		}
		// Count the failures in a row.
		if failed++; err == nil {
			failed = 0
		}
		if failed >= forgetAfter && s.forgetSentinel(addr) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// sentinelOptions returns the options for the client of a Sentinel.
func (s *sentinels) sentinelOptions(addr string) *redis.Options {
	d := defaultOptions()
	o := s.options
	return &redis.Options{
		Addr: addr, Username: o.SentinelUsername, Password: o.SentinelPassword, Dialer: s.dialer(askTime),
		MaxRetries: d.MaxRetries, ContextTimeoutEnabled: true, PoolSize: 1,
		DialTimeout: askTime, DialerRetries: 1, ReadTimeout: askTime, WriteTimeout: askTime, PoolTimeout: askTime,
		DisableIdentity: true, MaintNotificationsConfig: d.MaintNotificationsConfig,
	}
}

// SentinelACL are the rights that Weir needs on a Sentinel; docs/run/redis.md quotes them.
const SentinelACL = "-@all +sentinel|get-master-addr-by-name +sentinel|master +sentinel|sentinels"

// askPrimary asks a Sentinel for the primary. During a failover the Sentinel that leads it answers
// SENTINEL MASTER with the old address and the new election, but GET-MASTER-ADDR-BY-NAME with the
// new address. So the address is asked for last: a new election then never has an old address.
func askPrimary(ctx context.Context, client *redis.SentinelClient, name string) (word, error) {
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
		return word{}, errors.New("cannot read the Sentinel's answer")
	}
	return word{addr: net.JoinHostPort(addr[0], addr[1]), epoch: epoch}, nil
}

// meetOthers starts to follow the other Sentinels that a Sentinel knows. The URL need not name
// them.
func (s *sentinels) meetOthers(ctx context.Context, client *redis.SentinelClient) {
	others, err := client.Sentinels(ctx, s.name).Result()
	if err != nil {
		return
	}
	for _, o := range others {
		if o["ip"] != "" && o["port"] != "" {
			s.startAsking(net.JoinHostPort(o["ip"], o["port"]))
		}
	}
}

// note records the answer of a Sentinel, and follows the latest election.
func (s *sentinels) note(sentinel string, said word, err error) {
	// Record the answer.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said[sentinel] = said
	if err != nil {
		s.failure = err
		return
	}
	// Find the latest election.
	best, answer := latestElection(s.said, s.primary.addr)
	// A lower number counts only if most Sentinels report it: then all were set up anew.
	if best.epoch < s.primary.epoch && 2*answer <= len(s.said) {
		return
	}
	if best.addr == s.primary.addr {
		s.primary = best
		return
	}
	// Use the new primary, and close the connections to the old primary.
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
			_ = conn.Conn.Close() // Its calls fail, as calls to a dead primary would.
		}
	}
}

// latestElection returns the answer about the latest election, and the number of Sentinels with an
// answer. If answers about that election differ, the most frequent answer counts, and then the
// address in use.
func latestElection(said map[string]word, followed string) (best word, answer int) {
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
			continue // Any order will do if it is always the same.
		}
		best = w
	}
	return best, answer
}

// errNoSentinel means that no Sentinel has answered yet.
var errNoSentinel = errors.New("no Sentinel says where the primary is")

// dial makes a connection to the primary.
func (s *sentinels) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	// Wait until the primary is known.
	patience := time.NewTimer(s.options.DialTimeout)
	defer patience.Stop()
	select {
	case <-s.known:
	case <-ctx.Done():
		return nil, s.noPrimaryError()
	case <-patience.C:
		return nil, s.noPrimaryError()
	}
	s.mu.Lock()
	addr := s.primary.addr
	s.mu.Unlock()
	conn, err := s.dialer(s.options.DialTimeout)(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return s.track(conn, addr), nil
}

func (s *sentinels) noPrimaryError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil {
		return errNoSentinel
	}
	return fmt.Errorf("%w: %w", errNoSentinel, s.failure)
}

// track closes a connection when its server is no longer the primary.
func (s *sentinels) track(conn net.Conn, addr string) net.Conn {
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

// ledConn is a connection that is closed once its server is no longer the primary.
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

// withSystem wraps a connection so that the client can still ask the system whether the server has
// closed it.
func withSystem(own, inner net.Conn) net.Conn {
	if its, ok := inner.(system); ok {
		return systemConn{own, its}
	}
	return own
}

// systemConn has the methods of both. The alias gives the second field another name than the first.
type systemConn struct {
	net.Conn
	system
}

type system = syscall.Conn
