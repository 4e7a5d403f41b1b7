package lease_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// A wait is exact for what the control plane knows. It is short by what other nodes have used and
// not reported, and the next one is exact.
func TestAWaitIsShortByWhatIsNotReported(t *testing.T) {
	const unreported = 24 // Each of two has a slack of 50; 25 would be reported at once.
	p := params(t, 100, quota.Minute, 100)
	const each = 600 * quota.Millisecond // A token comes so often.
	ask := lease.Ask{Params: p, Version: 1, Optimistic: true, Waiting: 1, Cost: 100, Deadline: lease.Deadline}
	now := quota.Instant(sec)
	plane, answer := lease.Ledger{}.Grant(now, ask)
	account, used := lease.Account{}.Decided(now, p, answer.Debt, 100, 100)
	if wait := account.Wait(now, p, 1); used != 100 || wait != each {
		t.Fatalf("%d used, a token is said to come in %d", used, wait)
	}
	now += quota.Instant(each)
	plane, _ = plane.Grant(now, lease.Ask{Params: p, Version: 1, Used: unreported, Optimistic: true})
	ask.Cost = 1
	_, answer = plane.Grant(now, ask)
	// What was granted counts for the whole deadline, rounded up, so it earned that much less.
	if want := unreported*each + 2*lease.Deadline; answer.Waiting != 0 || answer.NotBefore != want {
		t.Errorf("%+v, want a wait that is longer by %d", answer, want)
	}
	now += quota.Instant(answer.NotBefore)
	if _, answer = plane.Grant(now, ask); answer.Waiting != 1 {
		t.Errorf("the next wait is short too: %+v", answer)
	}
}

// What a node uses while its question is under way counts against the answer. A grant that is not
// used, or given back, stands for what the node would report.
func TestAGrantIsUsedBesideWhatWasUsedMeanwhile(t *testing.T) {
	p := params(t, 100, quota.Minute, 100)
	for _, c := range []struct {
		meanwhile, debt, granted, wanted int64
		used, unreported                 int64
	}{
		{0, 100, 60, 60, 60, 0},
		{10, 90, 60, 60, 60, 10},
		{11, 90, 60, 60, 0, 0},
		{11, 90, 5, 5, 0, 6},
		{10, 90, 60, 0, 0, 0},   // The client has left.
		{10, 90, 60, 30, 30, 0}, // One of two has.
		{10, 120, 0, 0, 0, 10},
	} {
		account, r := lease.Account{}.Use(1, p, 50, c.meanwhile)
		account, used := account.Decided(1, p, c.debt*p.Den, c.granted, c.wanted)
		if !r.Allowed || used != c.used || account.Unknown != c.unreported {
			t.Errorf("%+v: %d used, %d to report", c, used, account.Unknown)
		}
		if account = account.GiveBack(used); account.Unknown != max(c.unreported-used, 0) {
			t.Errorf("%+v: %d to report after it is given back", c, account.Unknown)
		}
	}
}

// A grant that no request uses stands for tokens that are being reported. The answer to that report
// makes up for no others.
func TestAGrantStandsForTokensOnce(t *testing.T) {
	p := params(t, 100, quota.Minute, 100)
	account, _ := lease.Account{}.Use(1, p, 50, 3)
	account = account.Report(1)
	account, _ = account.Decided(2, p, p.UnitsFor(6), 3, 0)
	account, _ = account.Use(3, p, 50, 2)
	account = account.Answered(4, account.Sent, p, p.UnitsFor(3))
	if account.Unknown != 2 {
		t.Errorf("%d to report, want 2", account.Unknown)
	}
}

// A node asks about what it may not find a place for in its slack, and only if the bucket seems to
// hold it.
func TestWhatANodeAsksAbout(t *testing.T) {
	p := params(t, 100, quota.Minute, 100)
	for _, c := range []struct {
		unreported, debt, slack, n int64
		asks                       bool
	}{
		{0, 0, 25, 26, true}, {0, 0, 25, 100, true}, {0, 0, 25, 101, false},
		{0, 74, 25, 26, true}, {0, 75, 25, 26, false}, {1, 74, 25, 26, false},
		{20, 0, 25, 12, false}, {20, 0, 25, 13, true},
		{1, 0, 1, 1, false}, {0, 0, 1, 2, true}, {1, 0, 1, 2, true},
	} {
		account := lease.Account{Unknown: c.unreported, Debt: p.UnitsFor(c.debt), Heard: 1}
		if _, r := account.Use(1, p, c.slack, c.n); r.Allowed || account.Asks(1, p, c.slack, c.n) != c.asks {
			t.Errorf("%+v: allowed: %v, asks: %v", c, r.Allowed, !c.asks)
		}
	}
	if one, three := lease.DecidesAlone(p, 1), lease.DecidesAlone(p, 3); one != 100 || three != 12 {
		t.Errorf("of one node %d, of three %d are decided alone", one, three)
	}
}
