package lease_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// figuresOfADay is a limit of a million a day, and the figures of a caller with seven.
func figuresOfADay(t *testing.T) (many, few quota.Params) {
	t.Helper()
	most, err := policy.NewLimit(policy.Counting{}, 1_000_000, quota.Day, 0)
	if err != nil {
		t.Fatal(err)
	}
	return most.Params, most.For(7, 0).Params
}

// An account that a caller with few tokens a day looks at, or reports to, still owes the tokens
// that other callers have used.
func TestAnAccountOfCallersOwnFiguresForgetsNothing(t *testing.T) {
	many, few := figuresOfADay(t)
	now := quota.Instant(quota.Hour)
	for name, last := range map[string]quota.Params{"many": many, "few": few} {
		account, r := lease.Account{Unit: many.Den}.Use(now, many, many.Burst, many.Burst)
		if !r.Allowed {
			t.Fatal("a full bucket refuses its burst")
		}
		account = account.Report(now)
		ask := lease.Ask{Params: last, Most: many, Version: 1, Used: account.Reported, Optimistic: true}
		ledger, answer := lease.Ledger{}.Grant(now, ask)
		for range 2 { // Then reports of a token more than the bucket holds.
			account = account.Answered(now, account.Sent, last, answer.Debt)
			for asked, p := range map[string]quota.Params{"many": many, "few": few} {
				if left := account.Remaining(now, p); left > 0 {
					t.Errorf("%s reports: %d tokens are left for %s", name, left, asked)
				}
				if _, r := account.Use(now, p, p.Burst, 1); r.Allowed || r.RetryAfter < quota.Millisecond {
					t.Errorf("%s reports, %s asks: %+v", name, asked, r)
				}
			}
			account.Unknown = 1
			account = account.Report(now)
			ask.Used = 1
			ledger, answer = ledger.Grant(now, ask)
		}
		if owed := many.TokensIn(answer.Debt); owed != many.Burst+2 {
			t.Errorf("%s reports: %d tokens are owed, want %d", name, owed, many.Burst+2)
		}
	}
}

// A caller with one and the same figures has these, whatever others could have: its account counts
// in whole tokens at its own rate, and who waits as long as it says is admitted, and no sooner.
func TestAnAccountEarnsByTheCallersRate(t *testing.T) {
	many, few := figuresOfADay(t)
	day := int64(quota.Day)
	start := quota.Instant(quota.Hour)
	account := lease.Account{Unit: many.Den, Debt: 7 * many.Den, Heard: start}
	for i, s := range []struct {
		at, cost int64
		wait     quota.Span // 0: admitted
	}{
		{0, 1, quota.Span(day/7 + 1)},
		{day / 14, 1, quota.Span(day/7 + 1 - day/14)},
		{day / 7, 1, quota.Millisecond}, // Rounded up from a microsecond.
		{day/7 + 1, 2, quota.Span(2*day/7 + 1 - (day/7 + 1))},
		{day/7 + 1, 1, 0},
		{day/7 + 1, 1, quota.Span(2*day/7 + 1 - (day/7 + 1))},
		{2*day/7 + 1, 1, 0},
		{day + 1, 8, quota.Never},
	} {
		var r quota.Result
		if account, r = account.Use(start+quota.Instant(s.at), few, few.Burst, s.cost); r.Allowed != (s.wait == 0) ||
			r.RetryAfter != s.wait {
			t.Errorf("step %d: %+v, want a wait of %d", i, r, s.wait)
		}
	}
}
