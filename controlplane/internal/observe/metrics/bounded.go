package metrics

import (
	"slices"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
)

// How many values a label takes at most; what comes later is counted as other.
const (
	maxPolicies = 2000
	maxServers  = 64
	maxVersions = 10
)

const (
	other     = "other"
	everyTier = "all"
)

// names are the values that a label has taken. The zero value has none.
type names struct {
	mu  sync.Mutex
	all map[string]bool
}

// label is a name as long as there is room for it.
func (n *names) label(name string, most int) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all[name] {
		return name
	}
	if len(n.all) >= most {
		return other
	}
	if n.all == nil {
		n.all = map[string]bool{}
	}
	n.all[name] = true
	return name
}

// Tokens counts tokens of a policy. There is a count of those that went back beside it, so that
// rules can subtract one from the other.
func (m *Metrics) Tokens(policy, mode string, tokens int64) {
	if tokens > 0 {
		policy = m.policies.label(policy, maxPolicies)
		m.tokens.WithLabelValues(policy, mode).Add(float64(tokens))
		m.returned.WithLabelValues(policy, mode)
	}
}

// Returned counts tokens of a policy that were granted and not used.
func (m *Metrics) Returned(policy, mode string, tokens int64) {
	if tokens > 0 {
		m.returned.WithLabelValues(m.policies.label(policy, maxPolicies), mode).Add(float64(tokens))
	}
}

// Asked counts requests that waited for tokens of a policy, and of one tier if that is not empty,
// by what became of them.
func (m *Metrics) Asked(policy, tier string, granted, refused int64) {
	policy, tier = m.limit(policy, tier)
	if granted > 0 {
		m.asked.WithLabelValues(policy, tier, string(Granted)).Add(float64(granted))
	}
	if refused > 0 {
		m.asked.WithLabelValues(policy, tier, string(Short)).Add(float64(refused))
	}
}

// Refused counts requests that nodes say a policy has refused to callers of a tier.
func (m *Metrics) Refused(policy, tier string, n int64) {
	policy, tier = m.limit(policy, tier)
	m.refused.WithLabelValues(policy, tier).Add(float64(n))
}

// limit is the labels of a policy and a tier, which may be empty.
func (m *Metrics) limit(policy, tier string) (string, string) {
	if tier == "" {
		tier = everyTier
	}
	if m.limits.label(policy+"\x00"+tier, maxPolicies) == other {
		return other, other
	}
	return policy, tier
}

// Breaker notes a breaker's state.
func (m *Metrics) Breaker(server string, state breaker.State) {
	m.breaker.WithLabelValues(m.servers.label(server, maxServers)).Set(float64(state))
}

// Transition counts a change of a breaker, and notes its state.
func (m *Metrics) Transition(c breaker.Change) {
	m.Breaker(c.Name, c.To)
	m.changes.WithLabelValues(m.servers.label(c.Name, maxServers), c.To.String()).Inc()
}

// Census is how many nodes apply each version, and how many are on each step of the failure ladder.
type Census struct {
	Versions map[uint64]int
	States   map[string]int
	// Behind is how many do not apply the newest version.
	Behind int
}

// census collects a Census each time metrics are asked for.
type census struct {
	read                     func() Census
	versions, states, behind *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c census) Describe(out chan<- *prometheus.Desc) {
	out <- c.versions
	out <- c.states
	out <- c.behind
}

// Collect implements prometheus.Collector.
func (c census) Collect(out chan<- prometheus.Metric) {
	now := c.read()
	out <- prometheus.MustNewConstMetric(c.behind, prometheus.GaugeValue, float64(now.Behind))
	for name, n := range newest(now.Versions) {
		out <- prometheus.MustNewConstMetric(c.versions, prometheus.GaugeValue, float64(n), name)
	}
	for name, n := range now.States {
		out <- prometheus.MustNewConstMetric(c.states, prometheus.GaugeValue, float64(n), name)
	}
}

// byName collects a value of each name each time metrics are asked for.
type byName struct {
	read func() map[string]float64
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (b byName) Describe(out chan<- *prometheus.Desc) { out <- b.desc }

// Collect implements prometheus.Collector.
func (b byName) Collect(out chan<- prometheus.Metric) {
	for name, value := range b.read() {
		out <- prometheus.MustNewConstMetric(b.desc, prometheus.GaugeValue, value, name)
	}
}

// newest are the counts of the newest versions, and of all others together.
func newest(counts map[uint64]int) map[string]int {
	var versions []uint64
	for v := range counts {
		versions = append(versions, v)
	}
	slices.Sort(versions)
	slices.Reverse(versions)
	out := map[string]int{}
	for i, v := range versions {
		name := strconv.FormatUint(v, 10)
		if i >= maxVersions {
			name = other
		}
		out[name] += counts[v]
	}
	return out
}

// PenaltyBegun counts a penalty that a node says it has begun.
func (m *Metrics) PenaltyBegun(policy string, shadow bool) {
	m.penalties.WithLabelValues(m.offended.label(policy, maxPolicies), stateOf(shadow)).Inc()
}

// PenaltiesFull counts penalties that found no place in the store.
func (m *Metrics) PenaltiesFull(n int) { m.penaltiesFull.Add(float64(n)) }

// PenaltiesUnstored counts a report whose penalties could not be stored.
func (m *Metrics) PenaltiesUnstored() { m.penaltiesUnstored.Inc() }
