package metrics

import "github.com/prometheus/client_golang/prometheus"

// overrides collects the orders of operators each time metrics are read.
type overrides struct {
	read                  func() (orders map[string]int, bans int, unsaved bool)
	orders, bans, unsaved *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (o overrides) Describe(out chan<- *prometheus.Desc) {
	out <- o.orders
	out <- o.bans
	out <- o.unsaved
}

// Collect implements prometheus.Collector.
func (o overrides) Collect(out chan<- prometheus.Metric) {
	orders, bans, unsaved := o.read()
	for state, n := range orders {
		out <- prometheus.MustNewConstMetric(o.orders, prometheus.GaugeValue, float64(n), state)
	}
	out <- prometheus.MustNewConstMetric(o.bans, prometheus.GaugeValue, float64(bans))
	held := 0.0
	if unsaved {
		held = 1
	}
	out <- prometheus.MustNewConstMetric(o.unsaved, prometheus.GaugeValue, held)
}

func newOverrides(read func() (orders map[string]int, bans int, unsaved bool)) overrides {
	return overrides{
		read: read,
		orders: prometheus.NewDesc("weir_enforcement_override",
			"Orders in force that win over the policy set, by the state that they order.", []string{"state"}, nil),
		bans: prometheus.NewDesc("weir_enforcement_bans", "Partition keys that are banned.", nil, nil),
		unsaved: prometheus.NewDesc("weir_enforcement_unsaved",
			"1 while orders or bans are held in memory, since the store is away.", nil, nil),
	}
}
