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

// The names of the metrics of adaptive limits, behind the name of their policy.
const (
	adaptiveName = "adaptive.limit"
	shedName     = "shed.requests"
)

// noteAnswer notes the answer to a request that is Guarded or Reserves.
//
//go:noinline
func (c *httpContext) noteAnswer() {
	p := c.plugin
	c.life.Answered = p.clock.Now()
	if !c.request.Guarded() || c.life.Sent == 0 || !c.fromUpstream() {
		return
	}
	// An error can be quick: its latency does not show the capacity of the upstream.
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

// wakeForGuards lets a tick come soon if an adaptive limit has something to report about an
// upstream.
//
//go:noinline
func (p *pluginContext) wakeForGuards() {
	if p.timer.Slow() && p.guards.NextDue() != quota.Forever {
		p.wake()
	}
}

// guardMetrics are the metrics of a policy with an adaptive limit: the found limit, and the shed
// requests of each class.
type guardMetrics struct {
	found  host.Gauge
	shown  int64
	shed   [adaptive.MaxClasses]host.Counter
	before [adaptive.MaxClasses]uint64
}

// showGuard updates the metrics of one policy. Metrics are defined when they have something to
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

// className returns the name of a class in the policy set in force.
func (p *pluginContext) className(i int) string {
	if rules := p.sync.Rules(); rules != nil {
		if name := rules.Index.Class(i); len(name) > 0 {
			return string(name)
		}
	}
	return "all"
}
