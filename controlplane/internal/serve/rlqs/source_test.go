package rlqs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/controlplane/controlplanetest"
	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// store grants at most the tokens of has for each bucket, and fails for a bucket that is not in it.
type store struct {
	mu  sync.Mutex
	has map[keyhash.Key]int64
}

var errAway = errors.New("away")

func (s *store) GrantFor(_ context.Context, req wire.LeaseRequest, span quota.Span) (wire.LeaseReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if span > quota.Minute {
		return wire.LeaseReply{}, errAway
	}
	reply := wire.LeaseReply{Items: make([]wire.LeaseAnswer, len(req.Items))}
	for i, it := range req.Items {
		has, known := s.has[it.Bucket]
		if !known {
			reply.Items[i].State = wire.ItemUnknown
			continue
		}
		granted := min(it.Waiting, has/it.Cost)
		s.has[it.Bucket] -= granted * it.Cost
		reply.Items[i] = wire.LeaseAnswer{Waiting: granted, Level: s.has[it.Bucket]}
	}
	return reply, nil
}

// A bucket with several limits gets the tokens that all of them hold. Each limit is asked for no
// more than the limits before it have granted.
func TestAllLimitsMustHaveTheTokens(t *testing.T) {
	s := &store{has: map[keyhash.Key]int64{{1}: 100, {2}: 40, {3}: 7}}
	of := func(keys ...byte) limits {
		var l limits
		for _, key := range keys {
			l.items = append(l.items, wire.LeaseItem{Bucket: keyhash.Key{key}, Cost: 1 + int64(key)/3})
		}
		return l
	}
	asks := []Ask{
		{Limits: of(1, 2), Want: 60, Lease: quota.Second},
		{Limits: of(3, 1), Want: 60, Lease: quota.Second}, // 2 tokens of the first for each request.
		{Limits: of(9, 1), Want: 60, Lease: quota.Second},
		{Limits: of(1), Want: 60, Lease: quota.Hour},
	}
	(&ledgers{leases: s}).Take(t.Context(), asks)
	var got []string
	for _, a := range asks {
		got = append(got, fmt.Sprint(a.Granted, a.Failed, min(a.Level, 1000)))
	}
	if want := "[40 false 0 3 false 0 0 true 1000 0 true 1000]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
	if s.has[keyhash.Key{1}] != 100-60-3 {
		t.Errorf("the first limit holds %d", s.has[keyhash.Key{1}])
	}
}

// Names of buckets are alike only if the buckets are.
func TestNamesOfBuckets(t *testing.T) {
	text := rapid.SampledFrom([]string{"", "a", "b", "1", ":", "1:a", "a1:b", "1:a1:b"})
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.MapOfN(text, text, 1, 3)
		one, ok1 := idOf(text.Draw(t, "domain"), entries.Draw(t, "one"))
		two, ok2 := idOf(text.Draw(t, "domain"), entries.Draw(t, "two"))
		if !ok1 || !ok2 {
			t.Fatal("refused")
		}
		same := one.Domain == two.Domain && fmt.Sprint(one.Entries) == fmt.Sprint(two.Entries) &&
			len(one.Entries) == len(two.Entries)
		if same != (one.Name == two.Name) {
			t.Errorf("%q and %q", one.Name, two.Name)
		}
	})
}

// The newest action of a bucket is sent.
func TestAnOutboxKeepsTheNewest(t *testing.T) {
	o := newOutbox()
	a, b := ID{Name: "a"}, ID{Name: "b"}
	o.Offer([]Action{{Kind: Assign, ID: a}, {Kind: Allow, ID: b}})
	o.Offer([]Action{{Kind: Deny, ID: a}})
	<-o.filled
	if got := o.take(); len(got) != 2 || got[0].Kind != Deny || got[1].Kind != Allow || len(o.take()) != 0 {
		t.Errorf("%+v", got)
	}
}

// A limit of which a request takes nothing limits no bucket. A cost that a report cannot have
// counts as 1. A wrong cost in the bucket's own entries is refused.
func TestCostsOfABucket(t *testing.T) {
	for _, c := range []struct {
		cost, entry string
		verdict     Verdict
		cost1       int64
	}{
		{"3", "", Limited, 3},
		{"0", "", Allowed, 0},
		{"{header: x-cost, max: 9, invalid: deny}", "", Limited, 1},
		{"{header: x-cost, max: 9, invalid: deny}", "7", Limited, 7},
		{"{header: x-cost, max: 9, invalid: deny}", "much", Denied, 0},
		{"{header: x-cost, max: 9, invalid: 2}", "", Limited, 2},
		{"{header: x-cost, max: 9, invalid: 0}", "", Allowed, 0},
	} {
		store := &controlplanetest.Store{Now: func() quota.Instant { return 1 }}
		plane := controlplanetest.New(store, 1, 1, time.Now, func() float64 { return 0 })
		snapshot, set, err := plane.Put(0, []byte(`
version: weir/v1
policies:
  - {name: users, partition: ["header:x-user"], limit: {quota: 100, window: 1h}, cost: `+c.cost+`}
`))
		if err != nil {
			t.Fatal(err)
		}
		view, err := calls.NewView(snapshot, set, &wire.Enforcement{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		l := &ledgers{rules: rules{config: Config{
			View:      func() *calls.View { return view },
			Consumers: func(context.Context) match.Consumers { return nil },
		}}}
		entries := map[string]string{"header:x-user": "a"}
		if c.entry != "" {
			entries["header:x-cost"] = c.entry
		}
		s := l.Stand(t.Context(), ID{Domain: "d", Entries: entries})
		if s.Verdict != c.verdict {
			t.Errorf("%s, %q: %v, want %v", c.cost, c.entry, s.Verdict, c.verdict)
			continue
		}
		by, _ := s.Limits.(limits)
		if c.verdict == Limited && (len(by.items) != 1 || by.items[0].Cost != c.cost1) {
			t.Errorf("%s, %q: %+v", c.cost, c.entry, by.items)
		}
	}
}
