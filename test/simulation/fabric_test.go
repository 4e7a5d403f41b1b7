package simulation

import (
	"errors"

	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// node is one machine: a process that may crash and come back, and a clock that may drift.
type node struct {
	world   *world
	number  int
	process *filtertest.Process
	boots   uint64
	drift   int64 // in millionths
	offset  quota.Instant
	stood   quota.Instant // for how long its clock stood still, which none should

	paused bool
	missed []func() // events that were due while it was paused
	heard  bool     // of how many nodes there are
	cut    bool     // by a partition
	locals map[lawKey]*law
	grids  map[keyhash.Key]*windowLaw
	last   [][]byte // the last reply to each worker
	// hurried: the worker is about to look for gathered calls.
	hurried []bool
}

// lawKey names a bucket of a node's own: a share is another than the bucket itself.
type lawKey struct {
	bucket keyhash.Key
	source filtertest.Source
}

// clock returns the node's monotonic clock.
func (n *node) clock() quota.Instant { return n.at(n.world.now) }

func (n *node) at(now quota.Instant) quota.Instant {
	now -= n.stood
	return n.offset + now + quota.Instant(int64(now)*n.drift/1_000_000)
}

// when returns the last moment of the world at which the node's clock is before an instant.
func (n *node) when(instant quota.Instant) quota.Instant {
	t := quota.Instant(float64(instant-n.offset)/(1+float64(n.drift)/1e6)) + n.stood + 3
	for n.at(t) >= instant {
		t--
	}
	return t
}

// start begins a process with empty shared data.
func (n *node) start() {
	w := n.world
	n.boots++
	n.heard, n.locals, n.grids, n.last = false, map[lawKey]*law{}, map[keyhash.Key]*windowLaw{}, make([][]byte,
		w.workers)
	n.hurried = make([]bool, w.workers)
	boot := n.boots
	o := filtertest.Options{
		Name: string(rune('a' + n.number)), Boot: w.r.Uint64(), Random: w.r.Uint64(), Workers: w.workers, Now: n.clock,
		Call: func(worker int, body []byte, timeout quota.Span, done func(int, []byte)) error {
			return n.call(boot, worker, body, timeout, done)
		},
		Decided: func(d filtertest.Decision) { w.decided(n, d) },
		Gathers: func(worker int) { n.hurry(boot, worker) },
	}
	if w.interleaved {
		o.Between = n.between
	}
	n.process = filtertest.Start(o)
	for i := range w.workers {
		n.tick(boot, i, quota.Span(w.r.Int64N(10_000)))
		n.later(boot, quota.Span(w.r.Int64N(20_000)), func() { n.apply(i) })
	}
}

// between lets another worker act while one is about to write.
func (n *node) between(acting int) {
	w := n.world
	if w.nested || w.workers == 1 || w.r.IntN(20) > 0 {
		return
	}
	w.nested = true
	w.happen(interleaved)
	w.request(n, (acting+1)%w.workers)
	w.nested = false
}

// later has something happen to this boot of the node; a paused node meets it when it wakes.
func (n *node) later(boot uint64, after quota.Span, f func()) {
	n.world.after(after, func() { n.meet(boot, f) })
}

func (n *node) meet(boot uint64, f func()) {
	switch {
	case n.boots != boot:
	case n.paused:
		n.missed = append(n.missed, func() { n.meet(boot, f) })
	default:
		f()
	}
}

func (n *node) tick(boot uint64, worker int, after quota.Span) {
	n.later(boot, after, func() {
		n.process.Tick(worker)
		n.tick(boot, worker, 10*quota.Millisecond)
	})
}

// hurry looks within a millisecond whether a worker's gathered requests may leave.
func (n *node) hurry(boot uint64, worker int) {
	if n.hurried[worker] {
		return
	}
	n.hurried[worker] = true
	n.later(boot, quota.Millisecond, func() {
		n.hurried[worker] = false
		n.process.Flush(worker)
	})
}

// apply puts the newest snapshot into force at a worker.
func (n *node) apply(worker int) {
	w := n.world
	if err := n.process.Apply(worker, w.snapshot, uint64(len(w.sets))); err != nil {
		w.fail("a snapshot is refused: %v", err)
	}
}

var errUnsent = errors.New("the cluster has no healthy host")

// call carries a lease request to the control plane and the answer back, or not. Envoy ends it at
// its timeout, and only once.
func (n *node) call(boot uint64, worker int, body []byte, timeout quota.Span, done func(int, []byte)) error {
	w := n.world
	if w.chance(w.faults.unsent) {
		w.happen(unsent)
		return errUnsent
	}
	request, err := wire.DecodeLeaseRequest(body)
	if err != nil {
		w.fail("cannot decode the request of a node: %v", err)
		return nil
	}
	ended, seq := false, request.Seq
	end := func(status int, body []byte) {
		if !ended || w.planted == doubledReply {
			ended = true
			w.note(evAnswer, n.number, int64(status))
			done(status, body) // Another worker may decide meanwhile, with the knowledge from before.
			n.heard = n.heard || status == 200 && answers(body, seq)
		}
	}
	n.later(boot, timeout+quota.Span(w.r.IntN(200)), func() {
		if !ended {
			ended = true
			w.note(evTimeout, n.number, 0)
			done(0, nil)
		}
	})
	copies := 1
	if w.chance(w.faults.double) {
		w.happen(doubled)
		copies = 2
	}
	for range copies {
		w.after(w.delay(), func() {
			w.serve(n, worker, body, func(after quota.Span, status int, reply []byte) {
				n.later(boot, after, func() { end(status, reply) })
				if w.planted == doubledReply {
					n.later(boot, after+1, func() { end(status, reply) })
				}
			})
		})
	}
	return nil
}

// delay returns the time of a message one way; some messages take longer than any request waits.
func (w *world) delay() quota.Span {
	if w.chance(w.faults.late) {
		w.happen(late)
		return quota.Span(w.r.Int64N(400_000))
	}
	return w.way + quota.Span(w.r.Int64N(int64(w.way)))
}

// line is the requests of one replica that wait for its call to the store that is under way.
type line struct {
	busy    bool
	waiting []func(*shared)
}

// shared is the common state of requests that go to the store in one call: it is lost for all, and
// one may have been answered.
type shared struct {
	lost  bool
	first []byte
}

// serve handles a request's arrival at the control plane. Requests that arrive while its replica
// calls the store go together in the next call.
func (w *world) serve(n *node, worker int, body []byte, answer func(after quota.Span, status int, reply []byte)) {
	replica := w.r.IntN(w.replicas)
	switch {
	case n.cut, w.chance(w.faults.drop):
		w.happen(dropped)
		return
	case w.down:
		answer(w.delay(), 503, nil)
		return
	}
	l := &w.lines[replica]
	l.waiting = append(l.waiting, func(s *shared) { w.grant(n, worker, replica, body, s, answer) })
	if !l.busy {
		w.depart(l)
	}
}

// depart sends a call to the store for all waiting requests.
func (w *world) depart(l *line) {
	together := l.waiting
	l.waiting, l.busy = nil, true
	s := &shared{lost: len(together) > 1 && w.together.Float64() < w.faults.drop}
	if s.lost {
		w.happen(lostTogether)
	}
	for _, grant := range together {
		grant(s)
	}
	w.after(w.takes, func() {
		if l.busy = false; len(l.waiting) > 0 {
			w.depart(l)
		}
	})
}

// grant returns the store's answer to one of the requests of a call.
func (w *world) grant(
	n *node, worker, replica int, body []byte, s *shared, answer func(after quota.Span, status int, reply []byte),
) {
	status, reply := w.plane.Lease(replica, body)
	if w.planted == mixedAnswers && status == 200 {
		reply = rotated(reply)
	}
	w.note(evServed, n.number, int64(status))
	if w.planted == swappedReplies && status == 200 {
		reply = s.mix(reply)
	}
	switch {
	case s.lost, n.cut, w.chance(w.faults.drop):
		w.happen(dropped)
		return
	case w.chance(w.faults.wrong):
		w.happen(wrong)
		switch w.r.IntN(4) {
		case 0:
			status = []int{429, 500, 503, 504, 404}[w.r.IntN(5)]
		case 1:
			reply = reply[:w.r.IntN(len(reply)+1)]
		case 2:
			reply = append([]byte("?"), reply...)
		case 3: // The answer to an earlier call.
			if worker >= 0 && n.last[worker] != nil {
				reply = n.last[worker]
			}
		}
	case status == 200 && worker >= 0:
		n.last[worker] = reply
	}
	answer(w.delay(), status, reply)
}

// rotated returns a reply in which each bucket but the first has the answer about the one before.
func rotated(reply []byte) []byte {
	var m wire.LeaseReply
	if wire.DecodeLeaseReply(reply, &m) != nil || len(m.Items) < 2 {
		return reply
	}
	last := len(m.Items) - 1
	m.Items = append(m.Items[last:], m.Items[:last]...)
	return wire.AppendLeaseReply(nil, m)
}

// mix gives each request of a call the answer to the first, if both have the same number of
// buckets.
func (s *shared) mix(reply []byte) []byte {
	var own, first wire.LeaseReply
	if s.first == nil || wire.DecodeLeaseReply(reply, &own) != nil || wire.DecodeLeaseReply(s.first, &first) != nil ||
		len(own.Items) != len(first.Items) {
		s.first = reply
		return reply
	}
	first.Seq = own.Seq
	return wire.AppendLeaseReply(nil, first)
}

// answers reports whether bytes are a reply to the request with that number.
func answers(body []byte, seq uint64) bool {
	var m wire.LeaseReply
	return wire.DecodeLeaseReply(body, &m) == nil && m.Seq == seq
}

// hoard plays a node that only keeps the rules of leases: it asks for as much as it can get, and
// uses each token at the last moment that its clock allows.
func (w *world) hoard(n *node) {
	w.after(quota.Span(w.r.ExpFloat64()*float64(w.hoarding)), func() { w.hoard(n) })
	if len(w.known) == 0 || n.cut {
		return
	}
	k := w.known[w.r.IntN(len(w.known))]
	limit, ok := w.limitOf(uint64(len(w.sets)), k.limit)
	if !ok {
		return
	}
	sent := n.clock()
	it := wire.LeaseItem{Bucket: k.bucket, Limit: k.limit, Cost: 1, Keep: limit.Params.Burst}
	if w.r.IntN(3) == 0 {
		it.Keep, it.Waiting = 0, 1+w.r.Int64N(limit.Params.Burst)
	}
	if limit.Own > 0 && w.r.IntN(2) == 0 {
		it.Quota = 1 + w.r.Int64N(limit.Quota)
		it.Burst = it.Quota
	}
	if name, known := w.dues.names[k.bucket]; known {
		w.charge(name, limit.Params.Burst)
	}
	w.hoardSeq++
	seq := w.hoardSeq
	body := wire.AppendLeaseRequest(nil, wire.LeaseRequest{
		Node: "hoarder", Boot: 1, Seq: seq, Version: uint64(len(w.sets)), Items: []wire.LeaseItem{it},
	})
	w.after(w.delay(), func() {
		w.serve(n, -1, body, func(after quota.Span, status int, reply []byte) {
			w.after(after, func() {
				var m wire.LeaseReply
				if status == 200 && wire.DecodeLeaseReply(reply, &m) == nil && m.Seq == seq && len(m.Items) == 1 {
					w.useLate(n, k, limit.Params, sent, m.Items[0])
				}
			})
		})
	})
}
