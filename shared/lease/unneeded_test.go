package lease_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// A node keeps the tokens that its demand will use soon, one token of very many, and no token of a
// bucket that rests.
func TestNeeds(t *testing.T) {
	p := params(t, 1000, quota.Minute, 1000) // TTL 3 s, a back-off 750 ms
	busy := lease.Credit{Level: 500}
	for at := quota.Instant(0); at < 2*sec; at += 10 * ms {
		busy = busy.Observe(at, p, 1) // 100 a second
	}
	for name, c := range map[string]struct {
		held, level, nodes, want int64
		at                       quota.Instant
	}{
		"the tokens that it will use": {held: 60, level: 500, nodes: 2, at: 2 * sec, want: 60},
		"a little more":               {held: 120, level: 500, nodes: 2, at: 2 * sec, want: 120},
		"far more":                    {held: 400, level: 500, nodes: 2, at: 2 * sec, want: 69},
		"far more of a full bucket":   {held: 400, level: 900, nodes: 2, at: 2 * sec, want: 138},
		"it rests":                    {held: 60, level: 500, nodes: 2, at: 3 * sec, want: 0},
		"one token of very many":      {held: 1, level: 500, nodes: 2, at: 3 * sec, want: 1},
		"one token for each node":     {held: 1, level: 100, nodes: 2, at: 3 * sec, want: 0},
	} {
		credit := busy
		credit.Level = c.level
		credit = credit.Receive(c.at, lease.Lease{Tokens: c.held, Expiry: 10 * sec, Term: 9})
		if got := credit.Needs(c.at, p, c.nodes, credit.Rests(c.at, p, false)); got < c.want-2 || got > c.want+2 {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// Tokens that end first are given back first, tokens that are about to end always, and tokens
// without a term never.
func TestTakeOut(t *testing.T) {
	early, late := 1*sec, 2*sec
	for name, c := range map[string]struct {
		at   quota.Instant
		hold int64
		of   [2]lease.Term
		want [2]int64
	}{
		"all":             {0, 0, [2]lease.Term{7, 8}, [2]int64{5, 3}},
		"the first":       {0, 3, [2]lease.Term{7, 8}, [2]int64{5, 0}},
		"some":            {0, 6, [2]lease.Term{7, 8}, [2]int64{2, 0}},
		"none":            {0, 9, [2]lease.Term{7, 8}, [2]int64{0, 0}},
		"those that end":  {early - 25*ms, 9, [2]lease.Term{7, 8}, [2]int64{5, 0}},
		"not yet":         {early - 26*ms, 9, [2]lease.Term{7, 8}, [2]int64{0, 0}},
		"too late":        {early, 0, [2]lease.Term{7, 8}, [2]int64{0, 3}},
		"without a term":  {0, 0, [2]lease.Term{0, 8}, [2]int64{0, 3}},
		"a term that has": {late, 0, [2]lease.Term{7, 8}, [2]int64{0, 0}},
	} {
		credit := lease.Credit{Leases: [2]lease.Lease{
			{Tokens: 5, Used: 2, Expiry: early, Term: c.of[0]}, {Tokens: 3, Expiry: late, Term: c.of[1]},
		}}
		after, out := credit.TakeOut(c.at, c.hold)
		if got := [2]int64{out[0].Tokens, out[1].Tokens}; got != c.want {
			t.Errorf("%s: %d go back, want %d", name, got, c.want)
		}
		if left, want := after.Available(c.at), credit.Available(c.at)-c.want[0]-c.want[1]; left != want {
			t.Errorf("%s: %d stay, want %d", name, left, want)
		}
		if told := out[0].Used; out[0].Term != 0 && (told != 2 || after.Leases[0].Used != 0) {
			t.Errorf("%s: %d are said to be used", name, told)
		}
	}
}

// Joined tokens have the earlier term of both, and none if one of them has none.
func TestJoinedTokensHaveTheEarlierTerm(t *testing.T) {
	for _, c := range []struct{ a, b, want lease.Term }{
		{5, 6, 5}, {6, 5, 5}, {0, 5, 0}, {5, 0, 0}, {1<<32 - 2, 3, 1<<32 - 2}, {3, 1<<32 - 2, 1<<32 - 2},
	} {
		credit := lease.Credit{Leases: [2]lease.Lease{{Tokens: 1, Expiry: sec, Term: 9}, {Tokens: 1, Expiry: 2 * sec,
			Term: c.a}}}
		credit = credit.Receive(0, lease.Lease{Tokens: 1, Expiry: 3 * sec, Term: c.b})
		if got := credit.Leases[1]; got.Term != c.want || got.Tokens != 2 || got.Expiry != 2*sec {
			t.Errorf("%d and %d: %+v", c.a, c.b, got)
		}
	}
}

// A node that was refused asks again before the wait is over where others share the bucket, later
// and later: they may have given tokens back.
func TestRecheck(t *testing.T) {
	p := params(t, 100, quota.Hour, 100) // a back-off 7.5 s
	for nodes, want := range map[int64]int64{0: 0, 1: 0, 2: 4} {
		c, asks := lease.Credit{}, int64(0)
		for now := quota.Instant(0); now < 200*sec; now += 100 * ms {
			if _, refused := c.Refused(now, p, 1, true); refused {
				continue
			}
			asks++
			ask := lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 1, Nodes: nodes}
			c = c.Learn(now, ask, lease.Grant{NotBefore: 300 * quota.Second}, lease.BackOff(p), 512)
		}
		if asks-1 != want {
			t.Errorf("%d nodes: asked %d times again in 200 s, want %d", nodes, asks-1, want)
		}
	}
}
