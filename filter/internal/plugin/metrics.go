//go:build tinygo

package plugin

import (
	"github.com/weir-proxy/weir/filter/internal/consumers"
	"github.com/weir-proxy/weir/filter/internal/host"
	"github.com/weir-proxy/weir/filter/internal/ladder"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/filter/internal/limiter"
	"github.com/weir-proxy/weir/filter/internal/samples"
	"github.com/weir-proxy/weir/shared/quota"
)

// The filter's metrics. No name holds anything that a client sent.
var (
	// The counters, in the order of pluginContext.counts.
	counterNames = [...]string{
		"requests.banned", "requests.exempt", "requests.unlimited", "requests.bypassed", "requests.allowed", "requests.refused",
		"requests.before_snapshot", "requests.unreadable", "requests.gone",
		"requests.waited", "requests.delayed", "requests.too_many_waiting",
		"shadow.allowed", "shadow.refused", "shadow.undetermined",
		"candidate.allowed", "candidate.refused", "candidate.undetermined",
		"decisions.by_local", "decisions.by_lease", "decisions.by_optimistic", "decisions.by_central", "decisions.by_share",
		"decisions.by_failure_allow", "decisions.by_failure_deny", "decisions.by_cached_denial", "decisions.by_request",
		"decisions.by_overload",
		"charged_in_vain", "buckets.retried", "buckets.contended", "buckets.evicted",
		"snapshots.applied", "snapshots.refused",
		"polls.answered", "polls.no_answer", "polls.refused", "polls.unavailable", "polls.unreadable", "polls.unsent", "polls.overloaded",
		"leases.answered", "leases.no_answer", "leases.refused", "leases.unavailable", "leases.unreadable", "leases.unsent", "leases.overloaded",
		"leases.unknown", "leases.lapsed_tokens",
		"ladder.entered_normal", "ladder.entered_leases", "ladder.entered_share", "ladder.entered_allow", "ladder.entered_deny",
		"ladder.left_normal", "ladder.left_leases", "ladder.left_share", "ladder.left_allow", "ladder.left_deny",
		"reports.answered", "reports.failed",
		"consumers.asked", "consumers.failed", "consumers.dropped",
		"samples.answered", "samples.failed",
	}
	// The gauges: the first is the sum of all workers, the others are the leader's.
	gaugeNames = [...]string{"requests.waiting", "ladder.step", "snapshot.age_seconds", "enforcement.orders", "enforcement.bans"}
)

// holdName is the histogram of the time that requests are held for their decision, in whole
// milliseconds, rounded up. A leaky bucket's delay is not in it: that is the decision.
const holdName = "hold.milliseconds"

// metrics are the VM's Envoy metrics, defined once: each definition stays for the life of the VM.
type metrics struct {
	counters [len(counterNames)]host.Counter
	gauges   [len(gaugeNames)]host.Gauge
	hold     host.Histogram
	// policies are counters by policy and outcome, made when an outcome is first counted.
	policies map[string]*[limiter.Outcomes]host.Counter
}

// maxPolicyCounters bounds the policies with counters of their own: Envoy keeps every name it was ever given.
const maxPolicyCounters = 2000

func newMetrics() *metrics {
	m := &metrics{hold: host.NewHistogram("weir." + holdName), policies: make(map[string]*[limiter.Outcomes]host.Counter)}
	for i, name := range counterNames {
		m.counters[i] = host.NewCounter("weir." + name)
	}
	for i, name := range gaugeNames {
		m.gauges[i] = host.NewGauge("weir." + name)
	}
	return m
}

// ofPolicy are the counters of a policy, nil beyond the bound.
func (m *metrics) ofPolicy(name string) *[limiter.Outcomes]host.Counter {
	c := m.policies[name]
	if c == nil && len(m.policies) < maxPolicyCounters {
		c = &[limiter.Outcomes]host.Counter{}
		for o := range c {
			c[o] = host.NewCounter("weir.policy." + name + ".outcome." + limiter.Outcome(o).String() + ".decisions")
		}
		m.policies[name] = c
	}
	return c
}

// passed counts requests that no limiter saw.
type passed struct{ beforeSnapshot, unreadable uint64 }

// counts are the numbers behind the counters, which the packages that know them count.
func (p *pluginContext) counts() (c [len(counterNames)]uint64) {
	s, sync := &p.limiter.Stats, &p.sync.Stats
	var desk leasing.Stats
	var people consumers.Stats
	var steps ladder.Stats
	var told samples.Stats
	if p.desk != nil {
		desk, people, steps, told = p.desk.Stats, p.people.Stats, p.ladder.Stats, p.samples.Stats
	}
	n := 0
	for _, some := range [...][]uint64{
		{s.Banned, s.Exempt, s.Unlimited, s.Bypassed, s.Allowed, s.Refused, p.passed.beforeSnapshot, p.passed.unreadable, s.Gone},
		{s.Waited, s.Delayed, desk.Turned + s.Turned},
		{s.ShadowAllowed, s.ShadowRefused, s.ShadowUndetermined},
		{s.CandidateAllowed, s.CandidateRefused, s.CandidateUndetermined},
		s.Decided[:],
		{s.ChargedInVain, p.store.Retries, p.store.Contended, p.store.Evictions},
		{sync.Applied, sync.Refused}, sync.Polls[:], desk.Calls[:], {desk.ItemsUnknown, desk.Lapsed},
		steps.Entered[:], steps.Left[:], {steps.Reported, steps.Failed},
		{people.Asked, people.Failed, people.Dropped},
		{told.Told, told.Failed},
	} {
		n += copy(c[n:], some)
	}
	return c
}

// shown is what the gauges showed last of this VM.
type shown struct {
	waiting int64
	// leaders are the gauges after the first, if led.
	leaders [len(gaugeNames) - 1]uint64
	led     bool
}

// show brings Envoy's gauges up to date. Those of the process are the leader's to set.
func (p *pluginContext) show(now quota.Instant) {
	last := &p.shown
	waiting := int64(p.desk.Waiting())
	p.metrics.gauges[0].Add(waiting - last.waiting)
	last.waiting = waiting
	if !p.sync.Leads() {
		last.led = false
		return
	}
	for i, n := range [len(last.leaders)]uint64{
		uint64(p.ladder.Worst()), uint64(p.sync.Age(now) / quota.Second), p.orders.InForce, p.orders.Bans,
	} {
		if !last.led || n != last.leaders[i] {
			p.metrics.gauges[i+1].Set(n)
		}
		last.leaders[i] = n
	}
	last.led = true
}

// report brings Envoy's counters up to what was counted since the last report: once a tick, not once a request.
func (p *pluginContext) report() {
	counts := p.counts()
	for i := range counts {
		p.metrics.counters[i].Add(counts[i] - p.reported[i])
	}
	p.reported = counts
	for _, rules := range p.sync.Tallied() {
		for policy, counts, ok := rules.Tally.Take(); ok; policy, counts, ok = rules.Tally.Take() {
			counters := p.metrics.ofPolicy(string(rules.Index.Text(rules.Index.Policy(policy).Name)))
			for o := range counts {
				if counters != nil {
					counters[o].Add(uint64(counts[o]))
				}
			}
		}
	}
}
