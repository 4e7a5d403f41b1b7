package overload

import (
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Late notes by how much a tick came late.
func (g *Guards) Late(by quota.Span) {
	if g.ticks == 0 || by < g.leastLate {
		g.leastLate = by
	}
	g.ticks++
}

// Tick shares this worker's observations, and updates whether it is late.
//
//go:noinline
func (g *Guards) Tick(now quota.Instant) {
	if len(g.list) == 0 {
		return
	}
	if passed := quota.Span(now - g.lateBegan); g.ticks >= lateTicks && passed >= adaptive.ShedEvery {
		pressure := adaptive.Late(g.leastLate)
		for _, u := range g.list {
			if u.by&policy.ByWorker != 0 {
				u.late.Next(u.classes, adaptive.Kept(u.classes), &u.came, pressure, passed)
			}
			u.came = adaptive.Load{}
		}
		g.ticks, g.lateBegan = 0, now
	}
	for _, u := range g.list {
		if u.news && now >= u.looked+quota.Instant(mergeEvery) {
			g.mergeShared(u, now)
		}
	}
}

// mergeShared adds this worker's observations to the shared value.
//
//go:noinline
func (g *Guards) mergeShared(u *guard, now quota.Instant) {
	u.countHeld(now)
	for range maxAttempts {
		cas, found := g.readShared(u, now)
		k := &u.known
		k.Rest(now)
		k.Window.Merge(&u.window)
		k.Load.Merge(&u.load)
		k.Reports.Merge(&u.reports)
		k.Advance(u.config, u.classes, now)
		g.value = k.Append(g.value[:0])
		if shareddata.Swap(g.shared, g.key[:], g.value, cas, found) {
			u.window, u.load, u.reports = adaptive.Window{}, adaptive.Load{}, adaptive.Reports{}
			u.news = false
			break
		}
	}
	if u.group != nil {
		u.group.Found = u.known.Limit.Most()
	}
}

// NextDue returns when Tick has something to do.
//
//go:noinline
func (g *Guards) NextDue() quota.Instant {
	due := quota.Forever
	for _, u := range g.list {
		if u.news {
			due = min(due, u.looked+quota.Instant(mergeEvery))
		}
	}
	return due
}
