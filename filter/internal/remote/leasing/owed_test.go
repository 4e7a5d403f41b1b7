package leasing_test

import (
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

// owing is a worker whose control plane answers slowly, so that the share serves some of its
// requests. All of them settle their cost.
type owing struct {
	*clock
	t       *testing.T
	r       *rand.Rand
	due     vtimetest.Queue[quota.Instant]
	client  *leasing.Client
	waiting map[uint32]*leasing.Ticket
	// open are the control plane's reservations by name, charged its count of all tokens.
	open    map[uint64]int64
	charged int64
	// slow is how long an answer takes at most. loses: some calls and answers never arrive.
	slow  quota.Span
	loses bool
	// there and back are when the last message of each direction arrives.
	there, back quota.Instant
	// used is the cost of the requests, and shared the number of requests that the share served.
	used     int64
	shared   int
	settled  int
	requests int
}

func (w *owing) after(span quota.Span, f func()) { w.due.Add(w.now+quota.Instant(span), f) }

// late makes a message arrive after the messages that left before it.
func (w *owing) late(last *quota.Instant, f func()) {
	*last = max(*last, w.now+quota.Instant(w.r.Int64N(int64(w.slow))))
	w.due.Add(*last, f)
}

// Call implements rpc.Client.
func (w *owing) Call(_ string, body []byte, timeout quota.Span, done func(int, []byte)) error {
	message, ended := slices.Clone(body), false
	end := func(status int, reply []byte) {
		if !ended {
			ended = true
			done(status, reply)
			w.resolve()
		}
	}
	w.after(timeout, func() { end(504, nil) })
	if w.loses && w.r.IntN(10) == 0 {
		return nil
	}
	w.late(&w.there, func() {
		reply := w.serve(message)
		if !w.loses || w.r.IntN(10) > 0 {
			w.late(&w.back, func() { end(200, reply) })
		}
	})
	return nil
}

// serve is the control plane: it charges the tokens that it is asked for, and sometimes only a part
// of them.
func (w *owing) serve(message []byte) []byte {
	m, err := wire.DecodeLeaseRequest(message)
	if err != nil {
		w.t.Fatal(err)
	}
	reply := wire.LeaseReply{Seq: m.Seq, Nodes: 2}
	for _, it := range m.Items {
		answer := wire.LeaseAnswer{Level: 1000}
		if it.Nth > 0 {
			name := it.Reserved + uint64(it.Nth)
			if reserved, known := w.open[name]; known {
				w.charged += it.Actual - reserved
				delete(w.open, name)
				answer.Waiting = 1
			}
		} else if it.Waiting > 0 {
			if answer.Waiting = it.Waiting; w.r.IntN(4) == 0 {
				answer.Waiting, answer.NotBefore = w.r.Int64N(it.Waiting), quota.Second/10
			}
			w.charged += answer.Waiting * it.Cost
			for nth := range answer.Waiting {
				if it.Reserved != 0 {
					w.open[it.Reserved+uint64(nth)+1] = it.Cost
				}
			}
		}
		reply.Items = append(reply.Items, answer)
	}
	return wire.AppendLeaseReply(nil, reply)
}

// resolve lets requests go on: with their grants, or by the share.
func (w *owing) resolve() {
	for _, stream := range slices.Clone(w.client.TakeResolved(1 << 20)) {
		ticket := w.waiting[stream]
		delete(w.waiting, stream)
		w.goOn(ticket)
	}
}

func (w *owing) goOn(ticket *leasing.Ticket) {
	r := &leasing.Reservation{Need: ticket.Need, Name: ticket.Name, Tally: w}
	switch ticket.Outcome {
	case leasing.Refused:
		return
	case leasing.Granted:
	default:
		w.shared++
		if owed := w.client.Owe(w.now, ticket.Need, ticket, 1000); owed != nil {
			r = owed
			r.Tally = w
		}
	}
	cost := ticket.Need.Cost
	w.requests++
	w.after(quota.Span(w.r.Int64N(int64(3*quota.Second))), func() {
		actual := w.r.Int64N(2*cost + 1)
		if w.used += actual; actual != cost {
			w.client.Settle(w.now, r, actual)
		} else {
			w.settled++
		}
	})
}

// CountSettled implements leasing.Tally.
func (w *owing) CountSettled(int64) { w.settled++ }

// request asks for tokens.
func (w *owing) request() {
	p, _ := quota.NewParams(1000, 30*quota.Day, 1000) // It earns nothing meanwhile.
	ticket := &leasing.Ticket{Stream: uint32(w.requests + len(w.waiting) + w.r.IntN(1<<30)), Need: leasing.Need{
		Bucket: keyhash.Key{1}, Version: 1, Params: p, Cost: 1 + w.r.Int64N(3), Strict: true, Reserves: true,
	}}
	if _, away := w.client.Health.Away(); away || !w.client.Ask(w.now, ticket) {
		ticket.Outcome = leasing.Failed
		w.goOn(ticket)
		return
	}
	w.waiting[ticket.Stream] = ticket
	w.client.Flush(w.now)
	w.resolve()
}

// play sends requests for two seconds, and lets time pass until all is settled.
func (w *owing) play() {
	for range 60 {
		w.after(quota.Span(w.r.Int64N(int64(2*quota.Second))), w.request)
	}
	var tick func()
	tick = func() {
		w.client.Tick(w.now)
		w.resolve()
		w.after(10*quota.Millisecond, tick)
	}
	tick()
	for e, ok := w.due.Next(w.now + 40_000*ms); ok && e.At < 40_000*ms; e, ok = w.due.Next(40_000 * ms) {
		w.now = e.At
		e.Fire()
		if over := 8000 * ms; w.now > over {
			w.slow = quota.Millisecond
			w.loses = false
		}
	}
}

// A request that the share served, because the control plane answered late or not at all, is
// charged its cost in the end, no more and no less. If messages are lost it may be charged more,
// because an unanswered call is sent again, but never less.
func TestRequestsOfAShareAreSettled(t *testing.T) {
	shared := 0
	for game := range uint64(200) {
		w := &owing{clock: &clock{now: 1000 * ms}, t: t, r: rand.New(rand.NewPCG(game, 9)), open: map[uint64]int64{},
			waiting: map[uint32]*leasing.Ticket{}, loses: game%2 == 1}
		w.slow = []quota.Span{1, 40, 300, 2000}[w.r.IntN(4)] * quota.Millisecond
		w.client = leasing.New(leasing.Config{
			Store: bucketstore.New(&shareddatatest.Data{}, [4]byte{}, 1024, 0), Client: w, Clock: w.clock,
			Shared: &shareddatatest.Data{}, Node: "node", Boot: 1, Seed: game,
		})
		w.play()
		shared += w.shared
		if w.charged < w.used || game%2 == 0 && w.charged > w.used {
			t.Errorf("game %d: %d of %d requests by the share, %d used, %d charged, %d of them open, %d settled", game,
				w.shared, w.requests, w.used, w.charged, len(w.open), w.settled)
		}
	}
	if t.Logf("%d requests went by the share", shared); shared == 0 {
		t.Error("none went by the share")
	}
}

// silent is a control plane that answers nothing.
type silent struct{}

// Call implements rpc.Client.
func (silent) Call(_ string, _ []byte, _ quota.Span, done func(int, []byte)) error {
	done(503, nil)
	return nil
}

// In an outage a worker remembers a bounded number of reservations of shares, none that have faded,
// and loses none while there are few.
func TestRememberedReservationsOfSharesHaveABound(t *testing.T) {
	for _, c := range []struct {
		name                      string
		buckets, requests, within int
		quota                     int64
	}{
		{"few", 1, 100, 0, 1_000_000},
		{"one bucket", 1, 100_000, 1024, 1_000_000},
		{"many buckets", 900, 200_000, 4096, 1_000_000},
		{"faded", 1, 100_000, 1, 500},
	} {
		clock := &clock{now: 1000 * ms}
		client := leasing.New(leasing.Config{
			Store: bucketstore.New(&shareddatatest.Data{}, [4]byte{}, 1024, 0), Client: silent{}, Clock: clock,
			Shared: &shareddatatest.Data{}, Node: "node", Boot: 1, Seed: 1,
		})
		p, _ := quota.NewParams(c.quota, quota.Second, c.quota)
		need := func(n int) leasing.Need {
			return leasing.Need{Bucket: keyhash.Key{1, byte(n), byte(n >> 8)}, Version: 1, Params: p, Cost: 1,
				Strict: true, Reserves: true}
		}
		for n := range 2000 { // Until the client knows that it has no control plane.
			client.Ask(clock.now, &leasing.Ticket{Stream: uint32(n + 1), Need: need(0)})
			client.Flush(clock.now)
			clock.now += 10 * ms
			client.Tick(clock.now)
			client.TakeResolved(1 << 20)
		}
		if _, away := client.Health.Away(); !away {
			t.Fatal("the control plane is not away")
		}
		var owed []*leasing.Reservation
		for n := range c.requests {
			if n%1000 == 0 && c.quota < 1000 {
				clock.now += 4000 * ms
			}
			if r := client.Owe(clock.now, need(n%c.buckets), &leasing.Ticket{}, c.quota); r != nil {
				owed = append(owed, r)
			}
		}
		if c.quota < 1000 {
			clock.now += 10_000 * ms
			client.Owe(clock.now, need(0), &leasing.Ticket{}, c.quota)
		}
		owing := 0
		for _, r := range owed {
			if r.Owes() {
				owing++
			}
		}
		if want := c.within; want == 0 && owing != c.requests || want > 0 && owing > want {
			t.Errorf("%s: %d of %d reservations are remembered, at most %d", c.name, owing, c.requests, want)
		}
	}
}
