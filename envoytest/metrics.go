package envoytest

import (
	"sync"
)

// Kinds of metric; the kind is also in the low bits of a metric id.
const (
	metricCounter = iota
	metricGauge
	metricHistogram
	metricKinds

	metricIDStep = 4
	metricIDMask = 3
)

// metric is one stat of the process. Counters and gauges use value; a histogram has count and sum.
type metric struct {
	mu         sync.Mutex
	value      uint64
	count, sum uint64
}

// metricSet holds the stats of a process: they are shared by name, by all VMs, and live as long as
// it does.
type metricSet struct {
	mu     sync.Mutex
	byName [metricKinds]map[string]*metric
}

func (m *metricSet) define(kind uint32, name string) *metric {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byName[kind] == nil {
		m.byName[kind] = map[string]*metric{}
	}
	if m.byName[kind][name] == nil {
		m.byName[kind][name] = &metric{}
	}
	return m.byName[kind][name]
}

func (m *metricSet) find(kind int, name string) *metric {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byName[kind][name]
}

// Metric returns the value of a counter or, failing that, of a gauge.
func (h *Host) Metric(name string) (value uint64, ok bool) {
	for _, kind := range []int{metricCounter, metricGauge} {
		if m := h.metrics.find(kind, name); m != nil {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.value, true
		}
	}
	return 0, false
}

// Histogram returns how many values a histogram was given, and their sum.
func (h *Host) Histogram(name string) (count, sum uint64, ok bool) {
	m := h.metrics.find(metricHistogram, name)
	if m == nil {
		return 0, 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count, m.sum, true
}

// defineMetric gives the VM a new id for a stat. Ids are per VM, and each definition adds an id,
// even if the name is known.
func (v *vm) defineMetric(kind uint32, name string) (id uint32, st status) {
	if kind >= metricKinds {
		return 0, statusBadArgument
	}
	v.lastMetricID[kind] += metricIDStep
	id = v.lastMetricID[kind] | kind
	v.metrics[id] = v.h.metrics.define(kind, name)
	return id, statusOK
}

// incrementMetric refuses to move a counter by zero or down: the real host does too, and the Go SDK
// panics on it.
func (v *vm) incrementMetric(id uint32, offset int64) status {
	kind := id & metricIDMask
	if kind >= metricHistogram {
		return statusBadArgument
	}
	m := v.metrics[id]
	if m == nil {
		return statusNotFound
	}
	if kind == metricCounter && offset <= 0 {
		return statusBadArgument
	}
	m.mu.Lock()
	m.value += uint64(offset)
	m.mu.Unlock()
	return statusOK
}

// recordMetric adds to a counter, sets a gauge, and gives a histogram one more value.
func (v *vm) recordMetric(id uint32, value uint64) status {
	m := v.metrics[id]
	if m == nil {
		return statusNotFound
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch id & metricIDMask {
	case metricCounter:
		m.value += value
	case metricGauge:
		m.value = value
	default:
		m.count++
		m.sum += value
	}
	return statusOK
}

func (v *vm) getMetric(id uint32) (uint64, status) {
	if id&metricIDMask >= metricHistogram {
		return 0, statusBadArgument
	}
	m := v.metrics[id]
	if m == nil {
		return 0, statusNotFound
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.value, statusOK
}
