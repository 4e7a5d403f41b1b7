//go:build tinygo

package plugin

import (
	"github.com/weir-proxy/weir/filter/internal/consumers"
	"github.com/weir-proxy/weir/filter/internal/host"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/filter/internal/limiter"
)

// The filter's counters, in the order of pluginContext.counts. No name holds anything that a client sent.
var counterNames = [...]string{
	"requests.banned", "requests.exempt", "requests.unlimited", "requests.allowed", "requests.refused",
	"requests.before_snapshot", "requests.unreadable",
	"shadow.allowed", "shadow.refused", "shadow.undetermined",
	"candidate.allowed", "candidate.refused", "candidate.undetermined",
	"requests.waited", "requests.delayed", "requests.too_many_waiting",
	"failure.share", "failure.allowed", "failure.refused", "charged_in_vain",
	"buckets.contended", "buckets.evicted",
	"snapshots.applied", "snapshots.refused", "polls.failed",
	"leases.answered", "leases.failed", "leases.unknown",
	"consumers.asked", "consumers.failed", "consumers.dropped",
}

// metrics are the VM's Envoy counters, defined once: each definition stays for the life of the VM.
type metrics struct {
	counters [len(counterNames)]host.Counter
	// policies are counters by policy and outcome, made when an outcome is first counted.
	policies map[string]*[limiter.Outcomes]host.Counter
}

// maxPolicyCounters bounds the policies with counters of their own: Envoy keeps every name it was ever given.
const maxPolicyCounters = 2000

func newMetrics() *metrics {
	m := &metrics{policies: make(map[string]*[limiter.Outcomes]host.Counter)}
	for i, name := range counterNames {
		m.counters[i] = host.NewCounter("weir." + name)
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
func (p *pluginContext) counts() [len(counterNames)]uint64 {
	s, sync := &p.limiter.Stats, &p.sync.Stats
	var desk leasing.Stats
	var people consumers.Stats
	if p.desk != nil {
		desk, people = p.desk.Stats, p.people.Stats
	}
	return [len(counterNames)]uint64{
		s.Banned, s.Exempt, s.Unlimited, s.Allowed, s.Refused,
		p.passed.beforeSnapshot, p.passed.unreadable,
		s.ShadowAllowed, s.ShadowRefused, s.ShadowUndetermined,
		s.CandidateAllowed, s.CandidateRefused, s.CandidateUndetermined,
		s.Waited, s.Delayed, desk.Turned + s.Turned,
		s.FailureShare, s.FailureAllowed, s.FailureRefused, s.ChargedInVain,
		p.store.Contended, p.store.Evictions,
		sync.Applied, sync.Refused, sync.PollsFailed,
		desk.CallsAnswered, desk.CallsFailed, desk.ItemsUnknown,
		people.Asked, people.Failed, people.Dropped,
	}
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
