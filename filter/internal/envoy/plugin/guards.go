//go:build tinygo

package plugin

import (
	"github.com/weir-proxy/weir/filter/internal/envoy/host"
	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
)

// What metrics of adaptive limits are called, behind the name of their policy.
const (
	adaptiveName = "adaptive.limit"
	shedName     = "shed.requests"
)

// answered notes when a request is answered that is Guarded or Reserves.
//
//go:noinline
func (c *httpContext) answered() {
	p := c.plugin
	c.life.Answered = p.clock.Now()
	if !c.request.Guarded() || c.life.Sent == 0 || !c.fromUpstream() {
		return
	}
	// An error can be quick: its latency says nothing of what the upstream can do.
	if status := host.ResponseHeader(":status"); len(status) == 3 && status[0] < '5' {
		p.limiter.Answered(&c.request, quota.Span(c.life.Answered-c.life.Sent))
	}
	if c.request.WantsReports() {
		if used, ok := adaptive.Utilisation(host.ResponseHeader("endpoint-load-metrics")); ok {
			p.limiter.Reported(&c.request, used)
		}
	}
	p.wakeForGuards()
}

// fromUpstream reports whether the upstream gave the answer.
func (c *httpContext) fromUpstream() bool {
	return text.Is(host.Property(match.DetailsPath), match.WholeResponse)
}

// wakeForGuards makes a tick come soon if there is anything to say of an upstream.
//
//go:noinline
func (p *pluginContext) wakeForGuards() {
	if p.timer.Slow() && p.guards.NextDue() != quota.Forever {
		p.wake()
	}
}

// guardMetrics are the metrics of a policy with an adaptive limit: what it has found, and what it
// has shed of each class.
type guardMetrics struct {
	found  host.Gauge
	shown  int64
	shed   [adaptive.MaxClasses]host.Counter
	before [adaptive.MaxClasses]uint64
}

// showGuard brings the metrics of one policy up to date, which are made when there is something to
// show.
//
//go:noinline
func (p *pluginContext) showGuard(m *flightMetrics, g *inflight.Group) {
	prefix := "weir.policy." + g.Name + "."
	if m.guard == nil {
		m.guard = &guardMetrics{found: host.NewGauge(prefix + adaptiveName)}
	}
	a := m.guard
	if g.Found != a.shown {
		a.found.Set(uint64(g.Found))
		a.shown = g.Found
	}
	for i := range g.Shed {
		n := g.Shed[i]
		if n == a.before[i] {
			continue
		}
		if a.before[i] == 0 {
			a.shed[i] = host.NewCounter(prefix + "class." + p.className(i) + "." + shedName)
		}
		a.shed[i].Add(n - a.before[i])
		a.before[i] = n
	}
}

// className is the name of a class by the policy set in force.
func (p *pluginContext) className(i int) string {
	if rules := p.sync.Rules(); rules != nil {
		if name := rules.Index.Class(i); len(name) > 0 {
			return string(name)
		}
	}
	return "all"
}
