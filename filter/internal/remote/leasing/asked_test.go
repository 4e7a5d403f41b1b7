package leasing_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/wire"
)

// A call of which an answer is held is over late. A debt that it was answered about, and that
// another call carries meanwhile, is not asked for once more then.
func TestADebtIsAskedOnceWhileAnAnswerIsHeld(t *testing.T) {
	w := newWorld(t, 100, 60_000_000, 100)
	used := &leasing.Use{Need: w.need(1, 40), Now: w.now, Charge: true, Slack: 50}
	w.change(t, used)
	w.client.Report(w.now, used.Need, w.now)
	report := w.calls[0]
	w.calls = nil
	w.now += ms
	w.owe(2)
	asked := w.need(1, 60)
	asked.Optimistic = true
	w.client.Ask(w.now, &leasing.Ticket{Stream: 1, Need: asked})
	w.client.Ask(w.now, &leasing.Ticket{Stream: 2, Need: w.need(2, 1)})
	w.client.Flush(w.now)
	if len(w.calls) != 1 {
		t.Fatalf("%d calls", len(w.calls))
	}
	var answers []wire.LeaseAnswer
	for _, it := range w.calls[0].request.Items {
		a := wire.LeaseAnswer{Waiting: it.Waiting, Level: 5}
		if it.Bucket == asked.Bucket {
			a.Debt = w.params.UnitsFor(100) // It has counted a report, so it is held until that is answered.
		}
		answers = append(answers, a)
	}
	w.reply(answers...)
	w.now += ms
	w.owe(2)
	w.client.Tick(w.now)
	carried := len(w.calls)
	report.done(200, wire.AppendLeaseReply(nil, wire.LeaseReply{Seq: report.request.Seq, Nodes: 2,
		Items: []wire.LeaseAnswer{{Debt: 100 * w.params.Den}}}))
	w.now += ms
	w.client.Ask(w.now, &leasing.Ticket{Stream: 3, Need: w.need(2, 1)})
	w.client.Flush(w.now)
	if carried == 0 || len(w.calls) != carried+1 {
		t.Fatalf("%d calls, then %d", carried, len(w.calls))
	}
	if items := w.calls[carried].request.Items; len(items) != 1 || items[0].Waiting != 1 {
		t.Errorf("the request's call asks for %+v", items)
	}
}
