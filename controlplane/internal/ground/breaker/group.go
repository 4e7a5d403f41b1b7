package breaker

import (
	"sync"
	"time"
)

// Change describes a transition of a breaker.
type Change struct {
	// Name is the name of the breaker.
	Name     string
	From, To State
	// After is the time since the breaker left Closed; 0 when it leaves Closed.
	After time.Duration
	// Cause is the last failure; nil for the change to Closed or HalfOpen.
	Cause error
}

// Group is a set of breakers by name. Make a Group with NewGroup. A nil Group allows every request.
// It is safe for concurrent use.
type Group struct {
	now    func() time.Time
	luck   func() float64
	notify func(Change)

	mu  sync.Mutex
	all map[string]*member
}

type member struct {
	Breaker
	since time.Time // time of the first of the current failures; zero without failures
	left  time.Time // time at which it left Closed
}

// NewGroup makes a Group. now is its clock, luck returns a random number in [0, 1). notify, if not
// nil, is called once for each transition, one call at a time.
func NewGroup(now func() time.Time, luck func() float64, notify func(Change)) *Group {
	return &Group{now: now, luck: luck, notify: notify, all: map[string]*member{}}
}

// Allow reports whether a request to the named server is allowed. If so, the caller must report its
// result, unless it stops waiting.
func (g *Group) Allow(name string) bool {
	if g == nil {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.all[name]
	if m == nil || m.state == Closed {
		return true
	}
	from := m.state
	ok := m.Allow(g.now())
	g.reportChange(name, m, from, nil)
	return ok
}

// Report records the result of an allowed request to the named server.
func (g *Group) Report(name string, err error) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.all[name]
	if m == nil {
		if err == nil {
			return
		}
		m = &member{}
		g.all[name] = m
	}
	now, from := g.now(), m.state
	if err == nil {
		m.since = time.Time{}
	} else if m.since.IsZero() {
		m.since = now
	}
	m.Report(now, err == nil, g.luck())
	g.reportChange(name, m, from, err)
	if err == nil {
		delete(g.all, name)
	}
}

// Refused records that the named server answered but refused to serve. Callers see it as
// unreachable, although they do not wait for it.
func (g *Group) Refused(name string) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.all[name]
	if m == nil {
		m = &member{}
		g.all[name] = m
	}
	if m.since.IsZero() {
		m.since = g.now()
	}
}

// reportChange reports a transition. The caller holds the lock.
func (g *Group) reportChange(name string, m *member, from State, cause error) {
	if from == m.state {
		return
	}
	c := Change{Name: name, From: from, To: m.state, Cause: cause}
	if now := g.now(); from == Closed {
		m.left = now
	} else {
		c.After = now.Sub(m.left)
	}
	if g.notify != nil {
		g.notify(c)
	}
}

// Failing returns how long the named server has not answered; 0 if it answered the last request or
// there was none.
func (g *Group) Failing(name string) time.Duration {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if m := g.all[name]; m != nil && !m.since.IsZero() {
		return g.now().Sub(m.since)
	}
	return 0
}

// Keep removes all breakers that are not in names, because their servers do not exist any more.
func (g *Group) Keep(names map[string]bool) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, m := range g.all {
		if names[name] {
			continue
		}
		from := m.state
		m.Breaker = Breaker{}
		g.reportChange(name, m, from, nil)
		delete(g.all, name)
	}
}

// Closed reports whether the named server answered the last request, or failed fewer times than
// tolerated.
func (g *Group) Closed(name string) bool {
	if g == nil {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.all[name]
	return m == nil || m.state == Closed
}
