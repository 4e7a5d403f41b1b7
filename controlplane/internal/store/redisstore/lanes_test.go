package redisstore_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// tarpit leads to a server, and lets no answer pass on a connection on which a word was sent.
type tarpit struct {
	net.Listener
	word  []byte
	stuck chan struct{}

	mu    sync.Mutex
	conns []net.Conn
}

// end ends all connections.
func (p *tarpit) end() {
	p.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}

func startTarpit(t *testing.T, to, word string) *tarpit {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &tarpit{Listener: l, word: []byte(word), stuck: make(chan struct{}, 1000)}
	t.Cleanup(p.end)
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go p.join(from, to)
		}
	}()
	return p
}

func (p *tarpit) join(from net.Conn, to string) {
	defer from.Close()
	p.mu.Lock()
	p.conns = append(p.conns, from)
	p.mu.Unlock()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		answer := make([]byte, 64<<10)
		for {
			n, err := server.Read(answer)
			if err != nil {
				return
			}
			if _, err := from.Write(answer[:n]); err != nil {
				return
			}
		}
	}()
	asked := make([]byte, 64<<10)
	for {
		n, err := from.Read(asked)
		if err != nil {
			return
		}
		if bytes.Contains(bytes.ToLower(asked[:n]), p.word) {
			p.stuck <- struct{}{}
			continue
		}
		if _, err := server.Write(asked[:n]); err != nil {
			return
		}
	}
}

// While all connections that there are for people wait for an answer, grants have theirs.
func TestPeopleLeaveGrantsTheirConnections(t *testing.T) {
	server := redistest.Start(t)
	pit := startTarpit(t, server.Addr(), "zrange")
	s := openURL(t, "redis://"+pit.Addr().String()+"/0?pool_size=2", slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer pit.end()
	defer cancel()
	for range 20 {
		readers.Go(func() {
			if _, err := s.Decisions(access.ForPeople(ctx), "", 100); err == nil {
				t.Error("a reader was answered")
			}
		})
	}
	for range 2 {
		<-pit.stuck
	}
	begin := time.Now()
	g := one(t, s, keyhash.Key{1}, params(t, 100, quota.Hour, 100), 10)
	if g.Waiting != 10 || time.Since(begin) > 10*time.Second {
		t.Errorf("a grant after %v: %+v", time.Since(begin), g)
	}
}

// A call that people and nodes share goes the way of grants, also if people are the first in it.
func TestSharedCallsGoTheWayOfGrants(t *testing.T) {
	server := redistest.Start(t)
	s := openURL(t, server.URL()+"?pool_size=2", slog.New(slog.DiscardHandler))
	ctx, turn, err := access.NewTurns(1, 1).EnterForPeople(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer turn.Give()
	if access.IsForPeople(access.ForGrants(ctx)) || !access.IsForPeople(ctx) || access.IsForPeople(t.Context()) {
		t.Error("the context says another way")
	}
	if _, err := s.Decisions(ctx, "", 10); err != nil {
		t.Error(err)
	}
	if _, err := s.Audit(ctx, "", 10); err != nil {
		t.Error(err)
	}
}
