// Package metrics has the control plane's metrics. All labels have few values.
package metrics

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics is one set of metrics with a registry of its own. Make a Metrics with New.
type Metrics struct {
	registry *prometheus.Registry

	requests     *prometheus.HistogramVec
	rpcs         *prometheus.HistogramVec
	items        *prometheus.CounterVec
	batch        prometheus.Histogram
	throttled    *prometheus.CounterVec
	authFailures *prometheus.CounterVec

	store   *prometheus.HistogramVec
	calls   prometheus.Histogram
	breaker *prometheus.GaugeVec
	changes *prometheus.CounterVec
	lost    *prometheus.CounterVec
	stopped prometheus.Counter

	tokens, returned *prometheus.CounterVec
	asked            *prometheus.CounterVec
	refused          *prometheus.CounterVec

	quotas quotas

	penalties                        *prometheus.CounterVec
	penaltiesFull, penaltiesUnstored prometheus.Counter

	// policies, servers, limits and offended are the labels in use: a limit is a policy with a
	// tier; an offended policy is a policy with reported penalties.
	policies, servers, limits, offended names
}

// Gauges are functions that are called when metrics are read. All fields are required unless they
// say otherwise.
type Gauges struct {
	// Nodes returns the number of nodes that share the buckets, Version the policy set's version on
	// this replica.
	Nodes, Version func() float64
	// Refused returns the number of addresses from which calls of nodes are refused now.
	Refused func() float64
	// Unmet returns the number of policies that no request meets.
	Unmet func() float64
	// Census counts the nodes by the values of labels.
	Census func() Census
	// Ready returns 1 while the store can be followed.
	Ready func() float64
	// ClockAhead returns the seconds by which this machine's clock is ahead of the store's, NaN
	// before that is known; nil if the store has no clock of its own.
	ClockAhead func() float64
	// Shared returns 1 while another deployment uses the same keys of the store; nil leaves the
	// metric out.
	Shared func() float64
	// Enforcement counts the orders in force by state, and the banned keys; unsaved is true if the
	// store lacks them.
	Enforcement func() (orders map[string]int, bans int, unsaved bool)
	// Penalties counts the penalties in force, enforced and in shadow; nil leaves the metric out.
	Penalties func() (enforced, shadow int)
	// Fullest returns the highest fill of any bucket of each known policy in the last half minute,
	// in percent; nil leaves the metric out.
	Fullest func() map[string]float64
	// Regions returns 1 while shares can move between the regions, or if there is only one region.
	Regions func() float64
	// SaveAge returns the seconds since the store saved its counters; nil leaves the metric out.
	SaveAge func() float64
	// Full returns how often the store had no room for a bucket; nil leaves the metric out.
	Full func() float64
	// Files returns 1 while the policy set of the files is in force; nil leaves the metric out.
	Files func() float64
	// PollAge returns the seconds since the store was last followed; nil leaves the metric out.
	PollAge func() float64
	// Distance returns the seconds that the store takes to answer; nil leaves the metric out.
	Distance func() float64
	// Expiring returns the seconds until the last token of each name expires, negative after that;
	// nil leaves the metric out.
	Expiring func() map[string]float64
	// WrongFiles returns 1 for each setting whose file cannot be used now; nil leaves the metric
	// out.
	WrongFiles func() map[string]float64
}

var (
	requestBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5, 30}
	storeBuckets   = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, 1}
)

// New makes the metrics.
func New(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.requestMetrics(promauto.With(m.registry))
	m.storeMetrics(promauto.With(m.registry))
	m.limitMetrics(promauto.With(m.registry))
	m.quotaMetrics(promauto.With(m.registry))
	build := promauto.With(m.registry).NewGauge(prometheus.GaugeOpts{
		Name: "weir_build_info", Help: "Always 1; the label is the version.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// requestMetrics registers the metrics of requests to the control plane.
func (m *Metrics) requestMetrics(register promauto.Factory) {
	m.requests = register.NewHistogramVec(prometheus.HistogramOpts{
		Name: "weir_http_request_seconds",
		Help: "Time to answer a request; long polls wait on purpose.", Buckets: requestBuckets,
	}, []string{"route", "method", "code"})
	m.rpcs = register.NewHistogramVec(prometheus.HistogramOpts{
		Name: "weir_grpc_request_seconds",
		Help: "Time to answer a gRPC call; streams stay open on purpose.", Buckets: requestBuckets,
	}, []string{"method", "code"})
	m.items = register.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_lease_items_total",
		Help: "Buckets that nodes asked about, by the answer.",
	}, []string{"outcome"})
	m.batch = register.NewHistogram(prometheus.HistogramOpts{
		Name: "weir_lease_batch_items",
		Help: "Buckets in one lease request.", Buckets: []float64{1, 2, 4, 8, 16, 32, 64},
	})
	m.throttled = register.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_throttled_total",
		Help: "Requests beyond a bound of the control plane itself, by bound.",
	}, []string{"bound"})
	m.authFailures = register.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_auth_failures_total",
		Help: "Requests without a valid token, by reason.",
	}, []string{"reason"})
}

