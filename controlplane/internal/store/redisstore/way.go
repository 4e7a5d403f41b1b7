package redisstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/grant/gather"
)

// Calls go on after their callers have given up. Otherwise the connection of the call must be
// closed, since an answer may still arrive on it; the next caller waits for a new connection and
// gives up too. If Redis is far away, no call would ever be answered.

const (
	// lookedAt is the number of recent looks that measure the distance of a server.
	lookedAt = 5
	// unknownLook is the time limit of a look at a server whose distance is not known. The first
	// look also waits for a connection, which takes two or three round trips.
	unknownLook = time.Second
)

// distances are the answer times of servers, by their addresses. The zero value is empty. It is
// safe for concurrent use.
type distances struct {
	mu sync.Mutex
	to map[string][]time.Duration
}

// note records the time that a server took to answer a look. After a failure it forgets the server:
// it may be farther away than before.
func (d *distances) note(addr string, took time.Duration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		delete(d.to, addr)
		return
	}
	if d.to == nil {
		d.to = map[string][]time.Duration{}
	}
	last := append(d.to[addr], took)
	d.to[addr] = last[max(len(last)-lookedAt, 0):]
}

// keep forgets all servers that are not named.
func (d *distances) keep(named map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for addr := range d.to {
		if !named[addr] {
			delete(d.to, addr)
		}
	}
}

// farthest returns the median of the last looks at the slowest server; 0 if no server is known.
func (d *distances) farthest() (longest time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, last := range d.to {
		sorted := slices.Sorted(slices.Values(last))
		longest = max(longest, sorted[(len(sorted)-1)/2])
	}
	return longest
}

// RoundTrip returns the answer time of the farthest server, from the last looks at it; 0 if it is
// not known.
func (s *Store) RoundTrip() time.Duration { return s.far.farthest() }

// lookTime returns the time limit of a background check of a server, for which no request waits.
func (s *Store) lookTime() time.Duration {
	if far := s.far.farthest(); far > 0 {
		return leastLook + 4*far
	}
	return unknownLook
}

// outlast makes a call that may go on after ctx ends, for at most ioTimeout. It returns when the
// call or ctx ends; with a ctx of gather.Outlast it returns when the call ends.
func outlast(ctx context.Context, call func(context.Context) *redis.Cmd) *redis.Cmd {
	life, cancel := context.WithTimeout(context.WithoutCancel(ctx), ioTimeout)
	done := make(chan *redis.Cmd, 1)
	go func() {
		defer cancel()
		done <- call(life)
	}()
	select {
	case answered := <-done:
		return answered
	case <-ctx.Done():
		if late, outlasts := gather.Outlasts(ctx); outlasts {
			late(ctx.Err())
			return <-done
		}
		given := redis.NewCmd(ctx)
		given.SetErr(ctx.Err())
		return given
	}
}
