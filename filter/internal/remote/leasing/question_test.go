package leasing_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// question asks about an optimistic bucket for a stream.
func (w *world) question(t *testing.T, stream uint32) *leasing.Ticket {
	t.Helper()
	need := w.need(1, 60)
	need.Optimistic = true
	ticket := &leasing.Ticket{Stream: stream, Need: need}
	if !w.client.Ask(w.now, ticket) {
		t.Fatal("not queued")
	}
	w.client.Flush(w.now)
	return ticket
}

// change applies a change to an optimistic bucket.
func (w *world) change(t *testing.T, use *leasing.Use) {
	t.Helper()
	if err := w.store.Update(bucketstore.Optimistic, use.Bucket, w.now, use); err != nil {
		t.Fatal(err)
	}
}

// The effects of the answer to a question. The bucket earns a token in 600 ms.
func TestAnswersToAQuestion(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer wire.LeaseAnswer
		debt   int64 // of the answer, in tokens
		after  quota.Instant
		want   leasing.Outcome
		wait   quota.Span // of a refusal
	}{
		{"granted", wire.LeaseAnswer{Waiting: 1}, 60, ms, leasing.Granted, 0},
		{"refused", wire.LeaseAnswer{NotBefore: 12 * quota.Second}, 50, ms, leasing.Refused, 12 * quota.Second},
		{"granted, but more was used", wire.LeaseAnswer{Waiting: 1}, 101, ms, leasing.Refused,
			61 * 600 * quota.Millisecond},
		{"too late", wire.LeaseAnswer{Waiting: 1}, 60, 50 * ms, leasing.Failed, 0},
		{"of a control plane that knows no questions", wire.LeaseAnswer{State: wire.ItemUnknown}, 0, ms, leasing.Failed,
			0},
		{"more than was asked for", wire.LeaseAnswer{Waiting: 2}, 60, ms, leasing.Failed, 0},
		{"of a store that is away", wire.LeaseAnswer{State: wire.ItemUnavailable, NotBefore: quota.Second}, 0, ms,
			leasing.Failed, 0},
	} {
		w := newWorld(t, 100, quota.Minute, 100)
		ticket := w.question(t, 1)
		w.now += c.after
		c.answer.Debt = c.debt * w.params.Den
		w.reply(c.answer)
		if ticket.Outcome != c.want || c.want == leasing.Refused && quota.Span(ticket.Until-w.now) != c.wait {
			t.Errorf("%s: the ticket ended as %v until %v later", c.name, ticket.Outcome, ticket.Until-w.now)
		}
	}
}

// Tokens granted to a request whose client has left, or that another policy refuses, replace tokens
// that the node has used and not reported.
func TestUnusedTokensOfAQuestionCountAsReported(t *testing.T) {
	for _, left := range []bool{true, false} {
		w := newWorld(t, 100, quota.Minute, 100)
		need := w.need(1, 10)
		use := &leasing.Use{Need: need, Now: w.now, Charge: true, Slack: 50}
		w.change(t, use)
		ticket := w.question(t, 1)
		if left {
			w.client.Cancel(1)
		}
		w.now += ms
		w.reply(wire.LeaseAnswer{Waiting: 1, Debt: w.params.UnitsFor(60)})
		if !left {
			w.client.GiveBack(w.now, ticket)
		}
		use = &leasing.Use{Need: need, Now: w.now, Slack: 50}
		if w.change(t, use); use.Remaining != 40 {
			t.Errorf("left: %v: %d remain of 100 less 60", left, use.Remaining)
		}
	}
}

