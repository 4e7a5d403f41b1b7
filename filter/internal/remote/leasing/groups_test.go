package leasing_test

import (
	"slices"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// joinAll lets one request wait for several buckets, and sends.
func (w *world) joinAll(t *testing.T, buckets ...byte) []*leasing.Ticket {
	t.Helper()
	w.stream++
	var tickets []*leasing.Ticket
	for _, b := range buckets {
		tickets = append(tickets, &leasing.Ticket{Stream: w.stream, Need: w.need(b, 1)})
	}
	if !w.client.Ask(w.now, tickets...) {
		t.Fatal("turned away")
	}
	w.client.Flush(w.now)
	return tickets
}

// reply answers the oldest call with the given answers.
func (w *world) reply(answers ...wire.LeaseAnswer) {
	p := w.calls[0]
	w.calls = w.calls[1:]
	p.done(200, wire.AppendLeaseReply(nil, wire.LeaseReply{Seq: p.request.Seq, Nodes: 2, Items: answers}))
}

func outcomes(t *testing.T, tickets []*leasing.Ticket, want ...leasing.Outcome) {
	t.Helper()
	for i, ticket := range tickets {
		if ticket.Outcome != want[min(i, len(want)-1)] {
			t.Errorf("ticket %d: %v, want %v", i, ticket.Outcome, want)
		}
	}
}

var (
	granted = wire.LeaseAnswer{Waiting: 1, Level: 5}
	spared  = wire.LeaseAnswer{Level: 5}
	short   = wire.LeaseAnswer{NotBefore: 7 * quota.Second}
)

func TestGroupGoesAsOne(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	tickets := w.joinAll(t, 1, 2, 3)
	if len(w.calls) != 1 {
		t.Fatalf("%+v", w.calls)
	}
	for i, it := range w.calls[0].request.Items {
		if it.Waiting != 1 || it.Cost != 1 || it.Joined != (i < 2) || it.Bucket[0] != byte(i+1) {
			t.Errorf("item %d: %+v", i, it)
		}
	}
	w.reply(granted, granted, granted)
	outcomes(t, tickets, leasing.Granted)
	if got := w.client.TakeResolved(9999); !slices.Equal(got, []uint32{w.stream}) || w.client.Waiting() != 0 {
		t.Errorf("resolved %v, %d wait", got, w.client.Waiting())
	}
}

// A bucket that had the tokens is not remembered as empty; the bucket that lacked them is.
func TestGroupIsRefusedAsOne(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	tickets := w.joinAll(t, 1, 2)
	w.reply(spared, short)
	outcomes(t, tickets, leasing.Spared, leasing.Refused)
	if wait := tickets[1].Until - w.now; wait != 7000*ms {
		t.Errorf("asked to wait %d", wait)
	}
	if s := w.spend(1, 1); s.State != leasing.Missing || s.Level != 5 {
		t.Errorf("the bucket that had tokens: %+v", s)
	}
	if s := w.spend(2, 1); s.State != leasing.Exhausted || s.Until != w.now+7000*ms {
		t.Errorf("the bucket that had none: %+v", s)
	}
}

// Tokens that come for a request that is gone, or for a part of it, serve the next request; a turn
// in a queue is no token.
func TestGroupThatIsGone(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	w.joinAll(t, 1, 2)
	w.client.Cancel(w.stream)
	if w.client.Waiting() != 0 {
		t.Errorf("%d wait", w.client.Waiting())
	}
	w.reply(granted, granted)
	for bucket := byte(1); bucket <= 2; bucket++ {
		if s := w.spend(bucket, 1); s.State != leasing.Ready {
			t.Errorf("bucket %d: %v", bucket, s.State)
		}
		if s := w.spend(bucket, 1); s.State == leasing.Ready {
			t.Errorf("bucket %d: a token twice", bucket)
		}
	}
	tickets := w.joinAll(t, 3, 4) // granted in part, which no control plane should do
	w.reply(granted, short)
	outcomes(t, tickets, leasing.Spared, leasing.Refused)
	if s := w.spend(3, 1); s.State != leasing.Ready {
		t.Errorf("the part that was granted is lost: %v", s.State)
	}
	w.stream++
	need := w.need(5, 1)
	need.Algorithm = quota.LeakyBucket
	queue := []*leasing.Ticket{{Stream: w.stream, Need: need}, {Stream: w.stream, Need: w.need(6, 1)}}
	w.client.Ask(w.now, queue...)
	w.client.Flush(w.now)
	w.client.Cancel(w.stream)
	w.reply(granted, granted)
	if s := w.spend(5, 1); s.State == leasing.Ready {
		t.Error("a turn in a queue became a token")
	}
}

// An answer that is unusable, late or never comes fails the request; its deadline is the first one
// it had.
func TestGroupFails(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"unknown":   func(w *world) { w.reply(wire.LeaseAnswer{State: wire.ItemUnknown}, spared) },
		"two":       func(w *world) { w.reply(wire.LeaseAnswer{Waiting: 2}, granted) },
		"kept":      func(w *world) { w.reply(wire.LeaseAnswer{Waiting: 1, Keep: 1}, granted) },
		"no fault":  func(w *world) { w.reply(spared, spared) },
		"an item":   func(w *world) { w.reply(granted) },
		"503":       func(w *world) { w.calls[0].done(503, nil) },
		"no answer": func(w *world) { w.now += quota.Instant(lease.Deadline); w.client.Tick(w.now) },
		"late":      func(w *world) { w.now += quota.Instant(lease.Deadline); w.reply(granted, granted) },
	} {
		w := newWorld(t, 100, quota.Hour, 100)
		tickets := w.joinAll(t, 1, 2)
		end(w)
		t.Run(name, func(t *testing.T) { outcomes(t, tickets, leasing.Failed) })
		if w.client.Waiting() != 0 || !slices.Equal(w.client.TakeResolved(9999), []uint32{w.stream}) {
			t.Errorf("%s: still waits", name)
		}
		if s := w.spend(1, 1); s.State == leasing.Ready {
			t.Errorf("%s: a token came of it", name)
		}
	}
}

