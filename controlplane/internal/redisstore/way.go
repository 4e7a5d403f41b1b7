package redisstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/gather"
)

// Calls go on when their callers' patience ends. A connection whose call is given up must be
// closed, since an answer may still come on it; and the next caller, who must wait for another to
// be made, gives up as well: where Redis is far, no call would ever be answered.

const (
	// lookedAt is how many of the last looks at a server say how far it is.
	lookedAt = 5
	// unknownLook bounds a look at a server of which that is not known. A first look also waits
	// for a connection, which takes two or three round trips.
	unknownLook = time.Second
)

// distances are how long servers take to answer, by their addresses. The zero value knows none. It
// is safe for concurrent use.
type distances struct {
	mu sync.Mutex
	to map[string][]time.Duration
}

// note notes how long a server took to answer a look, or that it did not: then it may be farther
// than it was.
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

// keep forgets the servers that are not named.
func (d *distances) keep(named map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for addr := range d.to {
		if !named[addr] {
			delete(d.to, addr)
		}
	}
}

// farthest is the median of the last looks at the server for which it is longest; 0 if none is
// known.
func (d *distances) farthest() (longest time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, last := range d.to {
		sorted := slices.Sorted(slices.Values(last))
		longest = max(longest, sorted[(len(sorted)-1)/2])
	}
	return longest
}

// RoundTrip is how long the farthest server takes to answer, by the last looks at it; 0 if that is
// not known.
func (s *Store) RoundTrip() time.Duration { return s.far.farthest() }

// lookTime bounds a check of a server in the background, which no request waits for.
func (s *Store) lookTime() time.Duration {
	if far := s.far.farthest(); far > 0 {
		return leastLook + 4*far
	}
	return unknownLook
}

// outlast makes a call that may go on when ctx ends: for as long as an answer may take at all. The
// caller is answered when the call or ctx ends; with a ctx of gather.Outlast when the call ends.
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
