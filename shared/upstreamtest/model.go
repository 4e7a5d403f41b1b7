// Package upstreamtest models an upstream with servers that requests wait for, callers that send
// three times its capacity, and an Envoy between them that a test provides. It uses virtual time.
package upstreamtest

import (
	"math"
	"math/rand/v2"

	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
)

// Classes are the shares of the classes in the requests, the most important first.
var Classes = []float64{0.05, 0.15, 0.3, 0.5}

// upstream serves requests in their order.
type upstream struct {
	// servers are how many requests are served at once, slow is how many times as long each takes
	// as usual.
	servers int
	slow    float64
	// service draws how long a request takes.
	Service func(*rand.Rand) float64

	busy  int
	queue []*Request
}

// Cohorts are the groups of callers, of the same size.
const Cohorts = 128

// Request is one request. Gate is for the Envoy's use. An Envoy keeps no request that it refuses.
type Request struct {
	Class   int
	Caller  uint8
	Gate    any
	arrived quota.Instant
}

// Change is a change of the upstream at an instant.
type Change struct {
	At      quota.Instant
	Servers int
	Slow    float64
}

// Model is the whole model. Make a Model with New, and set other values before Run.
type Model struct {
	Rng    *rand.Rand
	now    quota.Instant
	events vtimetest.Queue[quota.Instant]
	upstream

	// Offered is the requests a second, until End. Deadline is how long callers wait.
	Offered  float64
	End      quota.Instant
	Deadline quota.Span
	Gate     Gate

	inFlight int
	// next is the next request. arrival and tick are the events that come again and again: a new
	// function for each event would cost more than the event.
	next          *Request
	arrival, tick func()
	// Good are the answers in time by second; Came and Served count by class.
	Good         []int
	Came, Served []int
}

// Gate is the Envoy. It says which requests go on, and sees how they end.
type Gate interface {
	Admit(now quota.Instant, r *Request, inFlight int) bool
	Ended(now quota.Instant, r *Request, latency quota.Span)
	Tick(now quota.Instant, inFlight int)
}

// New is a model of usual figures, without a Gate.
func New(seed uint64) *Model {
	return &Model{
		Rng: rand.New(rand.NewPCG(seed, 7)), Offered: 6000, End: 120_000_000, Deadline: quota.Second / 2,
		upstream: upstream{servers: 40, slow: 1, Service: Exponential(20_000)},
		Came:     make([]int, len(Classes)), Served: make([]int, len(Classes)),
	}
}

// Exponential are times of service that differ much.
func Exponential(mean float64) func(*rand.Rand) float64 {
	return func(rng *rand.Rand) float64 { return rng.ExpFloat64() * mean }
}

// Lognormal are times of service that differ by sigma.
func Lognormal(mean, sigma float64) func(*rand.Rand) float64 {
	return func(rng *rand.Rand) float64 {
		return mean * math.Exp(sigma*rng.NormFloat64()-sigma*sigma/2)
	}
}

// Run lets the time pass until End.
func (m *Model) Run(changes ...Change) {
	m.Good = make([]int, m.End/1_000_000+1)
	for _, c := range changes {
		m.events.Add(c.At, func() {
			m.servers, m.slow = c.Servers, c.Slow
			m.serve()
		})
	}
	m.next, m.arrival, m.tick = &Request{}, m.arrive, m.beat
	m.awaitArrival()
	m.beat()
	for e, ok := m.events.Next(m.End); ok; e, ok = m.events.Next(m.End) {
		m.now = e.At
		e.Fire()
	}
}

func (m *Model) after(micros float64, fire func()) {
	m.events.Add(m.now+quota.Instant(max(micros, 1)), fire)
}

func (m *Model) beat() {
	m.Gate.Tick(m.now, m.inFlight)
	m.after(10_000, m.tick)
}

func (m *Model) awaitArrival() { m.after(m.Rng.ExpFloat64()*1e6/m.Offered, m.arrival) }

func (m *Model) arrive() {
	class, at := 0, m.Rng.Float64()
	for at > Classes[class] && class < len(Classes)-1 {
		at -= Classes[class]
		class++
	}
	m.Came[class]++
	r := m.next
	*r = Request{Class: class, Caller: uint8(m.Rng.IntN(Cohorts)), arrived: m.now}
	if m.Gate.Admit(m.now, r, m.inFlight) {
		m.next = &Request{}
		m.Served[class]++
		m.inFlight++
		m.queue = append(m.queue, r)
		m.serve()
	}
	m.awaitArrival()
}

func (m *Model) serve() {
	for m.busy < m.servers && len(m.queue) > 0 {
		c := m.queue[0]
		m.queue = m.queue[1:]
		m.busy++
		m.after(m.Service(m.Rng)*m.slow, func() {
			m.busy--
			m.inFlight--
			latency := quota.Span(m.now - c.arrived)
			m.Gate.Ended(m.now, c, latency)
			if latency <= m.Deadline {
				m.Good[m.now/1_000_000]++
			}
			m.serve()
		})
	}
}

// Fixed is a limit that stays as it is; 0 is none.
type Fixed int

// Admit implements Gate.
func (f Fixed) Admit(_ quota.Instant, _ *Request, inFlight int) bool {
	return f == 0 || inFlight < int(f)
}

// Ended implements Gate.
func (Fixed) Ended(quota.Instant, *Request, quota.Span) {}

// Tick implements Gate.
func (Fixed) Tick(quota.Instant, int) {}
