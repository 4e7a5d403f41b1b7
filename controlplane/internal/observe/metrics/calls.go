package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Calls counts the decisions of the gRPC rate limit service, in the words of the filter's own
// counters. Make a Calls with Metrics.Calls.
type Calls struct {
	metrics                  *Metrics
	calls, decisions, source *prometheus.CounterVec
}

// Calls registers the counters. Call it once.
func (m *Metrics) Calls() *Calls {
	register := promauto.With(m.registry)
	return &Calls{
		metrics: m,
		calls: register.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_rls_calls_total",
			Help: "Calls to the gRPC rate limit service, by outcome.",
		}, []string{"outcome"}),
		decisions: register.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_rls_decisions_total",
			Help: "Decisions about calls to the gRPC rate limit service.",
		}, []string{"policy", "outcome"}),
		source: register.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_rls_decided_total",
			Help: "Decisions about calls to the gRPC rate limit service, by source of the decision.",
		}, []string{"source"}),
	}
}

// Call implements rls.Meter.
func (c *Calls) Call(outcome string) { c.calls.WithLabelValues(outcome).Inc() }

// Decided implements rls.Meter.
func (c *Calls) Decided(policy, source string, refused bool) {
	outcome := "allowed"
	if refused {
		outcome = "refused"
	}
	c.decisions.WithLabelValues(c.metrics.policies.labelFor(policy, maxPolicies), outcome).Inc()
	c.source.WithLabelValues(source).Inc()
}

// Watched implements rls.Meter.
func (c *Calls) Watched(policy string, candidate bool, seen string) {
	outcome := "shadow_" + seen
	if candidate {
		outcome = "candidate_" + seen
	}
	c.decisions.WithLabelValues(c.metrics.policies.labelFor(policy, maxPolicies), outcome).Inc()
}
