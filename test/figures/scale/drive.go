package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weir-proxy/weir/shared/wire"
	"github.com/weir-proxy/weir/test/figures"
	"github.com/weir-proxy/weir/test/figures/bench/load"
)

// lasting is a limit that no node reaches here. Its tokens take half a minute to come back, and a
// bucket is kept for that time, so all keys of a drive exist at the same time.
const lasting = `{"version": "weir/v1", "policies": [
	{"name": "p", "partition": ["header:x-key"], "mode": "leased", "limit": {"quota": 1000000, "window": "366d"}}]}`

// The tokens that a call asks of each bucket: one token for a waiting request, the other tokens to
// keep.
const (
	askedWaiting = 1
	askedKeep    = 9
)

// drive is a load of lease requests: Nodes with a connection each together ask for Keys keys, in
// calls of Items buckets.
type drive struct{ Nodes, Keys, Items int }

// point has the measurements of a drive. Times are in microseconds of processor time for each call.
type point struct {
	drive
	// Calls and Failed are numbers of calls a second. A failed call was not answered within the 40
	// ms that the control plane gives Redis.
	Calls  float64 `json:"calls_per_second"`
	Failed float64 `json:"failed_per_second"`
	// Granted is the number of buckets a second that got all tokens asked for.
	Granted  float64       `json:"granted_per_second"`
	PlaneCPU float64       `json:"plane_cpu_us"`
	RedisCPU float64       `json:"redis_cpu_us"`
	P50      float64       `json:"p50_ms,omitempty"`
	P99      float64       `json:"p99_ms,omitempty"`
	RedisMB  float64       `json:"redis_mb"`
	Kept     int64         `json:"keys_kept"`
	Foreign  float64       `json:"foreign_processors"`
	During   time.Duration `json:"during_ns"`
}

// costs returns the processor times in words.
func (p point) costs() string {
	return fmt.Sprintf("control plane %6.0f µs, Redis %6.0f µs a call", p.PlaneCPU, p.RedisCPU)
}

// words describe its work and its cost.
func (p point) words() string {
	return fmt.Sprintf("%4d nodes, %2d buckets a call: %s", p.Nodes, p.Items, p.costs())
}

// head is the head of a call, with places for token, type and length.
const head = "POST /node/v1/leases HTTP/1.1\r\nhost: weir\r\n" +
	"authorization: Bearer %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"

// requests returns the whole HTTP requests that ask for each key once; the last is full too.
func (d drive) requests(version uint64) [][]byte {
	var all [][]byte
	random := rand.New(rand.NewPCG(7, 7))
	for from := 0; from < d.Keys; from += d.Items {
		m := wire.LeaseRequest{Node: nodeName(len(all) % d.Nodes), Boot: 1, Seq: uint64(len(all)), Version: version}
		for range d.Items {
			it := wire.LeaseItem{Waiting: askedWaiting, Cost: 1, Keep: askedKeep}
			binary.LittleEndian.PutUint64(it.Bucket[:], random.Uint64())
			binary.LittleEndian.PutUint64(it.Bucket[8:], random.Uint64())
			m.Items = append(m.Items, it)
		}
		body := wire.AppendLeaseRequest(nil, m)
		all = append(all, append(fmt.Appendf(nil, head, nodeToken, wire.ContentType, len(body)), body...))
	}
	return all
}

// load returns the drive at a control plane that has the policy set with that version.
func (d drive) load(w *world, version uint64) load.Load {
	l := load.Load{Address: hostPort(w.planes[0].Port), Connections: d.Nodes, Requests: d.requests(version)}
	l.Order = make([]int, len(l.Requests))
	for i := range l.Order {
		l.Order[i] = i
	}
	return l
}

// open drives at a constant rate of calls a second until each key has been asked for at least once,
// and at least for a while.
func (d drive) open(ctx context.Context, w *world, version uint64, calls float64, during time.Duration) (point, error) {
	l := d.load(w, version)
	during = max(during, time.Duration(float64(len(l.Requests))/calls*float64(time.Second)))
	return d.measure(ctx, w, func() (load.Result, error) { return l.Open(ctx, calls, during) })
}

// closed drives a load of its own: each node asks again as soon as it is answered.
func (d drive) closed(ctx context.Context, w *world, l load.Load, during time.Duration) (point, error) {
	return d.measure(ctx, w, func() (load.Result, error) { return l.Closed(ctx, during) })
}

// errLate is a measurement of which too many calls were not answered: something else kept the
// machine busy, or it is too slow.
var errLate = errors.New("too many calls failed; is the machine busy?")

// measure runs a load and reads its cost. It fails if the control plane has not granted the tokens
// of the answers.
func (d drive) measure(ctx context.Context, w *world, run func() (load.Result, error)) (p point, err error) {
	grantedBefore, otherBefore, err := w.granted(ctx)
	if err != nil {
		return p, err
	}
	before, err := w.work()
	if err != nil {
		return p, err
	}
	result, err := run()
	if err != nil {
		return p, err
	}
	after, err := w.work()
	if err != nil {
		return p, err
	}
	granted, other, err := w.granted(ctx)
	if err != nil {
		return p, err
	}
	granted, other = granted-grantedBefore, other-otherBefore
	n, seconds := float64(result.Answered()), result.Duration.Seconds()
	ok, spent := result.Statuses[200], after.since(before)
	if granted != ok*d.Items || other > 0 {
		return p, fmt.Errorf("%d buckets were granted and %d not, for %d answers of %d buckets each",
			granted, other, ok, d.Items)
	}
	if failed := n - float64(ok); failed > n/4 {
		return p, fmt.Errorf("%w: %.0f of %.0f, by status: %v", errLate, failed, n, result.Statuses)
	}
	bytes, kept, err := w.memory(ctx)
	return point{
		drive: d, Calls: figures.Rounded(n / seconds), Failed: figures.Rounded((n - float64(ok)) / seconds),
		Granted:  figures.Rounded(float64(granted) / seconds),
		PlaneCPU: micros(spent.plane, n), RedisCPU: micros(spent.redis, n),
		P50: milliseconds(result.Percentile(.5)), P99: milliseconds(result.Percentile(.99)),
		RedisMB: figures.Rounded(float64(bytes) / 1e6), Kept: kept,
		Foreign: spent.foreign(result.Duration), During: result.Duration,
	}, err
}

// micros returns a time for each of n, in microseconds.
func micros(d time.Duration, n float64) float64 {
	return figures.Rounded(float64(d.Microseconds()) / n)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
