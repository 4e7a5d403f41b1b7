package leasing_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// quick is a world of 100 in a window in which answers have taken a millisecond.
func quick(t *testing.T, window quota.Span) *world {
	t.Helper()
	w := newWorld(t, 100, window, 100)
	for range 3 {
		w.join(t, 9, 1)
		w.now += ms
		w.answer(w.now)
	}
	return w
}

// If answers come soon, tokens of requests to a short limit count as leased for lease.Soon only. So
// do the tokens of the first call, which may be the only call of an Envoy for a bucket. After a
// slow answer, and for a long limit, they count for lease.Deadline.
func TestShortLimitsAskForTokensToUseSoon(t *testing.T) {
	for name, c := range map[string]struct {
		window quota.Span
		slow   quota.Span
		soon   bool
	}{
		"a second":                        {window: quota.Second, soon: true},
		"five seconds":                    {window: 5 * quota.Second},
		"an hour":                         {window: quota.Hour},
		"after a slow answer":             {window: quota.Second, slow: 9 * quota.Millisecond},
		"after a call that took the time": {window: quota.Second, slow: 4 * quota.Millisecond, soon: true},
	} {
		w := quick(t, c.window)
		if c.slow > 0 {
			w.join(t, 8, 1)
			w.now += quota.Instant(c.slow)
			w.answer(w.now)
		}
		w.join(t, 1, 1)
		if got := w.calls[0].request.Items[0].Soon; got != c.soon {
			t.Errorf("%s: soon %v", name, got)
		}
	}
	w := newWorld(t, 100, quota.Second, 100)
	if w.join(t, 1, 1); !w.calls[0].request.Items[0].Soon {
		t.Error("the first request does not")
	}
}

// Tokens that had to be used soon and come later are used by no request, and go back: the waiting
// requests ask once more, with more time, and get their tokens.
func TestTokensThatComeTooLateToBeUsedSoon(t *testing.T) {
	w := quick(t, quota.Second)
	w.names = true
	sent := w.now
	ticket := w.join(t, 1, 1)
	w.now = sent + quota.Instant(lease.Soon) - ms
	w.answer(w.now)
	if ticket.Outcome != leasing.Waiting || w.held(1) != 0 || w.client.Waiting() != 1 {
		t.Fatalf("%v, %d in hand, %d wait", ticket.Outcome, w.held(1), w.client.Waiting())
	}
	if !w.tickUntil(w.now + 20*ms) {
		t.Fatal("it does not ask again")
	}
	if items := w.calls[0].request.Items; len(items) != 2 || items[1].Soon || items[1].Waiting != 1 ||
		items[0].Returned != 1 || items[0].Term == 0 {
		t.Errorf("it gives back and asks for %+v", items)
	}
	w.now += 20 * ms
	w.answer(w.now)
	if ticket.Outcome != leasing.Granted || ticket.Until > sent+100*ms {
		t.Errorf("%v, until %d ms after it was sent", ticket.Outcome, (ticket.Until-sent)/ms)
	}
	if failed := w.join(t, 2, 1); failed.Outcome != leasing.Waiting {
		t.Errorf("the next is %v", failed.Outcome)
	}
}

// The token that came too late goes back in the call in which its request asks again, also if that
// call cannot leave at once. A return in an earlier call of its own might arrive after the request:
// then the bucket lacks the token, and the request is refused.
func TestATokenThatCameTooLateGoesBackWithItsRequest(t *testing.T) {
	w := quick(t, quota.Second)
	w.names = true
	ticket := w.join(t, 1, 1)
	w.now += quota.Instant(lease.Soon) - ms
	w.join(t, 2, 1)
	w.answer(w.now)
	w.client.Tick(w.now)
	if ticket.Outcome != leasing.Waiting || len(w.calls) != 1 {
		t.Fatalf("%v; beside the call for bucket 2 left %+v", ticket.Outcome, w.calls[1:])
	}
	w.now += 5 * ms
	w.client.Flush(w.now)
	if len(w.calls) != 2 {
		t.Fatalf("%d calls, want 2", len(w.calls))
	}
	if items := w.calls[1].request.Items; len(items) != 2 || items[0].Returned != 1 || items[1].Waiting != 1 {
		t.Errorf("it gives back and asks for %+v", items)
	}
	for len(w.calls) > 0 {
		w.answer(w.now)
	}
	if ticket.Outcome != leasing.Granted {
		t.Errorf("%v", ticket.Outcome)
	}
}

// A request whose time is over before an answer can be used fails over, as without that.
func TestTokensThatNeverComeSoonEnough(t *testing.T) {
	w := quick(t, quota.Second)
	ticket := w.join(t, 1, 1)
	w.now += 45 * ms
	w.answer(w.now)
	if ticket.Outcome != leasing.Waiting {
		t.Fatalf("%v", ticket.Outcome)
	}
	for range 2 {
		w.now += 10 * ms
		w.client.Tick(w.now)
		w.client.EndLate(w.now)
	}
	if ticket.Outcome != leasing.Failed || w.client.Waiting() != 0 {
		t.Errorf("%v, %d wait", ticket.Outcome, w.client.Waiting())
	}
}

// Tokens that come within that time are used until it is over, also the tokens of a client that has
// gone.
func TestTokensToUseSoonEndSoon(t *testing.T) {
	w := quick(t, quota.Second)
	sent := w.now
	ticket := w.join(t, 1, 1)
	w.now += ms
	w.join(t, 2, 1)
	w.client.Cancel(w.stream)
	w.now += ms
	for len(w.calls) > 0 {
		w.answer(w.now)
		w.client.Flush(w.now)
	}
	soon := lease.Expiry(sent, lease.Soon)
	if ticket.Outcome != leasing.Granted || ticket.Until != soon {
		t.Errorf("%v until %d µs", ticket.Outcome, ticket.Until-sent)
	}
	if w.held(2) != 1 {
		t.Fatal("the token of the client that has gone is not there")
	}
	if w.now = sent + ms + quota.Instant(lease.Soon); w.held(2) != 0 {
		t.Error("a token is kept for longer than it is leased")
	}
}
