package leasing_test

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
	"github.com/weir-proxy/weir/shared/wire"
)

// lab is a worker in virtual time, before a control plane that works on one call after the other.
// Each request asks for a bucket of its own.
type lab struct {
	*clock
	t      *testing.T
	r      *rand.Rand
	due    vtimetest.Queue[quota.Instant]
	client *leasing.Client
	params quota.Params
	// way is the time of a message; perCall and perItem are the control plane's work on a call and
	// on each of its buckets.
	way, perCall, perItem quota.Span
	// hangs is the share of calls that are never answered. They are apart: several time-outs in a
	// row open the breaker, and rightly so.
	hangs    float64
	answered int // calls since the last that hung
	// free is when the control plane has worked on all that it has.
	free quota.Instant

	waiting map[uint32]*asked
	stream  uint32
	calls   int
	waits   []quota.Span
	// failed are the requests that were not granted, hung those in calls that hung.
	hung, failed int
	// perTenth counts the calls of each tenth of a second.
	perTenth []int
	begin    quota.Instant
	ticking  bool
}

// asked is a request that waits, since an instant.
type asked struct {
	ticket leasing.Ticket
	at     quota.Instant
}

func newLab(t *testing.T, seed uint64) *lab {
	t.Helper()
	p, err := quota.NewParams(100, quota.Hour, 100)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{
		clock: &clock{now: 1000 * ms}, t: t, r: rand.New(rand.NewPCG(seed, 1)), params: p,
		way: 100, perCall: 200, perItem: 20, waiting: map[uint32]*asked{}, begin: 1000 * ms,
	}
	data := &shareddatatest.Data{}
	l.client = leasing.New(leasing.Config{
		Store: bucketstore.New(data, [4]byte{}, 1024, 0), Client: l, Clock: l.clock,
		Shared: data, Node: "node", Boot: 1, Seed: 1,
	})
	l.tick()
	return l
}

func (l *lab) after(span quota.Span, f func()) { l.due.Add(l.now+quota.Instant(span), f) }

// Call implements rpc.Client.
func (l *lab) Call(_ string, body []byte, timeout quota.Span, done func(int, []byte)) error {
	m, err := wire.DecodeLeaseRequest(body)
	if err != nil {
		l.t.Fatal(err)
	}
	l.calls++
	for tenth := int((l.now - l.begin) / (100 * ms)); len(l.perTenth) <= tenth; {
		l.perTenth = append(l.perTenth, 0)
	}
	l.perTenth[len(l.perTenth)-1]++
	ended := false
	end := func(status int, reply []byte) {
		if !ended {
			ended = true
			done(status, reply)
			l.resolve()
		}
	}
	l.after(timeout, func() { end(504, nil) })
	l.answered++
	if l.r.Float64() < l.hangs && l.answered > 10 {
		l.answered = 0
		l.hung += len(m.Items)
		return nil
	}
	l.after(l.way, func() {
		l.free = max(l.free, l.now) + quota.Instant(l.perCall+quota.Span(len(m.Items))*l.perItem)
		reply := wire.LeaseReply{Seq: m.Seq, Nodes: 2}
		for _, it := range m.Items {
			reply.Items = append(reply.Items, wire.LeaseAnswer{Waiting: it.Waiting, Keep: it.Keep, Level: 50})
		}
		l.after(quota.Span(l.free-l.now)+l.way, func() { end(200, wire.AppendLeaseReply(nil, reply)) })
	})
	return nil
}

// tick looks each millisecond while requests gather, as the plugin does, and else each ten.
func (l *lab) tick() {
	l.client.Tick(l.now)
	l.resolve()
	l.after(10*quota.Millisecond, l.tick)
}

// hurry looks soon, while requests gather.
func (l *lab) hurry() {
	if l.ticking || !l.client.Gathers() {
		return
	}
	l.ticking = true
	l.after(quota.Millisecond, func() {
		l.ticking = false
		l.client.Flush(l.now)
		l.hurry()
	})
}

func (l *lab) resolve() {
	for _, stream := range slices.Clone(l.client.TakeResolved(1 << 20)) {
		a := l.waiting[stream]
		delete(l.waiting, stream)
		l.waits = append(l.waits, quota.Span(l.now-a.at))
		if a.ticket.Outcome != leasing.Granted {
			l.failed++
		}
	}
	l.hurry()
}

// request asks for a new bucket.
func (l *lab) request() {
	l.stream++
	var key keyhash.Key
	binary.LittleEndian.PutUint32(key[:], l.stream)
	a := &asked{at: l.now}
	a.ticket = leasing.Ticket{
		Stream: l.stream, Need: leasing.Need{Bucket: key, Version: 1, Params: l.params, Cost: 1, Strict: true},
	}
	if _, away := l.client.Health.Away(); away || !l.client.Ask(l.now, &a.ticket) {
		l.failed++
		return
	}
	l.waiting[l.stream] = a
	l.client.Flush(l.now)
	l.resolve()
}

// send has requests come at a rate a second for a time, and waits for the last answer.
func (l *lab) send(rate float64, span quota.Span) stretch {
	before := stretch{requests: int(l.stream), calls: l.calls, failed: l.failed}
	waits, tenths := len(l.waits), int((l.now-l.begin)/(100*ms))
	end := l.now + quota.Instant(span)
	var next func()
	next = func() {
		if l.now < end {
			l.request()
			l.after(quota.Span(l.r.ExpFloat64()*1e6/rate)+1, next)
		}
	}
	next()
	for e, ok := l.due.Next(end + 100*ms); ok; e, ok = l.due.Next(end + 100*ms) {
		l.now = e.At
		e.Fire()
	}
	l.now = end + 100*ms
	s := stretch{requests: int(l.stream) - before.requests, calls: l.calls - before.calls,
		failed: l.failed - before.failed}
	s.waits = slices.Sorted(slices.Values(l.waits[waits:]))
	if whole := tenths + int(span/(100*quota.Millisecond)); len(l.perTenth) >= whole {
		s.perTenth = l.perTenth[tenths:whole]
	}
	return s
}

// stretch has the events of a time.
type stretch struct {
	requests, calls, failed int
	// waits are in ascending order.
	waits    []quota.Span
	perTenth []int
}

func (s stretch) wait(share float64) quota.Span {
	return s.waits[min(int(share*float64(len(s.waits))), len(s.waits)-1)]
}

// perRequest is how many calls there were for each request.
func (s stretch) perRequest() float64 { return float64(s.calls) / float64(s.requests) }
