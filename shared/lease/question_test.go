package lease_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// A wait is exact by the control plane's knowledge. It is too short by the tokens that other nodes
// have used and not reported, and the next wait is exact.
func TestAWaitIsShortByWhatIsNotReported(t *testing.T) {
	const unreported = 24 // Each of two has a slack of 50; 25 would be reported at once.
	p := params(t, 100, quota.Minute, 100)
	const each = 600 * quota.Millisecond // A token comes so often.
	ask := lease.Ask{Params: p, Version: 1, Optimistic: true, Waiting: 1, Cost: 100, Deadline: lease.Deadline}
	now := quota.Instant(sec)
	plane, answer := lease.Ledger{}.Grant(now, ask)
	by := lease.Answer{Debt: answer.Debt, Cost: 100, Granted: 1, Wanted: 1}
	account, used, _ := lease.Account{}.Decided(now, p, by)
	// The granted tokens count for the whole deadline, rounded up: it does not refill meanwhile.
	if wait := account.Wait(now, p, 1); used != 1 || wait != each+2*lease.Deadline {
		t.Fatalf("%d used, a token is said to come in %d", used, wait)
	}
	now += quota.Instant(each)
	plane, _ = plane.Grant(now, lease.Ask{Params: p, Version: 1, Used: unreported, Optimistic: true})
	ask.Cost = 1
	_, answer = plane.Grant(now, ask)
	// The granted tokens count for the whole deadline, rounded up, so the bucket earned that much
	// less.
	if want := unreported*each + 2*lease.Deadline; answer.Waiting != 0 || answer.NotBefore != want {
		t.Errorf("%+v, want a wait that is longer by %d", answer, want)
	}
	now += quota.Instant(answer.NotBefore)
	if _, answer = plane.Grant(now, ask); answer.Waiting != 1 {
		t.Errorf("the next wait is short too: %+v", answer)
	}
}

// A node's use while its question is under way counts against the answer, for the requests that it
// leaves no room for. A grant that is unused or given back is set against the tokens that the node
// would report.
func TestAGrantIsUsedBesideWhatWasUsedMeanwhile(t *testing.T) {
	p := params(t, 100, quota.Minute, 100)
	for _, c := range []struct {
		meanwhile, debt, cost, granted, wanted int64
		used, unreported                       int64
	}{
		{0, 100, 60, 1, 1, 1, 0},
		{10, 90, 60, 1, 1, 1, 10},
		{11, 90, 60, 1, 1, 0, 0},
		{11, 90, 5, 1, 1, 0, 6},
		{11, 90, 1, 5, 5, 4, 10},
		{20, 90, 5, 4, 4, 2, 10},
		{20, 90, 5, 4, 2, 2, 10}, // The tokens of two requests that have gone make room.
		{10, 90, 60, 1, 0, 0, 0}, // The client has left.
		{10, 90, 30, 2, 1, 1, 0}, // One of two has.
		{10, 120, 30, 0, 0, 0, 10},
		{10, 120, 5, 9, 9, 0, 0}, // Others have reported more than there was.
	} {
		account, r := lease.Account{}.Use(1, p, 50, c.meanwhile)
		by := lease.Answer{Debt: c.debt * p.Den, Cost: c.cost, Granted: c.granted, Wanted: c.wanted}
		account, used, sure := account.Decided(1, p, by)
		if !r.Allowed || !sure || used != c.used || account.Unknown != c.unreported {
			t.Errorf("%+v: %d used, %d to report", c, used, account.Unknown)
		}
		if account = account.GiveBack(used * c.cost); account.Unknown != max(c.unreported-used*c.cost, 0) {
			t.Errorf("%+v: %d to report after it is given back", c, account.Unknown)
		}
	}
}

