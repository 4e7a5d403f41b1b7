package metrics

import "github.com/prometheus/client_golang/prometheus"

// penalties collects the penalties in force.
type penalties struct {
	read func() (enforced, shadow int)
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (p penalties) Describe(to chan<- *prometheus.Desc) { to <- p.desc }

// Collect implements prometheus.Collector.
func (p penalties) Collect(to chan<- prometheus.Metric) {
	enforced, shadow := p.read()
	to <- prometheus.MustNewConstMetric(p.desc, prometheus.GaugeValue, float64(enforced), stateOf(false))
	to <- prometheus.MustNewConstMetric(p.desc, prometheus.GaugeValue, float64(shadow), stateOf(true))
}

// stateOf returns the label of a penalty that refuses, or is in shadow.
func stateOf(shadow bool) string {
	if shadow {
		return "shadow"
	}
	return "enforce"
}

func newPenalties(read func() (enforced, shadow int)) penalties {
	return penalties{read, prometheus.NewDesc("weir_penalties",
		"Penalties in force, by whether they refuse (enforce) or are in shadow.", []string{"state"}, nil)}
}
