package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-proxy/weir/controlplane/internal/access"
)

// connections reads the counts of one listener.
type connections struct {
	listener string
	read     func() access.Counts
}

// Describe implements prometheus.Collector. It describes nothing, so that there can be one
// collector for each listener.
func (connections) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c connections) Collect(out chan<- prometheus.Metric) {
	n := c.read()
	for token, count := range map[string]int{"valid": n.Known, "none": n.Strangers} {
		out <- prometheus.MustNewConstMetric(connectionsOpen, prometheus.GaugeValue, float64(count), c.listener, token)
	}
	out <- prometheus.MustNewConstMetric(connectionsClosed, prometheus.CounterValue, float64(n.Closed), c.listener)
}
