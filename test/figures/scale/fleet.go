package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
	"github.com/weir-proxy/weir/test/figures"
)

// tick is how often a worker of the filter looks after its buckets.
const tick = 10 * time.Millisecond

// fleet is simulated nodes with the filter's own code for leases, their requests spread over keys
// by Zipf's law, or evenly if these are cold, and over time at random, as if all nodes stood behind
// one balancer.
type fleet struct {
	Nodes    int     `json:"nodes"`
	Keys     int     `json:"keys"`
	Requests float64 `json:"requests_per_second"`
	Cold     bool    `json:"cold,omitempty"`
}

// keys returns the number of keys for the table.
func (f fleet) keys() string {
	if f.Cold {
		return strconv.Itoa(f.Keys) + ", evenly"
	}
	return strconv.Itoa(f.Keys)
}

// lived is the outcome of a fleet in a while.
type lived struct {
	fleet
	// Decided is a second; InHand and Refused are shares of it: by tokens in hand or a refusal that
	// is remembered, and not allowed.
	Decided float64 `json:"decided_per_second"`
	Failed  float64 `json:"failed_share"`
	Refused float64 `json:"refused_share"`
	// Calls and Items, the buckets in them, are a second.
	Calls    float64 `json:"calls_per_second"`
	Items    float64 `json:"items_per_second"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	PlaneCPU float64 `json:"plane_cpu_us"`
	RedisCPU float64 `json:"redis_cpu_us"`
	Foreign  float64 `json:"foreign_processors"`
}

// fleetLimit is a usual limit: a hundred a minute for each key.
const fleetLimit = `{"version": "weir/v1", "policies": [{"name": "p", "partition": ["header:x-key"], "mode": "leased",
	"limit": {"quota": 100, "window": "1m"}, "on_failure": {"local_for": "0s", "then": "allow"}}]}`

// shard is some nodes that one goroutine acts for.
type shard struct {
	fleet  *fleet
	world  *world
	begin  time.Time
	random *rand.Rand
	sums   []float64
	nodes  []*filtertest.Process
	stream uint32
	answer chan func()
	flying int

	decided, refused, open, calls, items int
	failed                               error
	took                                 times
}

var errBusy = errors.New("too many calls are under way")

// maxFlying bounds the calls of one shard that are under way.
const maxFlying = 4096

// live lets a fleet live for a while and measures the time after the warm-up.
func (f fleet) live(ctx context.Context, w *world, warm, during time.Duration) (l lived, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if _, err = w.apply(ctx, fleetLimit); err != nil {
		return l, err
	}
	const path = "/node/v1/snapshot?after=0&node=first&boot=1&filter=simulated"
	status, snapshot, err := w.send(ctx, w.planes[0], http.MethodGet, path, nil)
	if err != nil || status != http.StatusOK {
		return l, errors.Join(err, fmt.Errorf("no snapshot: %d %s", status, snapshot))
	}
	const shards = 8
	sums := f.sums()
	var all []*shard
	for i := range shards {
		s := &shard{
			fleet: &f, world: w, begin: time.Now(), random: rand.New(rand.NewPCG(uint64(i), 5)),
			sums: sums, answer: make(chan func(), maxFlying),
		}
		for n := i; n < f.Nodes; n += shards {
			s.start(ctx, n)
			if err := s.nodes[len(s.nodes)-1].Apply(0, snapshot, 1); err != nil {
				return l, err
			}
		}
		all = append(all, s)
	}
	run := func(d time.Duration) {
		var wait sync.WaitGroup
		for _, s := range all {
			wait.Go(func() { s.run(ctx, d) })
		}
		wait.Wait()
	}
	run(warm)
	for _, s := range all {
		s.decided, s.refused, s.open, s.calls, s.items, s.took = 0, 0, 0, 0, 0, nil
	}
	before, err := w.work()
	if err != nil {
		return l, err
	}
	begin := time.Now()
	run(during)
	took := time.Since(begin)
	after, err := w.work()
	if err != nil {
		return l, err
	}
	return f.sum(all, after.since(before), took)
}

// sum adds up the counts of all shards.
func (f fleet) sum(all []*shard, spent work, during time.Duration) (lived, error) {
	var one shard
	for _, s := range all {
		one.decided, one.refused, one.open = one.decided+s.decided, one.refused+s.refused, one.open+s.open
		one.calls, one.items = one.calls+s.calls, one.items+s.items
		one.took, one.failed = append(one.took, s.took...), errors.Join(one.failed, s.failed)
	}
	if one.failed != nil {
		return lived{}, one.failed
	}
	if one.calls == 0 || one.decided == 0 {
		return lived{}, fmt.Errorf("the fleet made %d calls for %d requests", one.calls, one.decided)
	}
	slices.Sort(one.took)
	n, calls, seconds := float64(one.decided), float64(one.calls), during.Seconds()
	return lived{
		fleet: f, Decided: figures.Rounded(n / seconds),
		Failed: figures.Rounded(float64(one.open) / n), Refused: figures.Rounded(float64(one.refused) / n),
		Calls: figures.Rounded(calls / seconds), Items: figures.Rounded(float64(one.items) / seconds),
		P50: milliseconds(one.took.at(.5)), P99: milliseconds(one.took.at(.99)),
		PlaneCPU: micros(spent.plane, calls), RedisCPU: micros(spent.redis, calls),
		Foreign: spent.foreign(during),
	}, nil
}

// start starts a node. All that it does happens in the shard's goroutine, but for the calls
// themselves.
func (s *shard) start(ctx context.Context, number int) {
	at := s.world.plane(number)
	s.nodes = append(s.nodes, filtertest.Start(filtertest.Options{
		Name: nodeName(number), Boot: uint64(number + 1), Random: s.random.Uint64(), Workers: 1,
		Now: func() quota.Instant { return quota.Instant(time.Since(s.begin).Microseconds()) + 1 },
		Call: func(_ int, body []byte, timeout quota.Span, done func(int, []byte)) error {
			if s.flying == maxFlying {
				return errBusy
			}
			request, err := wire.DecodeLeaseRequest(body)
			if err != nil {
				return err
			}
			body = bytes.Clone(body) // It is written anew for the next call.
			s.flying, s.calls, s.items = s.flying+1, s.calls+1, s.items+len(request.Items)
			go func() {
				ctx, cancel := context.WithTimeout(ctx, time.Duration(timeout)*time.Microsecond)
				defer cancel()
				begin := time.Now()
				status, reply, err := s.world.send(ctx, at, http.MethodPost, "/node/v1/leases", bytes.NewReader(body))
				took := time.Since(begin)
				s.answer <- func() {
					s.flying--
					if s.took = append(s.took, took); err != nil {
						status, reply = 0, nil
					}
					done(status, reply)
				}
			}()
			return nil
		},
		Decided: s.decide,
	}))
}

func (s *shard) decide(d filtertest.Decision) {
	s.decided++
	if !d.Allowed {
		s.refused++
	}
	for _, h := range d.Hits {
		if d.Allowed && (h.Source == filtertest.Open || h.Source == filtertest.Share) {
			s.open++
			return
		}
	}
}

// run lets the shard live: answers as they come, requests and ticks at each tick. Calls that are
// under way at the end are waited for.
func (s *shard) run(ctx context.Context, during time.Duration) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	end := time.Now().Add(during)
	rate := s.fleet.Requests * float64(len(s.nodes)) / float64(s.fleet.Nodes)
	due, begin := 0.0, time.Now()
	for s.flying > 0 || ctx.Err() == nil && time.Now().Before(end) {
		select {
		case f := <-s.answer:
			f()
			continue
		case <-ticker.C:
		}
		now := min(time.Since(begin), during)
		for due < now.Seconds() {
			s.request()
			due += s.random.ExpFloat64() / rate
		}
		for _, n := range s.nodes {
			n.Tick(0)
		}
	}
}

func (s *shard) request() {
	node := s.nodes[s.random.IntN(len(s.nodes))]
	key := min(sort.SearchFloat64s(s.sums, s.random.Float64()*s.sums[len(s.sums)-1]), len(s.sums)-1)
	s.stream++
	if !node.Request(0, s.stream, "/", "x-key", strconv.Itoa(key)) {
		s.failed = errors.New("a node has no policy set")
	}
}

// sums returns the sums of how often each key comes: 1/1, 1/2, 1/3, …, or 1 for each cold key.
func (f fleet) sums() []float64 {
	sums, sum := make([]float64, f.Keys), 0.0
	for k := range sums {
		weight := 1 / float64(k+1)
		if f.Cold {
			weight = 1
		}
		sum += weight
		sums[k] = sum
	}
	return sums
}
