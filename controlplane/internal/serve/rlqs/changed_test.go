package rlqs_test

import (
	"context"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/assign"
	"github.com/weir-proxy/weir/controlplane/internal/serve/rlqs"
	"github.com/weir-proxy/weir/shared/quota"
)

// changing is a Source with a standing that tests set. It has tokens for each ask, except for the
// next asks that must fail.
type changing struct {
	rlqs.Standing
	failing int
}

func (c *changing) Stand(context.Context, rlqs.ID) rlqs.Standing { return c.Standing }

func (c *changing) Take(_ context.Context, asks []rlqs.Ask) {
	for i := range asks {
		asks[i].Granted, asks[i].Level = asks[i].Want, 5
		if c.failing > 0 {
			c.failing--
			asks[i].Granted, asks[i].Failed = 0, true
		}
	}
}

// newest keeps the last action that a filter was sent, and counts the actions.
type newest struct {
	rlqs.Action
	n int
}

func (o *newest) Offer(actions []rlqs.Action) {
	o.n += len(actions)
	o.Action = actions[len(actions)-1]
}

// Assignments of a slow limit live for minutes. A ban, a bypass or a changed limit reaches the
// filter within four seconds all the same. While nothing changes, the filter keeps its assignment.
func TestAChangeDoesNotWaitForTheEndOfAnAssignment(t *testing.T) {
	limited := func(n int64) rlqs.Standing {
		p, err := quota.NewParams(n, 24*quota.Hour, n)
		if err != nil {
			t.Fatal(err)
		}
		f := assign.Figures{}.With(p, 1, n)
		return rlqs.Standing{Verdict: rlqs.Limited, Figures: f}
	}
	source, out := &changing{Standing: limited(10)}, &newest{}
	e := rlqs.NewEngine(source, rlqs.Room{All: 10, Each: 10}, func() int64 { return 0 })
	filter, now := e.Join(out), quota.Instant(1)
	pass := func(span quota.Span) {
		for end := now + quota.Instant(span); now < end; now = min(max(e.Due(), now+1), end) {
			e.Turn(t.Context(), func() quota.Instant { return now })
		}
	}
	e.Report(now, filter, theBucket, 1)
	for range 4 {
		pass(5 * quota.Second)
		e.Report(now, filter, theBucket, 1)
	}
	if out.Kind != rlqs.Assign {
		t.Fatalf("the filter was sent %+v", out.Action)
	}
	for _, c := range []struct {
		name    string
		to      rlqs.Standing
		want    rlqs.Kind
		failing int
	}{
		{"a ban", rlqs.Standing{Verdict: rlqs.Denied}, rlqs.Deny, 0}, {"its end", limited(10), rlqs.Assign, 0},
		{"a bypass", rlqs.Standing{Verdict: rlqs.Allowed}, rlqs.Allow, 0}, {"its end", limited(10), rlqs.Assign, 1},
		{"another limit", limited(20), rlqs.Assign, 0}, {"and another", limited(1000), rlqs.Assign, 1},
	} {
		source.Standing, source.failing = c.to, c.failing
		before := out.n
		pass(quota.Span(4+2*c.failing) * quota.Second)
		e.Report(now, filter, theBucket, 1)
		if out.n == before || out.Kind != c.want {
			t.Errorf("%s: in time the filter has had %d more, the last %+v", c.name, out.n-before, out.Action)
		}
	}
	e.Report(now, filter, theBucket, 1)
	pass(5 * quota.Second)
	before := out.n
	e.Report(now, filter, theBucket, 1)
	pass(10 * quota.Second)
	if out.n > before+1 {
		t.Errorf("nothing has changed, and in 10 s the filter was sent %d more", out.n-before)
	}
}
