// Package dnstest is a name server whose answers a test changes.
package dnstest

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// Server answers for all names with the same addresses. It ends with the test.
type Server struct {
	t    testing.TB
	conn *net.UDPConn

	mu        sync.Mutex
	addresses []netip.Addr
	silent    bool
	asked     int
}

// Start starts a server on a port of its own that knows of no address.
func Start(t testing.TB) *Server {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, conn: conn}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.serve()
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return s
}

// Port returns its port on 127.0.0.1, over UDP.
func (s *Server) Port() int { return s.conn.LocalAddr().(*net.UDPAddr).Port }

// Answer sets the addresses of all names from now on. Without an address they do not exist.
func (s *Server) Answer(addresses ...string) {
	var all []netip.Addr
	for _, a := range addresses {
		all = append(all, netip.MustParseAddr(a))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses, s.silent = all, false
}

// Silence leaves all questions unanswered until Answer is called.
func (s *Server) Silence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = true
}

// Asked returns the number of questions so far.
func (s *Server) Asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// resolves is the server that this process asks for names; nil: the machine's own.
var resolves atomic.Pointer[Server]

// init has this process ask through resolves. A later change of the resolver itself would race with
// goroutines that look for a name.
func init() {
	net.DefaultResolver = &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if s := resolves.Load(); s != nil {
				network, address = "udp4", s.conn.LocalAddr().String()
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}
}

// Resolve has this process ask this server alone, until the test ends.
func (s *Server) Resolve() {
	s.t.Helper()
	if !resolves.CompareAndSwap(nil, s) {
		s.t.Fatal("another test's server is asked already; do not run the two side by side")
	}
	s.t.Cleanup(func() { resolves.Store(nil) })
}

func (s *Server) serve() {
	packet := make([]byte, 4096)
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(packet)
		if err != nil {
			return // It is closed.
		}
		var question dnsmessage.Message
		if question.Unpack(packet[:n]) != nil || len(question.Questions) != 1 {
			continue
		}
		answer, speak := s.reply(question)
		if !speak {
			continue
		}
		text, err := answer.Pack()
		if err != nil {
			s.t.Errorf("cannot pack an answer: %v", err)
			return
		}
		_, _ = s.conn.WriteToUDPAddrPort(text, from) // The client may be gone.
	}
}

// reply returns the answer to a question, false if there is none.
func (s *Server) reply(question dnsmessage.Message) (dnsmessage.Message, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	q := question.Questions[0]
	answer := dnsmessage.Message{
		Header: dnsmessage.Header{ID: question.ID, Response: true, Authoritative: true, RecursionDesired: true,
			RecursionAvailable: true},
		Questions: question.Questions,
	}
	if len(s.addresses) == 0 {
		answer.RCode = dnsmessage.RCodeNameError
	}
	for _, a := range s.addresses {
		r := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}}
		switch {
		case q.Type == dnsmessage.TypeA && a.Is4():
			r.Body = &dnsmessage.AResource{A: a.As4()}
		case q.Type == dnsmessage.TypeAAAA && a.Is6():
			r.Body = &dnsmessage.AAAAResource{AAAA: a.As16()}
		default:
			continue
		}
		answer.Answers = append(answer.Answers, r)
	}
	return answer, !s.silent
}
