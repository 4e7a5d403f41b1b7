package client

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Options are what a Pacer and a Transport can be made with. The zero value has all defaults.
type Options struct {
	// MaxWait is the most that one request waits in all, before it is sent and before it is
	// repeated; 0 is 30 s, and less than 0 never waits.
	MaxWait time.Duration
	// Spread is the time over which clients come back that were refused together; 0 is 5 s. After
	// long waits it is a tenth of the wait, at most 6 times Spread.
	Spread time.Duration
	// Retries is how often a refused request is repeated; 0 is twice, and less than 0 never.
	Retries int
	// Key names whose limits a request spends from, for a Transport; nil takes the host. Requests
	// with other API keys need another name.
	Key func(*http.Request) string
	// Route names the requests that the same policies apply to, for a Transport; nil takes the
	// method and the path without what looks like an identifier in it.
	Route func(*http.Request) string
}

func (o Options) withDefaults() Options {
	o.MaxWait = max(cmp.Or(o.MaxWait, 30*time.Second), 0)
	o.Spread = max(cmp.Or(o.Spread, 5*time.Second), 0)
	o.Retries = max(cmp.Or(o.Retries, 2), 0)
	if o.Key == nil {
		o.Key = func(r *http.Request) string { return r.URL.Host }
	}
	if o.Route == nil {
		o.Route = routeOf
	}
	return o
}

const (
	// maxHold bounds for how long a refusal is believed without another question.
	maxHold = time.Hour
	// maxRoutes and maxLimits bound what a Pacer remembers.
	maxRoutes, maxLimits = 1024, 256
	// The budget of repeats is ten at first and at most. A request adds a fifth of a repeat, which
	// is the unit.
	maxBudget = 50
	perRepeat = 5
)

// HeldError says that the server has refused a request of this kind, and that the wait it asked for
// is longer than the call may wait. Nothing was sent.
type HeldError struct {
	// Wait is how long the refusal still holds.
	Wait time.Duration
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("client: the server asked to wait for %s more, longer than this request may wait",
		e.Wait.Round(time.Millisecond))
}

// Pacer decides when requests to one server may be sent, by what its answers say. It is for
// transports of your own; Transport has one for each host. It may be used by several goroutines.
type Pacer struct {
	options Options
	random  func() float64

	mu     sync.Mutex
	routes map[string]*route
	limits map[string]*limit
	budget int
	// news is closed with the next answer, which may shorten a wait.
	news chan struct{}
}

// route is the requests that the same limits apply to.
type route struct {
	name   string
	limits []*limit
	// calls are those without an answer yet.
	calls map[*Call]bool
	// held is when the last refusal ends.
	held time.Time
	// turn has a value in it while a call waits at the head of the others.
	turn chan struct{}
}

// NewPacer makes a Pacer that knows nothing yet.
func NewPacer(o Options) *Pacer { return newPacer(o.withDefaults(), rand.Float64) }

func newPacer(o Options, random func() float64) *Pacer {
	return &Pacer{
		options: o, random: random, budget: maxBudget,
		routes: map[string]*route{}, limits: map[string]*limit{}, news: make(chan struct{}),
	}
}

// Call is one request, with its repeats. It is for one goroutine.
type Call struct {
	pacer      *Pacer
	route      *route
	repeatable bool
	repeats    int
	waited     time.Duration
	// held is until when the server has refused this call alone.
	held time.Time
	// spends are the limits that count this call, until it is answered.
	spends []spend
}

// spend is the number of a request among those that a limit has counted.
type spend struct {
	limit  *limit
	number int64
	// before is how many had no answer yet when it was sent.
	before int64
}

// Begin starts a call. Route is any name for the requests that the same policies apply to;
// repeatable says that the server may see the request twice.
func (p *Pacer) Begin(routeName string, repeatable bool) *Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.budget = min(p.budget+1, maxBudget)
	r := p.routes[routeName]
	if r == nil {
		if len(p.routes) >= maxRoutes {
			clear(p.routes)
		}
		r = &route{name: routeName, calls: map[*Call]bool{}, turn: make(chan struct{}, 1)}
		p.routes[routeName] = r
	}
	return &Call{pacer: p, route: r, repeatable: repeatable}
}

