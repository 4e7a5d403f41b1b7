package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// quotas counts events at the door for Envoy's rate_limit_quota filters.
type quotas struct {
	requests, assigned, ignored *prometheus.CounterVec
}

func (m *Metrics) quotaMetrics(register promauto.Factory) {
	m.quotas.requests = register.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_rlqs_requests_total",
		Help: "Requests that rate_limit_quota filters reported, by outcome.",
	}, []string{"outcome"})
	m.quotas.assigned = register.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_rlqs_assignments_total",
		Help: "Assignments to rate_limit_quota filters, by kind.",
	}, []string{"kind"})
	m.quotas.ignored = register.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_rlqs_ignored_total",
		Help: "Buckets of rate_limit_quota filters that were ignored, by reason.",
	}, []string{"reason"})
}

// Quotas registers the gauges of the door: the number of open streams, and the number of their
// buckets.
func (m *Metrics) Quotas(load func() (streams, buckets int)) {
	register := promauto.With(m.registry)
	register.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_rlqs_streams", Help: "Open streams of rate_limit_quota filters.",
	}, func() float64 {
		streams, _ := load()
		return float64(streams)
	})
	register.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_rlqs_buckets", Help: "Buckets that rate_limit_quota filters have, counted in each stream.",
	}, func() float64 {
		_, buckets := load()
		return float64(buckets)
	})
}

// QuotaReported counts requests that filters reported as admitted and refused.
func (m *Metrics) QuotaReported(admitted, refused uint64) {
	m.quotas.requests.WithLabelValues("admitted").Add(float64(admitted))
	m.quotas.requests.WithLabelValues("refused").Add(float64(refused))
}

// QuotaAssigned counts an assignment.
func (m *Metrics) QuotaAssigned(kind string) { m.quotas.assigned.WithLabelValues(kind).Inc() }

// QuotaIgnored counts a bucket that was ignored.
func (m *Metrics) QuotaIgnored(reason string) { m.quotas.ignored.WithLabelValues(reason).Inc() }
