package leases

import (
	"sync"
	"time"
)

const (
	tolerated = 5
	rest      = 250 * time.Millisecond
)

// breaker leaves a store alone that does not answer: after a few failures in a row only one request in each rest goes
// through, so that the others fail at once instead of piling up. The zero value lets everything through.
type breaker struct {
	mu       sync.Mutex
	failures int
	until    time.Time
}

func (b *breaker) allow(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < tolerated {
		return true
	}
	if now.Before(b.until) {
		return false
	}
	b.until = now.Add(rest) // This one finds out.
	return true
}

func (b *breaker) report(now time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ok {
		b.failures = 0
		return
	}
	b.failures++
	b.until = now.Add(rest)
}