// Requests for several buckets that gather share calls, the first one first, each whole.
func TestGroupsQueue(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	var all [][]*leasing.Ticket
	for i := range byte(4 + 200) {
		all = append(all, w.joinAll(t, i, i, i))
	}
	calls := 0
	for ; len(w.calls) > 0; calls++ {
		items := len(w.calls[0].request.Items)
		if items > wire.MaxItems || items%3 != 0 {
			t.Fatalf("a call of %d items", items)
		}
		w.reply(slices.Repeat([]wire.LeaseAnswer{granted}, items)...)
	}
	if full := wire.MaxItems / 3; calls > 1+(203+full-1)/full {
		t.Errorf("%d calls for 204 requests, of which %d fit into one", calls, full)
	}
	for _, tickets := range all {
		outcomes(t, tickets, leasing.Granted)
	}
	resolved := w.client.TakeResolved(9999)
	if !slices.IsSorted(resolved) || len(resolved) != len(all) {
		t.Errorf("%d resolved, in order: %v", len(resolved), slices.IsSorted(resolved))
	}
}

// A request for more buckets than a call has space for is not overtaken by those after it.
func TestAGroupIsNotOvertaken(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	w.join(t, 1, 1)
	for i := range byte(wire.MaxItems - 2) {
		w.join(t, 10+i, 1)
	}
	w.joinAll(t, 1, 2, 3)
	w.join(t, 4, 1) // 64 lines: a call leaves.
	if len(w.calls) != 2 || len(w.calls[1].request.Items) != wire.MaxItems-2 {
		t.Fatalf("%d calls: %+v", len(w.calls), w.calls[1:])
	}
	w.reply(granted)
	w.reply(slices.Repeat([]wire.LeaseAnswer{granted}, wire.MaxItems-2)...)
	if items := w.calls[0].request.Items; len(items) != 4 || !items[0].Joined || items[3].Bucket[0] != 4 {
		t.Errorf("the next call asks %+v", items)
	}
}

// While the control plane is away gathering requests do not wait for their deadline.
func TestGroupsBehindAFailure(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	fail := func() {
		p := w.calls[0]
		w.calls = w.calls[1:]
		p.done(503, nil)
	}
	for range 2 {
		w.joinAll(t, 1, 2)
		fail()
	}
	w.joinAll(t, 3, 4)
	last := w.joinAll(t, 5, 6)
	fail()
	outcomes(t, last, leasing.Failed)
	if w.client.Waiting() != 0 || len(w.calls) != 0 {
		t.Errorf("%d wait, %d calls are under way", w.client.Waiting(), len(w.calls))
	}
}

func TestGroupsAreBounded(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	for range leasing.MaxWaiting {
		w.joinAll(t, 1, 2)
	}
	if w.client.Ask(w.now, &leasing.Ticket{Need: w.need(1, 1)}, &leasing.Ticket{Need: w.need(2, 1)}) {
		t.Error("one more waits than may")
	}
	w.now += quota.Instant(lease.Deadline)
	w.client.Tick(w.now)
	if w.client.Waiting() != 0 {
		t.Errorf("%d wait", w.client.Waiting())
	}
}
