//go:build tinygo

package plugin

import "github.com/weir-proxy/weir/filter/internal/envoy/host"

// The names of the metrics of requests in flight, behind the name of their policy.
const (
	requestsName   = "in_flight.requests"
	limitName      = "in_flight.limit"
	peakName       = "in_flight.peak_percent"
	countedOutName = "in_flight.counted_out"
)

// flightMetrics are the metrics of one policy's requests in flight.
type flightMetrics struct {
	inFlight, limit   host.Gauge
	peak              host.Histogram
	countedOut        host.Counter
	shown, shownLimit int64
	countedOutBefore  uint64
	guard             *guardMetrics
}

// showFlights updates the metrics of requests in flight.
func (p *pluginContext) showFlights() {
	groups := p.flights.Groups()
	for i, g := range groups {
		if i == len(p.flown) {
			p.flown = append(p.flown, newFlightMetrics(g.Name))
		}
		m := &p.flown[i]
		m.inFlight.Add(g.InFlight - m.shown)
		m.shown = g.InFlight
		m.countedOut.Add(g.CountedOut - m.countedOutBefore)
		m.countedOutBefore = g.CountedOut
		if g.Found > 0 {
			p.showGuard(m, g)
		}
		if !g.Touched {
			continue
		}
		if g.Limit != m.shownLimit {
			m.limit.Set(uint64(g.Limit))
			m.shownLimit = g.Limit
		}
		m.peak.Record(uint64(g.Peak))
		g.Peak, g.Touched = 0, false
	}
}

// newFlightMetrics defines the metrics of a policy.
func newFlightMetrics(policy string) flightMetrics {
	prefix := "weir.policy." + policy + "."
	return flightMetrics{
		inFlight: host.NewGauge(prefix + requestsName), limit: host.NewGauge(prefix + limitName),
		peak: host.NewHistogram(prefix + peakName), countedOut: host.NewCounter(prefix + countedOutName),
	}
}
