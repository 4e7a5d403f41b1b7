//go:build tinygo

package plugin

import (
	"github.com/weir-proxy/weir/filter/internal/base/report"
	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/filter/internal/envoy/host"
	"github.com/weir-proxy/weir/filter/internal/remote/consumers"
	"github.com/weir-proxy/weir/filter/internal/remote/failover"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// A counter is an Envoy counter and the number that a package of the filter counts. No name
// contains text from a client.
type counter struct {
	name  string
	count *uint64
	// reported is the count at the last report.
	reported uint64
}

// allCounters returns the counters of the plugin: the same names in the same order for each plugin.
func (p *pluginContext) allCounters() []counter {
	var withoutControlPlane central
	c := p.central
	if c == nil {
		c = &withoutControlPlane
	}
	list := append(p.requestCounters(), p.decisionCounters()...)
	list = append(append(list, p.policySetCounters()...), p.penaltyCounters()...)
	return append(list, c.centralCounters()...)
}

func (p *pluginContext) requestCounters() []counter {
	s := &p.limiter.Stats
	return []counter{
		{name: "requests.banned", count: &s.Banned},
		{name: "requests.exempt", count: &s.Exempt},
		{name: "requests.unlimited", count: &s.Unlimited},
		{name: "requests.bypassed", count: &s.Bypassed},
		{name: "requests.allowed", count: &s.Allowed},
		{name: "requests.refused", count: &s.Refused},
		{name: "requests.before_snapshot", count: &p.passed.beforeSnapshot},
		{name: "requests.unreadable", count: &p.passed.unreadable},
		{name: "addresses.not_appended", count: &p.classifier.Surprising},
		{name: "claims.objects", count: p.limiter.Objects()},
		{name: "requests.gone", count: &s.Gone},
		{name: "requests.waited", count: &s.Waited},
		{name: "requests.delayed", count: &s.Delayed},
		{name: "requests.too_many_waiting", count: &s.TooManyWaiting},
		{name: "requests.unanswered", count: &s.Unanswered},
		{name: "headers.left_out", count: &p.leftOut},
		{name: "requests.counted_out", count: &p.flights.Stats.CountedOut},
		{name: "requests.queued", count: &p.flights.Stats.Queued},
		{name: "shadow.allowed", count: &s.ShadowAllowed},
		{name: "shadow.refused", count: &s.ShadowRefused},
		{name: "shadow.undetermined", count: &s.ShadowUndetermined},
		{name: "candidate.allowed", count: &s.CandidateAllowed},
		{name: "candidate.refused", count: &s.CandidateRefused},
		{name: "candidate.undetermined", count: &s.CandidateUndetermined},
	}
}

func (p *pluginContext) decisionCounters() []counter {
	s, store := &p.limiter.Stats, p.store
	return []counter{
		{name: "decisions.by_local", count: &s.Decided[policy.ByLocal]},
		{name: "decisions.by_lease", count: &s.Decided[policy.ByLease]},
		{name: "decisions.by_optimistic", count: &s.Decided[policy.ByOptimistic]},
		{name: "decisions.by_central", count: &s.Decided[policy.ByCentral]},
		{name: "decisions.by_share", count: &s.Decided[policy.ByShare]},
		{name: "decisions.by_failure_allow", count: &s.Decided[policy.ByFailureAllow]},
		{name: "decisions.by_failure_deny", count: &s.Decided[policy.ByFailureDeny]},
		{name: "decisions.by_cached_denial", count: &s.Decided[policy.ByCachedDenial]},
		{name: "decisions.by_request", count: &s.Decided[policy.ByRequest]},
		{name: "decisions.by_overload", count: &s.Decided[policy.ByOverload]},
		{name: "decisions.by_penalty", count: &s.Decided[policy.ByPenalty]},
		{name: "charged_in_vain", count: &s.ChargedInVain},
		{name: "costs.reserved_tokens", count: &s.Settled.Reserved},
		{name: "costs.refunded_tokens", count: &s.Settled.Refunded},
		{name: "costs.overspent_tokens", count: &s.Settled.Overspent},
		{name: "costs.settled", count: &s.Settled.Settled},
		{name: "costs.missing", count: &s.Settled.Missing},
		{name: "costs.unanswered", count: &s.Settled.Kept},
		{name: "costs.unanswered_client_gone", count: &s.Settled.KeptBy[limiter.ClientGone]},
		{name: "costs.unanswered_timed_out", count: &s.Settled.KeptBy[limiter.TimedOut]},
		{name: "costs.unanswered_upstream_failed", count: &s.Settled.KeptBy[limiter.UpstreamFailed]},
		{name: "costs.unanswered_otherwise", count: &s.Settled.KeptBy[limiter.EndedOtherwise]},
		{name: "buckets.retried", count: &store.Retries},
		{name: "buckets.contended", count: &store.Contended},
		{name: "buckets.evicted", count: &store.Evictions},
	}
}

func (p *pluginContext) policySetCounters() []counter {
	s := &p.sync.Stats
	return []counter{
		{name: "snapshots.applied", count: &s.Applied},
		{name: "snapshots.refused", count: &s.Refused},
		{name: "polls.answered", count: &s.Polls[rpc.Answered]},
		{name: "polls.no_answer", count: &s.Polls[rpc.NoAnswer]},
		{name: "polls.refused", count: &s.Polls[rpc.Refused]},
		{name: "polls.unavailable", count: &s.Polls[rpc.Unavailable]},
		{name: "polls.unreadable", count: &s.Polls[rpc.Unreadable]},
		{name: "polls.unsent", count: &s.Polls[rpc.Unsent]},
		{name: "polls.overloaded", count: &s.Polls[rpc.Overloaded]},
	}
}

func (p *pluginContext) penaltyCounters() []counter {
	s := &p.penalties.Stats
	return []counter{
		{name: "penalties.begun", count: &s.Begun},
		{name: "penalties.refused", count: &s.Refused},
		{name: "penalties.shadow_begun", count: &s.ShadowBegun},
		{name: "penalties.shadow_refused", count: &s.ShadowRefused},
		{name: "penalties.lost", count: &s.Lost},
		{name: "penalties.dropped", count: &s.Dropped},
	}
}

// centralCounters returns the counters that need a control plane; without a control plane they stay
// at 0.
func (c *central) centralCounters() []counter {
	// Without a control plane there are no parts that count.
	leases, ladder, cache, reports := &leasing.Stats{}, &failover.Stats{}, &consumers.Stats{}, &report.Stats{}
	if c.leasing != nil {
		leases, ladder, cache, reports = &c.leasing.Stats, &c.failover.Stats, &c.consumers.Stats, &c.reports.Stats
	}
	return []counter{
		{name: "leases.answered", count: &leases.Calls[rpc.Answered]},
		{name: "leases.no_answer", count: &leases.Calls[rpc.NoAnswer]},
		{name: "leases.refused", count: &leases.Calls[rpc.Refused]},
		{name: "leases.unavailable", count: &leases.Calls[rpc.Unavailable]},
		{name: "leases.unreadable", count: &leases.Calls[rpc.Unreadable]},
		{name: "leases.unsent", count: &leases.Calls[rpc.Unsent]},
		{name: "leases.overloaded", count: &leases.Calls[rpc.Overloaded]},
		{name: "leases.unknown", count: &leases.ItemsUnknown},
		{name: "costs.lost", count: &leases.SettlementsLost},
		{name: "leases.lapsed_tokens", count: &leases.Lapsed},
		{name: "leases.returned_tokens", count: &leases.Returned},
		{name: "ladder.entered_normal", count: &ladder.Entered[policy.StepGround]},
		{name: "ladder.entered_leases", count: &ladder.Entered[policy.StepLeases]},
		{name: "ladder.entered_share", count: &ladder.Entered[policy.StepShare]},
		{name: "ladder.entered_allow", count: &ladder.Entered[policy.StepAllow]},
		{name: "ladder.entered_deny", count: &ladder.Entered[policy.StepDeny]},
		{name: "ladder.left_normal", count: &ladder.Left[policy.StepGround]},
		{name: "ladder.left_leases", count: &ladder.Left[policy.StepLeases]},
		{name: "ladder.left_share", count: &ladder.Left[policy.StepShare]},
		{name: "ladder.left_allow", count: &ladder.Left[policy.StepAllow]},
		{name: "ladder.left_deny", count: &ladder.Left[policy.StepDeny]},
		{name: "reports.answered", count: &reports.Taken[wire.SectionLadder]},
		{name: "reports.failed", count: &reports.Failed[wire.SectionLadder]},
		{name: "consumers.asked", count: &cache.Asked},
		{name: "consumers.failed", count: &cache.Failed},
		{name: "consumers.dropped", count: &cache.Dropped},
		{name: "penalties.answered", count: &reports.Taken[wire.SectionOffences]},
		{name: "penalties.failed", count: &reports.Failed[wire.SectionOffences]},
		{name: "decisions.answered", count: &reports.Taken[wire.SectionDecisions]},
		{name: "decisions.failed", count: &reports.Failed[wire.SectionDecisions]},
	}
}

// waitingName is the gauge of waiting requests, the sum of all workers.
const waitingName = "requests.waiting"

// A gauge is an Envoy gauge that the leader sets for the process.
type gauge struct {
	name  string
	value uint64
}

func (p *pluginContext) readGauges(now quota.Instant) [leaderGauges]gauge {
	c := p.central
	return [...]gauge{
		{"ladder.step", uint64(c.failover.Worst())},
		{"snapshot.age_seconds", uint64(p.sync.Age(now) / quota.Second)},
		{"enforcement.orders", c.enforcement.InForce},
		{"enforcement.bans", c.enforcement.Bans},
		{"nodes.sharing", uint64(c.leasing.Nodes())},
	}
}

const leaderGauges = 5

// holdName is the histogram of the time for which requests are held for their decision, in whole
// milliseconds, rounded up. It does not contain the delay of a leaky bucket, because that delay is
// the decision.
const holdName = "hold.milliseconds"

// metrics are the VM's Envoy metrics, defined once: each definition stays for the life of the VM.
type metrics struct {
	counters []host.Counter
	waiting  host.Gauge
	// leader are the gauges that the leader sets, defined when this VM first leads.
	leader []host.Gauge
	hold   host.Histogram
	// policies are counters by policy and outcome, defined when an outcome is first counted.
	policies map[string]*[ruleset.Outcomes]host.Counter
}

// maxPolicyCounters bounds the policies with counters of their own, because Envoy keeps every name
// for ever.
const maxPolicyCounters = 2000

// defineCounters defines the counters of the first plugin. All plugins use them.
func (m *metrics) defineCounters(list []counter) {
	if m.counters != nil {
		return
	}
	m.hold, m.waiting = host.NewHistogram("weir."+holdName), host.NewGauge("weir."+waitingName)
	m.policies = make(map[string]*[ruleset.Outcomes]host.Counter)
	for _, c := range list {
		m.counters = append(m.counters, host.NewCounter("weir."+c.name))
	}
}

// countersOf returns the counters of a policy, nil beyond maxPolicyCounters.
func (m *metrics) countersOf(name string) *[ruleset.Outcomes]host.Counter {
	c := m.policies[name]
	if c == nil && len(m.policies) < maxPolicyCounters {
		c = &[ruleset.Outcomes]host.Counter{}
		for o := range c {
			c[o] = host.NewCounter("weir.policy." + name + ".outcome." + ruleset.Outcome(o).String() + ".decisions")
		}
		m.policies[name] = c
	}
	return c
}

// passed counts requests that no limiter saw.
type passed struct{ beforeSnapshot, unreadable uint64 }

// shown has the values that this VM last set in gauges.
type shown struct {
	waiting int64
	// leader are the values of the leader's gauges, valid if led.
	leader [leaderGauges]gauge
	led    bool
}

// showGauges updates Envoy's gauges. Only the leader sets the gauges of the process.
func (p *pluginContext) showGauges(now quota.Instant) {
	last := &p.shown
	waiting := int64(p.central.leasing.Waiting())
	p.metrics.waiting.Add(waiting - last.waiting)
	last.waiting = waiting
	if !p.sync.Leads() {
		last.led = false
		return
	}
	gauges := p.readGauges(now)
	for i, g := range gauges {
		if len(p.metrics.leader) == i {
			p.metrics.leader = append(p.metrics.leader, host.NewGauge("weir."+g.name))
		}
		if !last.led || g.value != last.leader[i].value {
			p.metrics.leader[i].Set(g.value)
		}
	}
	last.leader, last.led = gauges, true
}

// allRequests is the name of the measures of all requests.
var allRequests = []byte(wire.AllRequests)

// report adds the counts since the last report to Envoy's counters: once a tick, not once a
// request.
func (p *pluginContext) report() {
	for i := range p.counted {
		c := &p.counted[i]
		p.metrics.counters[i].Add(*c.count - c.reported)
		c.reported = *c.count
	}
	p.showFlights()
	for _, rules := range p.sync.Tallied() {
		for policy, counts, ok := rules.Tally.Take(); ok; policy, counts, ok = rules.Tally.Take() {
			name := allRequests
			if policy != rules.Tally.All() {
				name = rules.Index.Text(rules.Index.Policy(policy).Name)
			}
			if p.central != nil && rules.Index.Version() > 0 { // The control plane does not know other policies.
				p.central.measures.Decided(name, rules.Index.Version(), &counts, rules.Tally.TakeUsed(policy))
			}
			if policy == rules.Tally.All() {
				continue
			}
			counters := p.metrics.countersOf(string(name))
			for o := range ruleset.Outcomes {
				if counters != nil {
					counters[o].Add(uint64(counts[o]))
				}
			}
		}
	}
}