// Answered takes in the answer. It reports whether to repeat the request: Wait again, then send.
func (c *Call) Answered(ctx context.Context, status int, header http.Header) (again bool) {
	now := time.Now()
	said := Read(header, now)
	p := c.pacer
	p.mu.Lock()
	defer p.mu.Unlock()
	wait, refused, helps := refusal(status, said, c.repeats)
	share := p.random()
	var late time.Duration
	if helps {
		late = time.Duration(share * float64(min(max(wait/10, p.options.Spread), 6*p.options.Spread)))
		until := now.Add(min(wait, maxHold) + late)
		if said.tooDear() {
			c.held = until
		} else {
			c.route.held = until
		}
	}
	p.learn(c, now, said, refused, late, share)
	if !helps || !c.repeatable || c.repeats >= p.options.Retries || p.budget < perRepeat {
		return false
	}
	if max(p.waitOf(c.route, now), c.held.Sub(now)) > c.room(ctx, now) {
		return false
	}
	p.budget -= perRepeat
	c.repeats++
	return true
}

// Failed ends a call that got no answer.
func (c *Call) Failed() {
	c.pacer.mu.Lock()
	defer c.pacer.mu.Unlock()
	c.land()
}

// land takes the call out of those without an answer.
func (c *Call) land() {
	close(c.pacer.news)
	c.pacer.news = make(chan struct{})
	delete(c.route.calls, c)
	for _, s := range c.spends {
		s.limit.flying--
	}
	c.spends = nil
}

// refusal is how long to wait after an answer, whether it is a refusal, and whether waiting helps.
// An answer that says how much is left, but not for how long to wait, says that waiting does not
// help, unless nothing is left. One that says neither asks for longer waits with each repeat.
func refusal(status int, said Limits, repeats int) (wait time.Duration, refused, helps bool) {
	if status != http.StatusTooManyRequests && (status < 400 || !said.HasRetryAfter) {
		return 0, false, false
	}
	if said.HasRetryAfter {
		return said.RetryAfter, true, true
	}
	if len(said.Policies) == 0 {
		return time.Second << min(repeats, 10), true, true
	}
	for _, l := range said.Policies {
		if l.Left == 0 {
			wait, helps = max(wait, l.Reset), true
		}
	}
	return wait, true, helps
}

// learn hands the limits of an answer what it says, and notes which limits the route has.
func (p *Pacer) learn(c *Call, now time.Time, said Limits, refused bool, late time.Duration, share float64) {
	mine := c.spends
	c.land()
	if len(said.Policies) == 0 {
		return
	}
	if !refused {
		c.route.limits = nil
	}
	for _, s := range said.Policies {
		l := p.limitOf(c, s.Name)
		if !slices.Contains(c.route.limits, l) {
			c.route.limits = append(c.route.limits, l)
		}
		ofLimit := func(s spend) bool { return s.limit == l }
		i := slices.IndexFunc(mine, ofLimit)
		if i < 0 {
			// No request before this one is known to have spent from it, but those that fly may.
			mine = append(mine, l.count(now))
			i = len(mine) - 1
			l.flying--
			for other := range c.route.calls {
				if !slices.ContainsFunc(other.spends, ofLimit) {
					other.spends = append(other.spends, l.count(now))
				}
			}
		}
		s.Reset += late
		l.learn(now, mine[i], s, refused, share, p.options.Spread)
	}
}

// limitOf is the limit of a name. A limit without a name is the route's own.
func (p *Pacer) limitOf(c *Call, name string) *limit {
	key := "policy " + name
	if name == "" {
		key = "route " + c.route.name
	}
	l := p.limits[key]
	if l == nil {
		if len(p.limits) >= maxLimits {
			clear(p.limits)
		}
		l = &limit{}
		p.limits[key] = l
	}
	return l
}

// count counts a request that goes out.
func (l *limit) count(now time.Time) spend {
	l.sent++
	l.flying++
	l.last = now
	return spend{l, l.sent, l.flying - 1}
}
