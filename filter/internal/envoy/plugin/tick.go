//go:build tinygo

package plugin

import (
	"github.com/weir-proxy/weir/filter/internal/envoy/host"
	"github.com/weir-proxy/weir/shared/quota"
)

// OnTick implements types.PluginContext.
func (p *pluginContext) OnTick() {
	host.Begin()
	now := p.clock.Now()
	p.room = atOnce
	p.guards.Late(p.timer.Late(now))
	p.resumeEach(p.limiter.Release(now, p.room), (*httpContext).send)
	due := now
	if p.timer.Begin(now) {
		p.work(now, nil)
		due = p.nextDue(now)
	} else if p.central != nil {
		p.central.leasing.EndLate(now)
		p.central.leasing.Flush(now)
		p.resumeResolved()
	} else {
		p.resumeSeated(now, nil)
	}
	p.setTick(p.timer.Plan(now, p.nextResume(now), due))
}

// catchUp does before a request what slow ticks have left undone. So no request finds policies,
// orders or clocks that are older than a timer.Tick.
func (p *pluginContext) catchUp(c *httpContext) {
	if now := p.clock.Now(); p.timer.Begin(now) {
		p.work(now, c)
		host.Begin()
		host.Select(c.request.Stream)
	}
	p.wake()
}

// work is what a VM does at most once a timer.Tick, in a tick or in the callback of a request, own.
// What it does, nextDue must know.
func (p *pluginContext) work(now quota.Instant, own *httpContext) {
	p.setAhead()
	p.store.Tick(now)
	p.flights.Tick(now)
	p.guards.Tick(now)
	p.report()
	if p.central == nil {
		p.sync.Tick(now)
		p.resumeSeated(now, own)
		return
	}
	c := p.central
	if c.enforcement.Tick((int64(now) + int64(p.limiter.Ahead)) / millisecond) {
		if rules := p.sync.Rules(); rules != nil {
			c.enforcement.Bind(&rules.Index)
		}
	}
	p.sync.Tick(now)
	if rules := p.sync.Rules(); rules != nil && rules.Index.HasPenalties() {
		p.penalties.Follow()
	}
	c.consumers.Tick(now)
	c.leasing.Tick(now)
	p.syncFailover(now)
	p.resume(own)
	c.reports.Tick(now, p.sync.Rules())
	p.showGauges(now)
}

// nextDue is when work has something to do that no callback brings about.
func (p *pluginContext) nextDue(now quota.Instant) quota.Instant {
	due := min(p.store.NextDue(), p.sync.NextDue(now), p.flights.NextDue(now), p.guards.NextDue())
	if c := p.central; c != nil {
		due = min(due, c.consumers.NextDue(), c.leasing.NextDue(now),
			c.failover.NextDue(now, p.sync.Leads()), c.reports.NextDue(now))
	}
	return due
}

// nextResume is when a request that waits goes on, or what gathers for a call leaves.
func (p *pluginContext) nextResume(now quota.Instant) quota.Instant {
	next := min(p.limiter.NextRelease(), p.flights.NextResume(now))
	if p.central != nil {
		next = min(next, p.central.leasing.NextResume(now))
	}
	return next
}

// resumeSeated goes on with requests that waited for places, in a plugin where none waits for
// anything else.
func (p *pluginContext) resumeSeated(now quota.Instant, own *httpContext) {
	if p.nextResume(now) <= now {
		p.resume(own)
	}
}

// resume goes on with requests that waited: in the callback of a request, own, with that one alone.
func (p *pluginContext) resume(own *httpContext) {
	if own == nil {
		p.resumeResolved()
	} else {
		p.resumeOwn(own)
	}
}

// hasten makes a tick come when a request can go on.
func (p *pluginContext) hasten(at quota.Instant) { p.setTick(p.timer.Hasten(p.clock.Now(), at)) }

// soon is after how long a slow tick may be too late.
const soon = quota.Instant(50 * quota.Millisecond)

// wakeForPlaces makes a tick come soon if places are to be given back or to requests that wait.
func (p *pluginContext) wakeForPlaces(now quota.Instant) {
	if at := p.flights.NextResume(now); at <= now {
		p.hasten(at)
	} else if p.timer.Slow() && p.flights.NextDue(now) <= now+soon {
		p.wake()
	}
}

// wake makes a tick come soon: a callback has changed what is to be counted, sent or awaited.
func (p *pluginContext) wake() { p.setTick(p.timer.Wake(p.clock.Now())) }

// setTick sets the period of ticks, which begins anew; 0 leaves it as it is.
func (p *pluginContext) setTick(period quota.Span) {
	if period > 0 {
		host.SetTick(period)
	}
}
