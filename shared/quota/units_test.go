package quota_test

import (
	"slices"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

// The arithmetic of buckets, to the unit: figures so small that each rounding shows.

// most is where debts saturate.
const most = quota.MaxUnits + quota.MaxUnits/4

// three earns 3 units in a microsecond, a token has 10 of them, and its burst is 5. seven is a
// bucket whose tokens have 7 units.
var (
	three = quota.Params{Num: 3, Den: 10, Burst: 5}
	seven = quota.Params{Num: 1, Den: 7, Burst: 5}
)

// small earns a token in 10 microseconds, and its burst is 5.
var small = quota.Params{Num: 1, Den: 10, Burst: 5}

// The state of a bucket after a change of its figures, to the unit.
func TestCarryExactly(t *testing.T) {
	slower, faster := quota.Params{Num: 1, Den: 20, Burst: 3}, quota.Params{Num: 1, Den: 5, Burst: 3}
	tiny, similar := quota.Params{Num: 1, Den: 3, Burst: 3}, quota.Params{Num: 19, Den: 200, Burst: 3}
	at7 := func(debt, over int64, gone quota.Instant) quota.State {
		return quota.State{Debt: debt, Last: 7, Over: over, Gone: gone}
	}
	for name, c := range map[string]struct {
		s      quota.State
		next   quota.Params
		beyond int64
		want   quota.State
	}{
		"whole tokens":                  {at7(20, 0, 0), slower, 0, at7(40, 0, 0)},
		"a part of a token":             {at7(23, 0, 0), slower, 0, at7(47, 0, 0)},
		"a part is at most a token":     {at7(29, 0, 0), tiny, 0, at7(9, 0, 0)},
		"a whole burst":                 {at7(30, 0, 0), slower, 0, at7(60, 0, 0)},
		"a unit more":                   {at7(31, 0, 0), slower, 0, at7(60, 1, 38)},
		"a unit more, hardly slower":    {at7(31, 0, 0), similar, 0, at7(600, 1, 38)},
		"the bucket may owe a token":    {at7(30, 0, 0), slower, 1, at7(60, 0, 0)},
		"it owes more than that":        {at7(50, 0, 0), slower, 1, at7(80, 1, 57)},
		"over from before":              {at7(50, 2, 0), slower, 0, at7(60, 4, 87)},
		"over that is gone earlier":     {at7(50, 2, 30), slower, 0, at7(60, 4, 57)},
		"over that is gone in a window": {at7(50, 2, 67), slower, 0, at7(60, 4, 67)},
		"over that is gone after it":    {at7(50, 2, 68), slower, 0, at7(60, 4, 87)},
		"over that is gone later":       {at7(50, 2, 90), slower, 0, at7(60, 4, 90)},
		"a faster limit drains by rate": {at7(50, 0, 0), faster, 0, at7(15, 2, 0)},
		"as many tokens as can be":      {at7(50, 2*most, 0), slower, 0, at7(60, most-3, 0)},
	} {
		if got := small.Carry(c.s, c.next, c.beyond); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// Tokens that a lowered limit has no room for drain when the debt is paid, at 100, and all at once
// when Gone is reached.
func TestDrainOverExactly(t *testing.T) {
	for name, c := range map[string]struct {
		s           quota.State
		now         quota.Instant
		want        quota.State
		forgettable quota.Instant
	}{
		"the debt is paid now":     {quota.State{Over: 5}, 100, quota.State{Over: 5}, 150},
		"no token is earned":       {quota.State{Over: 5}, 109, quota.State{Over: 5}, 150},
		"a token is earned":        {quota.State{Over: 5}, 110, quota.State{Over: 4}, 150},
		"all tokens are earned":    {quota.State{Over: 5, Gone: 999}, 150, quota.State{}, 150},
		"long after":               {quota.State{Over: 5}, 100_000, quota.State{}, 150},
		"before Gone":              {quota.State{Over: 5, Gone: 121}, 120, quota.State{Over: 3, Gone: 121}, 121},
		"Gone":                     {quota.State{Over: 5, Gone: 121}, 121, quota.State{}, 121},
		"Gone before debt is paid": {quota.State{Over: 5, Gone: 90}, 90, quota.State{}, 100},
	} {
		if got := small.DrainOver(c.s, c.now, 100); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if got := small.ForgetOver(c.s, 100); got != c.forgettable {
			t.Errorf("%s: forgotten at %d, want %d", name, got, c.forgettable)
		}
	}
	if got := small.ForgetOver(quota.State{}, 100); got != 100 {
		t.Errorf("without such tokens: forgotten at %d, want 100", got)
	}
}

func TestBeyondExactly(t *testing.T) {
	for debt, want := range map[int64]int64{0: 0, 40: 0, 50: 0, 51: 1, 80: 3} {
		if got := small.Beyond(quota.State{Debt: debt}); got != want {
			t.Errorf("%d units owed: %d tokens beyond the burst, want %d", debt, got, want)
		}
	}
}

// Nothing changes without time. Debt drains first; tokens over are gone at Gone.
func TestDrainExactly(t *testing.T) {
	over := func(debt, over int64, last, gone quota.Instant) quota.State {
		return quota.State{Debt: debt, Last: last, Over: over, Gone: gone}
	}
	for name, c := range map[string]struct {
		s    quota.State
		now  quota.Instant
		want quota.State
	}{
		"no time":                 {over(50, 2, 7, 7), 7, over(50, 2, 7, 7)},
		"an earlier time":         {over(50, 2, 7, 5), 6, over(50, 2, 7, 5)},
		"a microsecond":           {over(50, 0, 7, 0), 8, over(47, 0, 8, 0)},
		"less than a microsecond": {over(2, 0, 7, 0), 8, over(0, 0, 8, 0)},
		"one token over is gone":  {over(50, 1, 7, 8), 8, over(47, 0, 8, 0)},
		"tokens over stay":        {over(50, 2, 7, 9), 8, over(47, 2, 8, 9)},
	} {
		if got := three.Drain(c.s, c.now); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// A bucket that owes more than a burst refuses, until all of that is paid.
func TestTakeOwingExactly(t *testing.T) {
	for name, c := range map[string]struct {
		debt int64
		now  quota.Instant
		n    int64
		want quota.Result
		left int64
	}{
		"a unit more than a burst": {51, 100, 3, quota.Result{RetryAfter: 11}, 51},
		"a whole burst":            {60, 100, 5, quota.Result{RetryAfter: 20}, 60},
		"the caller's clock lags":  {60, 90, 1, quota.Result{RetryAfter: 17}, 60},
		"more than a burst":        {60, 100, 6, quota.Result{RetryAfter: quota.Never}, 60},
		"nothing":                  {60, 100, 0, quota.Result{Allowed: true}, 60},
	} {
		s, got := three.TakeOwing(quota.State{Debt: c.debt, Last: 100}, c.now, c.n)
		if got != c.want || s.Debt != c.left {
			t.Errorf("%s: %+v, %d units owed; want %+v, %d", name, got, s.Debt, c.want, c.left)
		}
	}
}

// A settlement gives back the tokens that have not come back by themselves, and no unit more.
func TestSettleExactly(t *testing.T) {
	for name, c := range map[string]struct {
		p      quota.Params
		now    quota.Instant
		tokens int64
		actual int64
		debt   int64
		gave   int64
	}{
		"at once":                         {three, 0, 2, 0, 30, 20},
		"after three microseconds":        {three, 3, 2, 0, 30, 11},
		"when two units are left":         {three, 6, 2, 0, 30, 2},
		"when all have come back":         {three, 7, 2, 0, 29, 0},
		"the cost is the reservation":     {three, 0, 2, 2, 50, 0},
		"a token more":                    {three, 0, 2, 3, 60, -10},
		"the debt saturates":              {three, 0, 0, 2 * most, most, 50 - most},
		"the debt of a cost saturates":    {seven, 0, 0, most/7 + 1, most, 50 - most},
		"the largest debt without a loss": {seven, 50, 0, most / 7, most / 7 * 7, -(most / 7 * 7)},
	} {
		s, gave := c.p.Settle(quota.State{Debt: 50}, c.now, quota.Reservation{Tokens: c.tokens}, c.actual)
		if s.Debt != c.debt || gave != c.gave {
			t.Errorf("%s: %d units owed, gave back %d; want %d, %d", name, s.Debt, gave, c.debt, c.gave)
		}
	}
}

// Units are rounded up to parts of a token. Units that are whole parts are not rounded.
func TestPartsOfExactly(t *testing.T) {
	for p, all := range map[quota.Params]map[int64]int64{
		seven: {0: 0, 1: 143, 7: 1000, 8: 1143, 14: 2000, -7: -1000, -8: -1142},
		three: {1: 100, 5: 500, 10: 1000, 12: 1200, -12: -1200},
	} {
		for units, want := range all {
			if got := p.PartsOf(units); got != want {
				t.Errorf("%d of %d units: %d parts of a token, want %d", units, p.Den, got, want)
			}
		}
	}
}

// A reservation that counts in two fixed windows returns the tokens of the window that counts. Once
// its window has ended, a reservation changes nothing. A count saturates at MaxUnits.
func TestSettleWindowsExactly(t *testing.T) {
	w := windowsOf(t, quota.FixedWindow, 100, quota.Second, 0)
	const second = quota.Instant(quota.Second)
	for name, c := range map[string]struct {
		last         quota.Instant
		r            quota.Reservation
		actual       int64
		before, want marks
		back         int64
	}{
		"in two windows": {
			second - 1, quota.Reservation{From: second - 1, At: second, Tokens: 3}, 0,
			marks{{0, 1}, {second, 2}}, marks{}, 1,
		},
		"at the end of its window": {
			second, quota.Reservation{From: 1, At: 1, Tokens: 3}, 0, marks{{0, 5}}, marks{{0, 5}}, 0,
		},
		"before the end of its window": {
			second - 1, quota.Reservation{From: 1, At: 1, Tokens: 3}, 0, marks{{0, 5}}, marks{{0, 2}}, 3,
		},
		"the count saturates": {
			1, quota.Reservation{From: 1, At: 1, Tokens: 3}, quota.MaxUnits,
			marks{{0, 5}}, marks{{0, quota.MaxUnits}}, 3 - quota.MaxUnits,
		},
	} {
		h := quota.History{Last: c.last, Marks: slices.Clone(c.before)}
		if back := w.Settle(&h, c.r, c.actual); back != c.back || !slices.Equal(h.Marks, c.want) {
			t.Errorf("%s: %d came back, %+v; want %d, %+v", name, back, h.Marks, c.back, c.want)
		}
	}
}