// An answer that overtakes the answer to a report may already count that report, also if the report
// left later and overtook the question. Where that makes a difference, the node refuses nothing.
func TestAnAnswerThatMayCountAReport(t *testing.T) {
	p := params(t, 100, quota.Minute, 100)
	for _, c := range []struct {
		sent, debt int64
		sure       bool
		used       int64
	}{
		{sent: 5, debt: 90, sure: true, used: 1}, {sent: 5, debt: 91}, {sent: 5, debt: 100},
		{sent: 3, debt: 90, sure: true, used: 1}, {sent: 3, debt: 91}, {sent: 5, debt: 120, sure: true},
	} {
		account, _ := lease.Account{}.Use(1, p, 50, 10)
		account = account.Report(4)
		after, used, sure := account.Decided(6, p, lease.Answer{
			Sent: quota.Instant(c.sent), Debt: c.debt * p.Den, Cost: 5, Granted: 1, Wanted: 1,
		})
		if sure != c.sure || used != c.used || !sure && after != account {
			t.Errorf("%+v: %d used, sure %v", c, used, sure)
		}
	}
	// Nor does the node refuse by itself while that is open.
	account, _ := lease.Account{}.Use(1, p, 50, 10)
	account = account.Report(4)
	account, _, _ = account.Decided(6, p, lease.Answer{Sent: 5, Debt: 90 * p.Den, Cost: 1})
	if account.Wait(6, p, 5) == 0 || !account.Asks(6, p, 5) || account.Asks(6, p, 11) {
		t.Errorf("%+v", account)
	}
}

// A node learns of an operator's gift by its next answer, and until then it asks about all
// requests. It continues from that answer, although the bucket lacked more before.
func TestWhatAnOperatorGivesIsAskedAbout(t *testing.T) {
	p := params(t, 100, quota.Hour, 100)
	account := lease.Account{Debt: p.UnitsFor(100), Heard: 1}
	if account.Asks(1, p, 1) {
		t.Error("the node asks about an empty bucket")
	}
	account.Stale = true
	if _, r := account.Use(1, p, 100, 1); r.Allowed || !account.Asks(1, p, 1) || account.Asks(1, p, 101) {
		t.Errorf("the node decides alone: %v", r)
	}
	by := lease.Answer{Sent: 1, Debt: p.UnitsFor(81), Cost: 1, Granted: 1, Wanted: 1}
	account, used, sure := account.Decided(1, p, by)
	if used != 1 || !sure || account.Stale || account.Remaining(1, p) != 19 {
		t.Errorf("%d used, %+v", used, account)
	}
}

// An unused grant is set against tokens that are being reported. The answer to that report then
// covers no other tokens.
func TestAGrantStandsForTokensOnce(t *testing.T) {
	p := params(t, 100, quota.Minute, 100)
	account, _ := lease.Account{}.Use(1, p, 50, 3)
	account = account.Report(1)
	account, _, _ = account.Decided(2, p, lease.Answer{Sent: 2, Debt: p.UnitsFor(6), Cost: 3, Granted: 1})
	account, _ = account.Use(3, p, 50, 2)
	account = account.Answered(4, account.Sent, p, p.UnitsFor(3))
	if account.Unknown != 2 {
		t.Errorf("%d to report, want 2", account.Unknown)
	}
}

// A node asks about tokens beyond its slack, and only if the bucket may hold them.
func TestWhatANodeAsksAbout(t *testing.T) {
	p := params(t, 100, quota.Minute, 100)
	for _, c := range []struct {
		unreported, debt, slack, n int64
		asks                       bool
	}{
		{0, 0, 25, 26, true}, {0, 0, 25, 100, true}, {0, 0, 25, 101, false},
		{0, 74, 25, 26, true}, {0, 75, 25, 26, false}, {1, 74, 25, 26, false},
		{20, 0, 25, 6, true}, {25, 0, 25, 1, true}, {1, 0, 1, 1, true}, {1, 99, 1, 1, false}, {0, 0, 0, 1, true},
	} {
		account := lease.Account{Unknown: c.unreported, Debt: p.UnitsFor(c.debt), Heard: 1}
		if _, r := account.Use(1, p, c.slack, c.n); r.Allowed || account.Asks(1, p, c.n) != c.asks {
			t.Errorf("%+v: allowed: %v, asks: %v", c, r.Allowed, !c.asks)
		}
	}
}

