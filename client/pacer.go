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

// Options are the options of a Pacer and of a Transport. The zero value has all defaults.
type Options struct {
	// MaxWait is the longest total wait of a request, before it is sent and before its repeats; 0
	// is 30 s, and less than 0 is no wait.
	MaxWait time.Duration
	// Spread is the time over which clients that were refused together come back; 0 is 5 s. After
	// long waits it is a tenth of the wait, at most 6 times Spread.
	Spread time.Duration
	// Retries is the number of repeats of a refused request; 0 is two, and less than 0 is none.
	Retries int
	// Key returns a name for the caller whose limits a request spends from; nil returns the host.
	// If a program uses several API keys, each needs its own name. Only a Transport calls Key.
	Key func(*http.Request) string
	// Route returns a name for all requests that the same policies apply to; nil returns the method
	// and the path, with a star for each part that looks like an identifier. Only a Transport calls
	// Route.
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
	// maxHold is the longest time for which a Pacer believes a refusal and sends no further
	// request.
	maxHold = time.Hour
	// maxRoutes and maxLimits are the largest numbers of routes and limits that a Pacer remembers.
	maxRoutes, maxLimits = 1024, 256
	// The budget of repeats begins at maxBudget and does not exceed it. A request adds 1, and a
	// repeat costs perRepeat: ten repeats at once, then a repeat for each five requests.
	maxBudget = 50
	perRepeat = 5
)

// HeldError reports that a call was not sent: the server refused an earlier request of this kind,
// and that refusal holds for longer than the call may wait.
type HeldError struct {
	// Wait is the time for which the refusal still holds.
	Wait time.Duration
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("client: the server asked to wait for %s more, longer than this request may wait",
		e.Wait.Round(time.Millisecond))
}

// Pacer decides from the answers of a server when further requests may be sent. Use it in a
// transport of your own; a Transport has a Pacer for each key. Several goroutines may use it.
type Pacer struct {
	options Options
	random  func() float64

	mu     sync.Mutex
	routes map[string]*route
	limits map[string]*limit
	// budget is the number of repeats left, in units of 1/perRepeat of a repeat.
	budget int
	// news is closed by the next answer, because an answer may shorten a wait.
	news chan struct{}
}

// route is a name for requests that the same limits apply to.
type route struct {
	name   string
	limits []*limit
	// calls are the calls without an answer yet.
	calls map[*Call]bool
	// held is the time until which the last refusal holds.
	held time.Time
	// turn has a value in it while a call waits as the first of the route's calls.
	turn chan struct{}
}

// NewPacer returns a Pacer that has seen no answer yet.
func NewPacer(o Options) *Pacer { return newPacer(o.withDefaults(), rand.Float64) }

func newPacer(o Options, random func() float64) *Pacer {
	return &Pacer{
		options: o, random: random, budget: maxBudget,
		routes: map[string]*route{}, limits: map[string]*limit{}, news: make(chan struct{}),
	}
}

// Call is a request and its repeats. Only one goroutine may use it.
type Call struct {
	pacer      *Pacer
	route      *route
	repeatable bool
	// repeats is the number of repeats so far, waited the total of all waits.
	repeats int
	waited  time.Duration
	// held is the time until which a refusal of this call alone holds.
	held time.Time
	// spends has an element for each limit that counts this call; empty without a pending request.
	spends []spend
}

// spend is a request as one limit counts it.
type spend struct {
	limit *limit
	// number is the number of the request: the limit's first request is 1.
	number int64
	// before is the number of requests that had no answer yet when this request was sent.
	before int64
}

// Begin starts a call. routeName is any name for all requests that the same policies apply to.
// repeatable reports whether the server may see the request twice.
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

// Answered learns from the answer. It reports whether to repeat the request: call Wait again, then
// send it.
func (c *Call) Answered(ctx context.Context, status int, header http.Header) (again bool) {
	now := time.Now()
	said := Read(header, now)
	p := c.pacer
	p.mu.Lock()
	defer p.mu.Unlock()
	// A refusal holds for the call alone or for its route, and ends at a random time.
	wait, refused, helps := readRefusal(status, said, c.repeats)
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
	p.learnAnswer(c, now, said, refused, late, share)
	// A repeat needs waiting to help, a budget, and the time to wait.
	if !helps || !c.repeatable || c.repeats >= p.options.Retries || p.budget < perRepeat {
		return false
	}
	if max(p.waitOf(c.route, now), c.held.Sub(now)) > c.timeLeft(ctx, now) {
		return false
	}
	p.budget -= perRepeat
	c.repeats++
	return true
}

// Failed ends a call whose request got no answer.
func (c *Call) Failed() {
	c.pacer.mu.Lock()
	defer c.pacer.mu.Unlock()
	c.endRequest()
}

// endRequest ends the call's pending request, and wakes the calls that wait for an answer.
func (c *Call) endRequest() {
	close(c.pacer.news)
	c.pacer.news = make(chan struct{})
	delete(c.route.calls, c)
	for _, s := range c.spends {
		s.limit.pending--
	}
	c.spends = nil
}

// readRefusal reports whether an answer is a refusal, whether waiting helps, and returns the wait.
//
// Retry-After names the wait. Without it, the wait is the longest reset of the policies that have
// no tokens left; if all policies have tokens left, waiting does not help. Without policies too,
// the wait doubles with each repeat.
func readRefusal(status int, said Limits, repeats int) (wait time.Duration, refused, helps bool) {
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

// learnAnswer updates the limits of an answer's policies, and the list of the route's limits.
func (p *Pacer) learnAnswer(c *Call, now time.Time, said Limits, refused bool, late time.Duration, share float64) {
	spends := c.spends
	c.endRequest()
	if len(said.Policies) == 0 {
		return
	}
	// A refusal may name only the policy that refuses. Other answers name all limits of the route.
	if !refused {
		c.route.limits = nil
	}
	for _, s := range said.Policies {
		l := p.limitOf(c, s.Name)
		if !slices.Contains(c.route.limits, l) {
			c.route.limits = append(c.route.limits, l)
		}
		ofLimit := func(s spend) bool { return s.limit == l }
		i := slices.IndexFunc(spends, ofLimit)
		if i < 0 {
			// The limit is new to the route. It counts this request, which has its answer, and all
			// pending requests of the route, which may spend from it too.
			spends = append(spends, l.countRequest(now))
			i = len(spends) - 1
			l.pending--
			for other := range c.route.calls {
				if !slices.ContainsFunc(other.spends, ofLimit) {
					other.spends = append(other.spends, l.countRequest(now))
				}
			}
		}
		s.Reset += late
		l.learnAnswer(now, spends[i], s, refused, share, p.options.Spread)
	}
}

// limitOf returns the limit of a policy's name. A limit without a name belongs to the call's route.
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

// countRequest counts a request that is sent now.
func (l *limit) countRequest(now time.Time) spend {
	l.sent++
	l.pending++
	l.last = now
	return spend{l, l.sent, l.pending - 1}
}