// An answer that depends on a report under way waits for the answer to the report. Then it is used,
// as far as the bucket has the tokens beside the reported tokens. If no answer comes in time its
// requests fail over.
func TestAnAnswerWaitsForTheReportUnderWay(t *testing.T) {
	for _, c := range []struct {
		name     string
		reported int64 // The number of tokens that the bucket lacks by the answer to the report; 0: no answer comes.
		want     leasing.Outcome
	}{{"the answer counts it", 100, leasing.Granted}, {"the bucket holds less", 130, leasing.Refused},
		{"no answer comes", 0, leasing.Failed}} {
		w := newWorld(t, 100, quota.Minute, 100)
		use := &leasing.Use{Need: w.need(1, 40), Now: w.now, Charge: true, Slack: 50}
		w.change(t, use)
		w.client.Report(w.now, use.Need, w.now)
		w.now += ms
		ticket := w.question(t, 1)
		if len(w.calls) != 2 || w.calls[0].request.Items[0].Used != 40 {
			t.Fatalf("%+v", w.calls)
		}
		report := w.calls[0]
		w.calls = w.calls[1:]
		w.reply(wire.LeaseAnswer{Waiting: 1, Debt: w.params.UnitsFor(100)})
		if ticket.Outcome != leasing.Waiting || len(w.calls) != 0 {
			t.Fatalf("%s: the ticket ended as %v before", c.name, ticket.Outcome)
		}
		if c.reported > 0 {
			report.done(200, wire.AppendLeaseReply(nil, wire.LeaseReply{Seq: report.request.Seq, Nodes: 2,
				Items: []wire.LeaseAnswer{{Debt: c.reported * w.params.Den}}}))
		} else {
			w.now += 50 * ms
			w.client.Tick(w.now)
		}
		if ticket.Outcome != c.want || w.client.Waiting() != 0 {
			t.Errorf("%s: the ticket ended as %v, %d wait", c.name, ticket.Outcome, w.client.Waiting())
		}
		if next := w.question(t, 2); next.Outcome != leasing.Waiting || len(w.calls) != 1 {
			t.Errorf("%s: the next one: %v, %d calls", c.name, next.Outcome, len(w.calls))
		}
	}
}

// The same of a request for two buckets: the answers about both wait, and are used together. No
// report of either leaves before that, which the answer might count or not.
func TestAnswersAboutSeveralBucketsWaitTogether(t *testing.T) {
	for _, c := range []struct {
		name     string
		reported int64
		want     [2]leasing.Outcome
	}{
		{"the answer counts it", 100, [2]leasing.Outcome{leasing.Granted, leasing.Granted}},
		{"the bucket holds less", 130, [2]leasing.Outcome{leasing.Refused, leasing.Granted}},
		{"no answer comes", 0, [2]leasing.Outcome{leasing.Failed, leasing.Failed}},
	} {
		w := newWorld(t, 100, quota.Minute, 100)
		use := &leasing.Use{Need: w.need(1, 40), Now: w.now, Charge: true, Slack: 50}
		use.Optimistic = true
		w.change(t, use)
		w.client.Report(w.now, use.Need, w.now)
		w.now += ms
		tickets := make([]*leasing.Ticket, 2)
		for i := range tickets {
			tickets[i] = &leasing.Ticket{Stream: 1, Need: w.need(byte(1+i), 60)}
			tickets[i].Need.Optimistic = true
		}
		if !w.client.Ask(w.now, tickets...) {
			t.Fatal("not queued")
		}
		w.client.Flush(w.now)
		more := &leasing.Use{Need: w.need(2, 30), Now: w.now, Charge: true, Slack: 50}
		more.Optimistic = true
		w.change(t, more)
		w.client.Report(w.now, more.Need, w.now)
		if len(w.calls) != 2 || len(w.calls[1].request.Items) != 2 {
			t.Fatalf("%s: %+v", c.name, w.calls)
		}
		report := w.calls[0]
		w.calls = w.calls[1:]
		w.reply(wire.LeaseAnswer{Waiting: 1, Debt: w.params.UnitsFor(100)},
			wire.LeaseAnswer{Waiting: 1, Debt: w.params.UnitsFor(60)})
		for range 3 {
			w.now += ms
			w.client.Tick(w.now)
		}
		if len(w.calls) > 0 || tickets[0].Outcome != leasing.Waiting || tickets[1].Outcome != leasing.Waiting {
			t.Fatalf("%s: the tickets ended before, %d calls: %v %v", c.name, len(w.calls),
				tickets[0].Outcome, tickets[1].Outcome)
		}
		if c.reported > 0 {
			report.done(200, wire.AppendLeaseReply(nil, wire.LeaseReply{Seq: report.request.Seq, Nodes: 2,
				Items: []wire.LeaseAnswer{{Debt: c.reported * w.params.Den}}}))
		} else {
			w.now += 50 * ms
			w.client.Tick(w.now)
		}
		if tickets[0].Outcome != c.want[0] || tickets[1].Outcome != c.want[1] || w.client.Waiting() != 0 {
			t.Errorf("%s: %v %v, %d wait", c.name, tickets[0].Outcome, tickets[1].Outcome, w.client.Waiting())
		}
		w.now += quota.Instant(quota.Second)
		w.client.Tick(w.now)
		if reports := len(w.calls); reports == 0 {
			t.Errorf("%s: tokens used meanwhile are not reported", c.name)
		}
	}
}
