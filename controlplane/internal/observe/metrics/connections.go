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

// Connections registers the metrics of the connections to a door.
func (m *Metrics) Connections(door string, read func() access.Counts) {
	m.registry.MustRegister(connections{door, read})
}

var (
	connectionsOpen = prometheus.NewDesc("weir_connections",
		"Connections to a listener, by whether a valid token was shown on them.", []string{"listener", "token"}, nil)
	connectionsClosed = prometheus.NewDesc("weir_connections_closed_total",
		"Connections without a valid token that were closed to make room for new connections.",
		[]string{"listener"}, nil)
)
