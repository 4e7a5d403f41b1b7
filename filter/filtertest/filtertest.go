// Package filtertest is an Envoy process with the filter in it, without Envoy, for simulations: the
// filter's own code that decides and answers, some workers over one shared data, and no code that
// classifies requests.
package filtertest

import (
	"cmp"
	"math"

	"github.com/weir-proxy/weir/filter/internal/answer/respond"
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/filter/internal/load/penalties"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// tableKeys is the size of the table of buckets unless the options set it: far more keys than most
// simulations use.
const tableKeys = 1024

// penaltySets is the size of the table of penalties.
const penaltySets = 64

// Options define a process.
type Options struct {
	Name         string
	Boot, Random uint64
	Workers      int
	// TableKeys is the number of keys for which the table of buckets has room; 0: tableKeys.
	TableKeys int
	// Now is the process's monotonic clock.
	Now func() quota.Instant
	// Call carries a worker's lease request away. Done must be called once, with status 0 for no
	// answer. An error means that the request cannot be sent.
	Call func(worker int, body []byte, timeout quota.Span, done func(status int, body []byte)) error
	// Decided receives each decision, once for each request that is not withdrawn.
	Decided func(Decision)
	// Gathers, if set, is called when requests of a worker gather for a call: Flush must follow
	// within a millisecond.
	Gathers func(worker int)
	// Answers adds the client's answer to each decision.
	Answers bool
	// Between, if set, runs before each write to the shared data, so that another worker can act in
	// between.
	Between func(worker int)
}

// Source is the source of a token.
type Source uint8

const (
	// Local: a bucket of this node only.
	Local Source = iota
	// Central: the control plane, for this request or before.
	Central
	// Optimistic: this node, within its slack.
	Optimistic
	// Share: the failure ladder's share.
	Share
	// Open: the failure ladder lets all requests pass.
	Open
)

// Decision is the outcome of a request.
type Decision struct {
	Worker  int
	Stream  uint32
	Allowed bool
	Reason  string
	// Hits are its buckets. Mixed: they have different sources, and it is not known which bucket
	// has which source.
	Hits  []Hit
	Mixed bool
	// Answer is the client's answer, if the options ask for it.
	Answer Answer
}

// Hit is one bucket's part in a decision, under the policy set with the worker's Generation.
type Hit struct {
	Bucket     keyhash.Key
	Policy     uint32
	Limit      uint32
	Generation uint64
	Cost       int64
	Source     Source
}

// Process is a running node. Make a Process with Start. It is for one goroutine.
type Process struct {
	options Options
	workers []*worker
	acting  int
	// Consumers, if set, is the process's knowledge of the consumers of requests.
	Consumers match.Consumers
	// beside looks at the tables while a worker is about to write.
	beside *bucketstore.Store
}

type worker struct {
	process *Process
	number  int
	store   *bucketstore.Store
	leases  *leasing.Client
	flights *inflight.Book
	limiter *limiter.Limiter
	// penalties stay in the process: they are not reported.
	penalties *penalties.Box

	rules  *ruleset.Rules
	paused map[uint32]*limiter.Request
	// lasting are requests that went on and that End must end.
	lasting map[uint32]*limiter.Request
	// sent is when they went on.
	sent map[uint32]quota.Instant
	// delayed are the requests that a queue holds back.
	delayed map[uint32]*limiter.Request
	headers respond.Headers
	refusal respond.Refusal
}

// Start starts a process; its workers have no policy set, so all requests pass until Apply.
func Start(o Options) *Process {
	p := &Process{options: o}
	data := &shareddatatest.Data{}
	if o.Between != nil {
		data.Before = func(op string, _ []byte) {
			if op == "set" && len(p.workers) == o.Workers { // While it starts there is no other worker.
				o.Between(p.acting)
			}
		}
	}
	p.beside = bucketstore.New(data, [4]byte{}, cmp.Or(o.TableKeys, tableKeys), 0)
	for i := range o.Workers {
		w := &worker{process: p, number: i, paused: map[uint32]*limiter.Request{},
			lasting: map[uint32]*limiter.Request{}, delayed: map[uint32]*limiter.Request{},
			sent: map[uint32]quota.Instant{}}
		w.store = bucketstore.New(data, [4]byte{}, cmp.Or(o.TableKeys, tableKeys), 0)
		w.flights = inflight.New(data, shareddata.Space{}, cmp.Or(o.TableKeys, tableKeys), o.Random+uint64(i)+1)
		w.leases = leasing.New(leasing.Config{
			Store: w.store, Flights: w.flights, Client: w, Clock: w, Shared: data,
			Node: o.Name, Boot: o.Boot, Seed: o.Random + uint64(i)*2654435761,
		})
		w.penalties = penalties.New(penalties.Config{
			Shared: data, Sets: penaltySets, Clock: w, Seed: o.Random + uint64(i) + 1,
		})
		w.limiter = limiter.New(limiter.Config{
			Store: w.store, Leases: w.leases, Flights: w.flights, Penalties: w.penalties,
		})
		p.workers = append(p.workers, w)
	}
	return p
}

// Now implements rpc.Clock.
func (w *worker) Now() quota.Instant { return w.process.options.Now() }

// Call implements rpc.Client.
func (w *worker) Call(_ string, body []byte, timeout quota.Span, done func(status int, body []byte)) error {
	return w.process.options.Call(w.number, append([]byte(nil), body...), timeout, func(status int, body []byte) {
		defer w.act()()
		done(status, body)
		w.resume()
	})
}

// act notes the worker whose code runs, and returns a function that restores the former worker.
func (w *worker) act() func() {
	was := w.process.acting
	w.process.acting = w.number
	return func() { w.process.acting = was }
}

// Apply puts a snapshot into force at one worker; generations grow with each snapshot.
func (p *Process) Apply(number int, snapshot []byte, generation uint64) error {
	rules := &ruleset.Rules{Generation: generation}
	if err := rules.Index.Load(snapshot); err != nil {
		return err
	}
	rules.Tally.Reset(rules.Index.Len())
	rules.Steps.Reset(rules.Index.Len())
	p.workers[number].rules = rules
	return nil
}

// Away reports whether a worker does not call the control plane, because it does not answer.
func (p *Process) Away(number int) bool {
	_, away := p.workers[number].leases.Health.Away()
	return away
}

// Request begins a request at a worker, and reports whether a policy set was there to decide it.
// Stream must be new. The headers are pairs of a name and a value.
func (p *Process) Request(number int, stream uint32, path string, headers ...string) bool {
	w := p.workers[number]
	if w.rules == nil {
		return false
	}
	defer w.act()()
	a := match.Attributes{Method: []byte("GET"), Path: []byte(path), Host: []byte("h"), ClientIP: []byte{10, 0, 0, 1}}
	for i := 0; i < len(headers); i += 2 {
		a.Headers = append(a.Headers, match.Header{Name: []byte(headers[i]), Value: []byte(headers[i+1])})
	}
	a.Consumers = p.Consumers
	req := &limiter.Request{Stream: stream}
	before := w.limiter.Stats.Decided
	status := w.limiter.Begin(req, w.rules, &a, w.Now())
	if status == limiter.Paused {
		w.paused[stream] = req
		w.resume()
		return true
	}
	w.decided(req, status, before)
	return true
}

// resume continues the requests whose tickets have ended.
func (w *worker) resume() {
	if gathers := w.process.options.Gathers; gathers != nil && w.leases.Gathers() {
		defer gathers(w.number)
	}
	w.limiter.SettleTrials(w.Now())
	for streams := w.takeResolved(); len(streams) > 0; streams = w.takeResolved() {
		for _, stream := range streams {
			req := w.paused[stream]
			if req == nil {
				continue
			}
			before := w.limiter.Stats.Decided
			if status := w.limiter.Resume(req, w.Now()); status != limiter.Paused {
				delete(w.paused, stream)
				w.decided(req, status, before)
			}
		}
	}
}

func (w *worker) takeResolved() []uint32 {
	if streams := w.leases.TakeResolved(math.MaxInt); len(streams) > 0 {
		return streams
	}
	return w.flights.TakeResolved(math.MaxInt)
}

// sources are the limiter's sources, in the terms of a simulation.
var sources = map[policy.DecisionSource]Source{
	policy.ByLocal: Local, policy.ByLease: Central, policy.ByCentral: Central, policy.ByOptimistic: Optimistic,
	policy.ByShare: Share, policy.ByFailureAllow: Open,
}

func (w *worker) decided(req *limiter.Request, status limiter.Status, before [len(policy.Sources)]uint64) {
	if req.Lasting {
		w.lasting[req.Stream], w.sent[req.Stream] = req, w.Now()
	}
	if status == limiter.Delayed {
		w.delayed[req.Stream] = req
	}
	d := Decision{Worker: w.number, Stream: req.Stream, Allowed: status == limiter.Allowed || status == limiter.Delayed}
	d.Reason = req.Reason.String()
	first, found := Local, false
	for s := range w.limiter.Stats.Decided {
		if w.limiter.Stats.Decided[s] == before[s] || !d.Allowed {
			continue
		}
		source := sources[policy.DecisionSource(s)]
		d.Mixed = d.Mixed || found && source != first
		first, found = source, true
	}
	for _, h := range req.Hits {
		d.Hits = append(d.Hits, Hit{
			Bucket: h.Key, Policy: h.Policy, Limit: h.Limit, Generation: req.Rules().Generation,
			Cost: h.Cost, Source: first,
		})
	}
	if w.process.options.Answers {
		d.Answer = w.answerOf(req, status)
	}
	w.process.options.Decided(d)
}

// Cancel withdraws a request, as when its client goes away.
func (p *Process) Cancel(number int, stream uint32) {
	w := p.workers[number]
	for _, of := range []map[uint32]*limiter.Request{w.paused, w.delayed} {
		if req := of[stream]; req != nil {
			defer w.act()()
			delete(of, stream)
			w.limiter.Cancel(req, w.Now())
		}
	}
}

// End ends the stream of a request that went on.
func (p *Process) End(number int, stream uint32) { p.finish(number, stream, nil) }

// finish ends the stream of a request that went on, after the head of a response, if any.
func (p *Process) finish(number int, stream uint32, h head) {
	w := p.workers[number]
	if req := w.lasting[stream]; req != nil {
		defer w.act()()
		life := limiter.Life{Ended: w.Now()}
		if h != nil {
			life.Sent, life.Answered = w.sent[stream], w.Now()
			w.limiter.SettleHead(req, h, w.Now())
		}
		delete(w.lasting, stream)
		delete(w.sent, stream)
		w.limiter.End(req, life)
		w.resume()
	}
}

// Tried are the outcomes of policies in shadow, and of candidates, for the requests of all workers
// so far.
type Tried struct{ Allowed, Refused, Undetermined uint64 }

// Tried returns the outcomes of policies in shadow, or of candidates.
func (p *Process) Tried(candidates bool) (all Tried) {
	for _, w := range p.workers {
		s := &w.limiter.Stats
		one := Tried{s.ShadowAllowed, s.ShadowRefused, s.ShadowUndetermined}
		if candidates {
			one = Tried{s.CandidateAllowed, s.CandidateRefused, s.CandidateUndetermined}
		}
		all.Allowed += one.Allowed
		all.Refused += one.Refused
		all.Undetermined += one.Undetermined
	}
	return all
}

// Tick does the work that a worker does every 10 ms.
func (p *Process) Tick(number int) {
	w := p.workers[number]
	defer w.act()()
	for _, stream := range w.limiter.Release(w.Now(), math.MaxInt) {
		delete(w.delayed, stream)
	}
	w.flights.Tick(w.Now())
	w.leases.Tick(w.Now())
	w.resume()
}

// Flush sends the calls of a worker that have gathered for long enough.
func (p *Process) Flush(number int) {
	w := p.workers[number]
	defer w.act()()
	w.leases.Flush(w.Now())
	w.resume()
}

// NextDue returns when Tick has something to do at a worker, by the process's clock.
func (p *Process) NextDue(number int) quota.Instant {
	w := p.workers[number]
	return min(w.leases.NextDue(w.Now()), w.limiter.NextRelease())
}
