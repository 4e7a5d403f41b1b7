package adaptive_test

import (
	"math"
	"math/rand/v2"

	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
)

// The model is an upstream with servers that requests wait for, callers that ask for three times
// what it can give, and an Envoy between them. All of it is in virtual time.

// classes are the shares of the classes in the requests, the most important first.
var classes = []float64{0.05, 0.15, 0.3, 0.5}

// upstream serves requests in their order.
type upstream struct {
	// servers are how many requests are served at once, slow is how many times as long each takes
	// as usual.
	servers int
	slow    float64
	// service draws how long a request takes.
	service func(*rand.Rand) float64

	busy  int
	queue []*call
}

type call struct {
	class   int
	arrived quota.Instant
}

// change is what becomes of the upstream at an instant.
type change struct {
	at      quota.Instant
	servers int
	slow    float64
}

type model struct {
	rng    *rand.Rand
	now    quota.Instant
	events vtimetest.Queue[quota.Instant]
	upstream

	// offered is the requests a second, until end. deadline is how long callers wait.
	offered  float64
	end      quota.Instant
	deadline quota.Span
	gate     gate

	inFlight int
	// good are the answers in time by second; came and served count by class.
	good         []int
	came, served []int
}

// gate is the Envoy. It says which requests go on, and sees how they end.
type gate interface {
	admit(now quota.Instant, class int, caller uint8, inFlight int) bool
	ended(now quota.Instant, latency quota.Span)
	tick(now quota.Instant, inFlight int)
}

func newModel(seed uint64) *model {
	return &model{
		rng: rand.New(rand.NewPCG(seed, 7)), offered: 6000, end: 120_000_000, deadline: quota.Second / 2,
		upstream: upstream{servers: 40, slow: 1, service: exponential(20_000)},
		came:     make([]int, len(classes)), served: make([]int, len(classes)),
	}
}

func exponential(mean float64) func(*rand.Rand) float64 {
	return func(rng *rand.Rand) float64 { return rng.ExpFloat64() * mean }
}

func lognormal(mean, sigma float64) func(*rand.Rand) float64 {
	return func(rng *rand.Rand) float64 {
		return mean * math.Exp(sigma*rng.NormFloat64()-sigma*sigma/2)
	}
}

func (m *model) run(changes ...change) {
	m.good = make([]int, m.end/1_000_000+1)
	for _, c := range changes {
		m.events.Add(c.at, func() {
			m.servers, m.slow = c.servers, c.slow
			m.serve()
		})
	}
	m.arrive()
	m.beat()
	for e, ok := m.events.Next(m.end); ok; e, ok = m.events.Next(m.end) {
		m.now = e.At
		e.Fire()
	}
}

func (m *model) after(micros float64, fire func()) {
	m.events.Add(m.now+quota.Instant(max(micros, 1)), fire)
}

func (m *model) beat() {
	m.gate.tick(m.now, m.inFlight)
	m.after(10_000, m.beat)
}

func (m *model) arrive() {
	m.after(m.rng.ExpFloat64()*1e6/m.offered, func() {
		class, at := 0, m.rng.Float64()
		for at > classes[class] && class < len(classes)-1 {
			at -= classes[class]
			class++
		}
		m.came[class]++
		if m.gate.admit(m.now, class, uint8(m.rng.IntN(adaptive.Cohorts)), m.inFlight) {
			m.served[class]++
			m.inFlight++
			m.queue = append(m.queue, &call{class: class, arrived: m.now})
			m.serve()
		}
		m.arrive()
	})
}

func (m *model) serve() {
	for m.busy < m.servers && len(m.queue) > 0 {
		c := m.queue[0]
		m.queue = m.queue[1:]
		m.busy++
		m.after(m.service(m.rng)*m.slow, func() {
			m.busy--
			m.inFlight--
			latency := quota.Span(m.now - c.arrived)
			m.gate.ended(m.now, latency)
			if latency <= m.deadline {
				m.good[m.now/1_000_000]++
			}
			m.serve()
		})
	}
}

// fixed is a limit that stays as it is; 0 is none.
type fixed int

func (f fixed) admit(_ quota.Instant, _ int, _ uint8, inFlight int) bool {
	return f == 0 || inFlight < int(f)
}
func (fixed) ended(quota.Instant, quota.Span) {}
func (fixed) tick(quota.Instant, int)         {}

// found is the limit of this package, as an Envoy with several workers has it.
type found struct {
	config  adaptive.Config
	limit   adaptive.Limit
	shed    adaptive.Shed
	classes int
	workers []worker
	turn    int
	planted fault

	window    adaptive.Window
	began     quota.Instant
	load      adaptive.Load
	loadBegan quota.Instant
	last      quota.Instant

	// values are what the limit was at the end of each window.
	values []value
}

type worker struct {
	window adaptive.Window
	load   adaptive.Load
}

type value struct {
	at    quota.Instant
	limit float64
}

// fault is one that a test plants.
type fault int

const (
	none fault = iota
	ownWaitCounts
	oneWorkerAlone
	twice
	forgetful
	classBlind
	neverFalls
	refusalsUnseen
)

func newFound(workers int) *found {
	c := adaptive.Config{Min: 20, Max: 2000, Percentile: 90}
	return &found{config: c, limit: adaptive.Start(c), classes: len(classes), workers: make([]worker, workers)}
}

func (f *found) admit(_ quota.Instant, class int, caller uint8, inFlight int) bool {
	w := &f.workers[f.turn%len(f.workers)]
	f.turn++
	r := adaptive.Rank{Class: uint8(class), Cohort: caller}
	if f.planted == classBlind {
		r.Class = uint8(f.classes - 1)
	}
	w.load.Arrived[r.Class]++
	if f.shed.Sheds(r, f.classes) {
		w.load.Shed++
		return false
	}
	if int64(inFlight) >= f.limit.Room(r, &f.shed, f.classes, f.config) {
		if f.planted != refusalsUnseen {
			w.load.Refused++
			w.window.Refused++
		}
		return false
	}
	return true
}

func (f *found) ended(_ quota.Instant, latency quota.Span) {
	if f.planted == ownWaitCounts {
		latency += quota.Span(f.limit.Value) * 2 * quota.Millisecond
	}
	f.turn++
	f.workers[f.turn%len(f.workers)].window.Latency.Add(latency)
}

func (f *found) tick(now quota.Instant, inFlight int) {
	f.window.Held += int64(inFlight) * int64(now-f.last)
	f.last = now
	for i := range f.workers {
		w := &f.workers[i]
		if f.planted == oneWorkerAlone && i > 0 {
			*w = worker{}
			continue
		}
		f.window.Merge(&w.window)
		f.load.Merge(&w.load)
		if f.planted == twice {
			continue
		}
		*w = worker{}
	}
	if passed := quota.Span(now - f.loadBegan); passed >= 100*quota.Millisecond {
		f.shed.Next(f.classes, 1, &f.load, -1, passed)
		f.load, f.loadBegan = adaptive.Load{}, now
	}
	lasted := quota.Span(now - f.began)
	if !f.limit.Due(&f.window, lasted) {
		return
	}
	before := f.limit.Value
	f.limit.Next(f.config, &f.window, lasted)
	if f.planted == neverFalls {
		f.limit.Value = max(f.limit.Value, before)
	}
	if f.planted == forgetful && len(f.values)%20 == 19 {
		f.limit = adaptive.Start(f.config)
	}
	f.window, f.began = adaptive.Window{}, now
	f.values = append(f.values, value{now, f.limit.Value})
}
