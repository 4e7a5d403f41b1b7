package metrics

import (
	"slices"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
)

// Bounds on the values of a label; further values are counted as other.
const (
	maxPolicies = 2000
	maxServers  = 64
	maxVersions = 10
)

const (
	other     = "other"
	everyTier = "all"
)

// names are the values that a label has. The zero value is empty.
type names struct {
	mu  sync.Mutex
	all map[string]bool
}

// labelFor returns the name if there is room for it, otherwise other.
func (n *names) labelFor(name string, most int) string {
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

// Tokens counts granted tokens of a policy. It also creates the count of returned tokens, so that
// rules can subtract one count from the other.
func (m *Metrics) Tokens(policy, mode string, tokens int64) {
	if tokens > 0 {
		policy = m.policies.labelFor(policy, maxPolicies)
		m.tokens.WithLabelValues(policy, mode).Add(float64(tokens))
		m.returned.WithLabelValues(policy, mode)
	}
}

// Returned counts tokens of a policy that were granted and came back unused.
func (m *Metrics) Returned(policy, mode string, tokens int64) {
	if tokens > 0 {
		m.returned.WithLabelValues(m.policies.labelFor(policy, maxPolicies), mode).Add(float64(tokens))
	}
}

// Asked counts requests that waited for tokens of a policy, and of a tier if it is not empty, by
// their outcome.
func (m *Metrics) Asked(policy, tier string, granted, refused int64) {
	policy, tier = m.limitLabels(policy, tier)
	if granted > 0 {
		m.asked.WithLabelValues(policy, tier, string(Granted)).Add(float64(granted))
	}
	if refused > 0 {
		m.asked.WithLabelValues(policy, tier, string(Short)).Add(float64(refused))
	}
}

// Refused counts requests that nodes report as refused by a policy to callers of a tier.
func (m *Metrics) Refused(policy, tier string, n int64) {
	policy, tier = m.limitLabels(policy, tier)
	m.refused.WithLabelValues(policy, tier).Add(float64(n))
}

// limitLabels returns the labels of a policy and a tier, which may be empty.
func (m *Metrics) limitLabels(policy, tier string) (string, string) {
	if tier == "" {
		tier = everyTier
	}
	if m.limits.labelFor(policy+"\x00"+tier, maxPolicies) == other {
		return other, other
	}
	return policy, tier
}

// Breaker sets the state of a breaker.
func (m *Metrics) Breaker(server string, state breaker.State) {
	m.breaker.WithLabelValues(m.servers.labelFor(server, maxServers)).Set(float64(state))
}

// Transition counts a change of a breaker, and sets its state.
func (m *Metrics) Transition(c breaker.Change) {
	m.Breaker(c.Name, c.To)
	m.changes.WithLabelValues(m.servers.labelFor(c.Name, maxServers), c.To.String()).Inc()
}

// Census has the number of nodes by applied version, and by step of the failure ladder.
type Census struct {
	Versions map[uint64]int
	States   map[string]int
	// Behind is the number of nodes that do not apply the newest version.
	Behind int
}

// census collects a Census each time metrics are read.
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
	for name, n := range newestVersions(now.Versions) {
		out <- prometheus.MustNewConstMetric(c.versions, prometheus.GaugeValue, float64(n), name)
	}
	for name, n := range now.States {
		out <- prometheus.MustNewConstMetric(c.states, prometheus.GaugeValue, float64(n), name)
	}
}

// byName collects a value of each name each time metrics are read.
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

// newestVersions returns the counts of the newest versions, and the sum of all other counts.
func newestVersions(counts map[uint64]int) map[string]int {
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

// PenaltyBegun counts a penalty that a node reports as begun.
func (m *Metrics) PenaltyBegun(policy string, shadow bool) {
	m.penalties.WithLabelValues(m.offended.labelFor(policy, maxPolicies), stateOf(shadow)).Inc()
}

// PenaltiesFull counts penalties for which the store had no room.
func (m *Metrics) PenaltiesFull(n int) { m.penaltiesFull.Add(float64(n)) }

// PenaltiesUnstored counts a report whose penalties could not be stored.
func (m *Metrics) PenaltiesUnstored() { m.penaltiesUnstored.Inc() }
