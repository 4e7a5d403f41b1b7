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
	p.resumeEach(p.limiter.Release(now, p.room), (*httpContext).release)
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

// catchUp does the work that slow ticks have not done yet, before a request. So no request finds
// policies, enforcement or clocks that are older than a timer.Tick.
func (p *pluginContext) catchUp(c *httpContext) {
	if now := p.clock.Now(); p.timer.Begin(now) {
		p.work(now, c)
		host.Begin()
		host.Select(c.request.Stream)
	}
	p.wake()
}

// work does the periodic work of a VM, at most once a timer.Tick, in a tick or in the callback of
// the request own. nextDue must know when each part of it is due.
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
	p.resumeWaiting(own)
	c.reports.Tick(now, p.sync.Rules())
	p.showGauges(now)
}

// nextDue returns when work has something to do that no callback causes.
func (p *pluginContext) nextDue(now quota.Instant) quota.Instant {
	due := min(p.store.NextDue(), p.sync.NextDue(now), p.flights.NextDue(now), p.guards.NextDue())
	if c := p.central; c != nil {
		due = min(due, c.consumers.NextDue(), c.leasing.NextDue(now),
			c.failover.NextDue(now, p.sync.Leads()), c.reports.NextDue(now))
	}
	return due
}

// nextResume returns when a waiting request goes on, or when a gathered call leaves.
func (p *pluginContext) nextResume(now quota.Instant) quota.Instant {
	next := min(p.limiter.NextRelease(), p.flights.NextResume(now))
	if p.central != nil {
		next = min(next, p.central.leasing.NextResume(now))
	}
	return next
}

// resumeSeated continues requests that waited for places, in a plugin whose requests wait for
// nothing else.
func (p *pluginContext) resumeSeated(now quota.Instant, own *httpContext) {
	if p.nextResume(now) <= now {
		p.resumeWaiting(own)
	}
}

// resumeWaiting continues requests that waited. In the callback of the request own it continues
// only that request.
func (p *pluginContext) resumeWaiting(own *httpContext) {
	if own == nil {
		p.resumeResolved()
	} else {
		p.resumeOwn(own)
	}
}

// hasten lets a tick come when a request can go on.
func (p *pluginContext) hasten(at quota.Instant) { p.setTick(p.timer.Hasten(p.clock.Now(), at)) }

// soon is the longest time by which a slow tick may be late.
const soon = quota.Instant(50 * quota.Millisecond)

// wakeForPlaces lets a tick come soon if places must be given back, or given to waiting requests.
func (p *pluginContext) wakeForPlaces(now quota.Instant) {
	if at := p.flights.NextResume(now); at <= now {
		p.hasten(at)
	} else if p.timer.Slow() && p.flights.NextDue(now) <= now+soon {
		p.wake()
	}
}

// wake lets a tick come soon, because a callback has changed something that the tick counts, sends
// or awaits.
func (p *pluginContext) wake() { p.setTick(p.timer.Wake(p.clock.Now())) }

// setTick sets the period of ticks, which begins anew; 0 changes nothing.
func (p *pluginContext) setTick(period quota.Span) {
	if period > 0 {
		host.SetTick(period)
	}
}