// Granted tokens of a full bucket keep it from refilling for a while, and have no other effect.
// Other use beside them is earned again at once, down to those tokens.
func TestABucketEarnsBesideTokensThatRest(t *testing.T) {
	p, err := quota.NewParams(100, quota.Second, 20)
	if err != nil {
		t.Fatal(err)
	}
	for _, unit := range []int64{0, 2 * p.Den} {
		cell := max(unit, p.Den)
		a, used, sure := lease.Account{Unit: unit}.Decided(1000, p,
			lease.Answer{Sent: 900, Debt: 2 * cell, Cost: 2, Granted: 1, Wanted: 1})
		if used != 1 || !sure {
			t.Fatal(used, sure)
		}
		a, r := a.Use(2000, p, 20, 1)
		if !r.Allowed {
			t.Fatal(r)
		}
		a = a.Report(2000).Answered(3000, 2000, p, 21*cell)
		const tenth = 100_000 // Ten tokens come.
		for _, c := range []struct {
			at   quota.Instant
			left int64
		}{{3000, 0}, {3000 + tenth/2, 4}, {3000 + tenth, 9}, {3000 + 19*tenth/10, 18}} {
			if got := a.Remaining(c.at, p); got != c.left {
				t.Errorf("unit %d, at %d: %d are left, want %d", unit, c.at, got, c.left)
			}
			if wait := a.Wait(c.at, p, c.left+1); wait < 1 || wait > 20*quota.Millisecond ||
				c.left > 0 && a.Wait(c.at, p, c.left) > 0 {
				t.Errorf("unit %d, at %d: %d µs until the next token", unit, c.at, wait)
			}
		}
		late := quota.Instant(1000 + lease.Untold)
		alone, _, _ := lease.Account{Unit: unit}.Decided(1000, p,
			lease.Answer{Sent: 900, Debt: 2 * cell, Cost: 2, Granted: 1, Wanted: 1})
		if got := alone.Remaining(late, p); got != 18 {
			t.Errorf("unit %d: the granted tokens are back before their time: %d", unit, got)
		}
		if got := alone.Remaining(late+20_000, p); got != 20 {
			t.Errorf("unit %d: %d are left when the granted tokens are back", unit, got)
		}
		if wait := alone.Wait(late-5000, p, 19); wait != 15*quota.Millisecond {
			t.Errorf("unit %d: a wait of %d µs", unit, wait)
		}
	}
}

// How long the tokens of a grant rest, a node knows only within a deadline. Meanwhile it asks in
// place of a refusal, and an answer that counts less than they were ends their rest.
func TestANodeAsksWhenTokensMayRestNoMore(t *testing.T) {
	p, err := quota.NewParams(200, quota.Second, 10)
	if err != nil {
		t.Fatal(err)
	}
	a, used, _ := lease.Account{}.Decided(1000, p, lease.Answer{Debt: 10 * p.Den, Cost: 1, Granted: 10, Wanted: 10})
	if used != 10 {
		t.Fatal(used)
	}
	for at, asks := range map[quota.Instant]bool{2000: false, 30_000: false, 60_000: true, 95_000: true} {
		if _, r := a.Use(at, p, 10, 1); r.Allowed || a.Asks(at, p, 1) != asks {
			t.Errorf("at %d: allowed %v, asks %v", at, r.Allowed, !asks)
		}
	}
	still, _, _ := a.Decided(61_000, p, lease.Answer{Sent: 60_000, Debt: 10 * p.Den, Cost: 1})
	if still.Asks(62_000, p, 1) || !still.Asks(75_000, p, 1) || still.Remaining(90_000, p) > 0 {
		t.Error("an answer without news is asked for at once, or treated as news")
	}
	old, _, _ := a.Decided(61_000, p, lease.Answer{Sent: 500, Debt: 4 * p.Den, Cost: 1})
	if left := old.Remaining(61_000, p); left > 0 {
		t.Errorf("an answer from before the grant leaves %d", left)
	}
	news, _, _ := a.Decided(61_000, p, lease.Answer{Sent: 60_000, Debt: 4 * p.Den, Cost: 1})
	if left := news.Remaining(61_000, p); left != 6 {
		t.Errorf("%d are left by an answer of 6", left)
	}
}