// storeMetrics registers the metrics of the store.
func (m *Metrics) storeMetrics(register promauto.Factory) {
	m.store = register.NewHistogramVec(prometheus.HistogramOpts{
		Name: "weir_store_seconds",
		Help: "Time that the store took.", Buckets: storeBuckets,
	}, []string{"operation", "result"})
	m.calls = register.NewHistogram(prometheus.HistogramOpts{
		Name:    "weir_store_batch_items",
		Help:    "Buckets in one call to Redis, of one lease request or of several.",
		Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 127},
	})
	m.breaker = register.NewGaugeVec(prometheus.GaugeOpts{
		Name: "weir_store_breaker_state",
		Help: "State of the breaker for the store or one of its servers: 0 closed, 1 half-open, 2 open.",
	}, []string{"server"})
	m.changes = register.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_store_breaker_transitions_total",
		Help: "Changes of weir_store_breaker_state, by the new state.",
	}, []string{"server", "to"})
	m.lost = register.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_store_lost_total",
		Help: "Losses of state in the store that this replica has noticed, by the lost part.",
	}, []string{"part"})
	for _, part := range []string{LostPolicySet, LostConsumers, LostPenalties, LostEnforcement} {
		m.lost.WithLabelValues(part) // So that the first loss is an increase.
	}
}

// limitMetrics registers the metrics of requests by the policies that limit them.
func (m *Metrics) limitMetrics(register promauto.Factory) {
	// Tokens and requests.
	m.tokens = register.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_tokens_granted_total",
		Help: "Tokens that nodes were granted; for optimistic policies, the used tokens that nodes reported.",
	}, []string{"policy", "mode"})
	m.returned = register.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_tokens_returned_total",
		Help: "Tokens that nodes were granted and gave back unused.",
	}, []string{"policy", "mode"})
	m.asked = register.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_lease_requests_total",
		Help: "Requests that waited at a node for tokens or for a permit, by the answer of the control plane.",
	}, []string{"policy", "tier", "outcome"})
	m.refused = register.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_refused_total",
		Help: "Requests that nodes have refused, by their reports.",
	}, []string{"policy", "tier"})
	// Rollouts.
	m.stopped = register.NewCounter(prometheus.CounterOpts{
		Name: "weir_rollouts_stopped_total",
		Help: "Rollouts that this replica has taken back by their rule, abort_if, or has tried to take back. " +
			"Several replicas may count the same rollout.",
	})
	// Penalties.
	m.penalties = register.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_penalties_begun_total",
		Help: "Penalties that nodes have begun, by policy, and by whether they refuse or are in shadow.",
	}, []string{"policy", "state"})
	m.penaltiesFull = register.NewCounter(prometheus.CounterOpts{
		Name: "weir_penalties_full_total",
		Help: "Penalties that only one node knows, because the store holds the maximum of penalties.",
	})
	m.penaltiesUnstored = register.NewCounter(prometheus.CounterOpts{
		Name: "weir_penalties_unstored_total",
		Help: "Reports whose penalties could not be stored. The nodes send them again.",
	})
}

// Read registers the gauges. Call it once.
func (m *Metrics) Read(g Gauges) {
	m.registry.MustRegister(newCensus(g.Census), newOverrides(g.Enforcement))
	// Gauges without labels. A gauge that this deployment does not have has a nil function.
	for _, each := range []struct {
		name, help string
		read       func() float64
	}{
		{"weir_nodes", "Envoys that share the buckets.", g.Nodes},
		{"weir_nodes_refused", "Addresses from which calls of Envoys were refused within the last minute.", g.Refused},
		{"weir_policies_unmet", "Policies in force that no request has met, for a day at most.", g.Unmet},
		{"weir_policyset_version", "Version of the policy set on this replica.", g.Version},
		{"weir_store_ready", "1 while the store can be followed.", g.Ready},
		{"weir_regions_moving", "1 while shares can move between the regions, or if there is one region.", g.Regions},
		{"weir_store_save_age_seconds", "How long ago the embedded store saved its counters.", g.SaveAge},
		{"weir_policyset_files_in_force", "1 while the policy set that --policyset names is in force here.", g.Files},
		{"weir_store_poll_age_seconds", "How long ago the store was last followed.", g.PollAge},
		{"weir_store_round_trip_seconds", "Response time of Redis, or of the slowest of its servers.", g.Distance},
		{"weir_clock_ahead_seconds", "How far this machine's clock is ahead of the store's.", g.ClockAhead},
		{"weir_store_shared", "1 while another deployment uses the same keys of the store.", g.Shared},
	} {
		if each.read != nil {
			opts := prometheus.GaugeOpts{Name: each.name, Help: each.help}
			m.registry.MustRegister(prometheus.NewGaugeFunc(opts, each.read))
		}
	}
	// The counter of the embedded store, and gauges with labels.
	if g.Full != nil {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "weir_store_full_total",
			Help: "Times that a bucket was granted nothing because the embedded store is full.",
		}, g.Full))
	}
	if g.Penalties != nil {
		m.registry.MustRegister(newPenalties(g.Penalties))
	}
	if g.Expiring != nil {
		m.registry.MustRegister(newByName(g.Expiring, "weir_token_expires_seconds",
			"In how long the last token of a name expires.", "name"))
	}
	if g.WrongFiles != nil {
		m.registry.MustRegister(newByName(g.WrongFiles, "weir_file_wrong",
			"1 for each setting whose file cannot be used as it is now.", "setting"))
	}
	if g.Fullest != nil {
		m.registry.MustRegister(newByName(g.Fullest, "weir_limit_used_percent",
			"How full the fullest bucket of a policy was in the last half minute, in percent.", "policy"))
	}
}

func newByName(read func() map[string]float64, name, help, label string) byName {
	return byName{read, prometheus.NewDesc(name, help, []string{label}, nil)}
}

func newCensus(read func() Census) census {
	return census{
		read: read,
		versions: prometheus.NewDesc("weir_nodes_by_version",
			"Envoys that share the buckets, by the version they apply: the newest ten, and all other versions.",
			[]string{"version"}, nil),
		states: prometheus.NewDesc("weir_nodes_by_state",
			"Envoys that share the buckets, by the highest step of the failure ladder that they report.",
			[]string{"state"}, nil),
		behind: prometheus.NewDesc("weir_nodes_behind",
			"Envoys that share the buckets and do not apply the newest version.", nil, nil),
	}
}

// Values for Lost: the parts of a store that can be lost.
const (
	LostPolicySet   = "policyset"
	LostConsumers   = "consumers"
	LostPenalties   = "penalties"
	LostEnforcement = "enforcement"
)

// Lost counts a loss of a part of the store.
func (m *Metrics) Lost(part string) { m.lost.WithLabelValues(part).Inc() }

// Stopped counts a rollout that was taken back by its rule.
func (m *Metrics) Stopped() { m.stopped.Inc() }

// Handler serves the metrics in Prometheus' text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// Request counts an answered request. route is a pattern; empty for a request without a route.
func (m *Metrics) Request(route, method string, status int, took time.Duration) {
	if route == "" {
		route = "none"
	}
	switch method {
	case http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete,
		http.MethodHead, http.MethodPatch, http.MethodOptions:
	default:
		method = "other"
	}
	m.requests.WithLabelValues(route, method, statusClass(status)).Observe(took.Seconds())
}

// Call counts an answered gRPC call, by its full method, which must be a served method, and by the
// name of its status.
func (m *Metrics) Call(method, code string, took time.Duration) {
	m.rpcs.WithLabelValues(method, code).Observe(took.Seconds())
}

// statusClass returns the class of a status, like 2xx.
func statusClass(status int) string {
	classes := [...]string{"1xx", "2xx", "3xx", "4xx", "5xx"}
	if i := status/100 - 1; i >= 0 && i < len(classes) {
		return classes[i]
	}
	return strconv.Itoa(status/100) + "xx"
}

// Outcome is the answer to a node about a bucket.
type Outcome string

// Granted in full, in part (Short), or not at all. Unknown: the node must fetch the newest policy
// set. Unavailable: the part of the store with the bucket does not answer.
const (
	Granted Outcome = "granted"
	Short   Outcome = "short"
	Unknown Outcome = "unknown"

	Unavailable Outcome = "unavailable"
)

// Outcomes has the number of buckets in one lease request with each outcome.
type Outcomes struct{ Granted, Short, Unknown, Unavailable int }

// Items counts the buckets of one lease request.
func (m *Metrics) Items(o Outcomes) {
	for _, one := range [...]struct {
		outcome Outcome
		n       int
	}{{Granted, o.Granted}, {Short, o.Short}, {Unknown, o.Unknown}, {Unavailable, o.Unavailable}} {
		if one.n > 0 {
			m.items.WithLabelValues(string(one.outcome)).Add(float64(one.n))
		}
	}
	m.batch.Observe(float64(o.Granted + o.Short + o.Unknown + o.Unavailable))
}

// Result is the result of an operation of the store: all, for some items only, or an error.
type Result string

// The results.
const (
	OK      Result = "ok"
	Partial Result = "partial"
	Error   Result = "error"
)

// Batch counts the buckets of one call to Redis that grants leases.
func (m *Metrics) Batch(buckets int) { m.calls.Observe(float64(buckets)) }

// Store counts one operation of the store.
func (m *Metrics) Store(operation string, took time.Duration, result Result) {
	m.store.WithLabelValues(operation, string(result)).Observe(took.Seconds())
}
