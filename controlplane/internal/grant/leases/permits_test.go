package leases_test

import (
	"errors"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/grant/regions"
	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	jobs     = "name: jobs, partition: [], limit: {in_flight: 20}, mode: local"
	moreJobs = "name: jobs, partition: [], limit: {in_flight: 30}, mode: local"
)

// putLeased puts a version of which permits of the policy jobs are lent.
func (w *world) putLeased(number uint64, lines ...string) {
	w.t.Helper()
	w.put(number, lines...)
	p, ok := w.sets[number].Policy("jobs")
	if !ok {
		w.t.Fatal("no policy jobs")
	}
	p.Mode = policy.ModeLeased
}

func claim(bucket byte, limit uint32, seq uint64, hold, need, spare int64) wire.LeaseItem {
	return wire.LeaseItem{
		Kind: wire.KindClaim, Bucket: keyhash.Key{bucket}, Limit: limit, Waiting: need,
		Keep: spare, Seq: seq, Hold: hold,
		Lent: hold,
	}
}

func lent(waiting, keep, free int64) wire.LeaseAnswer {
	return wire.LeaseAnswer{State: wire.ItemGranted, Waiting: waiting, Keep: keep, Level: free, For: inflight.TTL}
}

// by asks as a node.
func (w *world) by(node string, version uint64, items ...wire.LeaseItem) []wire.LeaseAnswer {
	w.t.Helper()
	reply, err := w.service().Grant(w.t.Context(),
		wire.LeaseRequest{Node: node, Boot: 3, Version: version, Items: items})
	if err != nil {
		w.t.Fatal(err)
	}
	return reply.Items
}

// Claims are answered beside items that want tokens, by the figures in force, whichever of them the
// node knows.
func TestPermits(t *testing.T) {
	w := newWorld(t)
	w.putLeased(1, jobs, leased)
	w.putLeased(2, leased, moreJobs)
	w.current, w.stored = 1, 1
	check := func(what string, got wire.LeaseAnswer, want wire.LeaseAnswer) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	got := w.by("a", 1, claim(1, 0, 5, 0, 3, 6), item(2, 1, 4, 0))
	check("the first claim", got[0], lent(3, 5, 15)) // Of 17 that are left, a sixth is to spare.
	if got[1].Waiting != 4 {
		t.Errorf("tokens beside it: %+v", got[1])
	}
	check("another node", w.by("b", 1, claim(1, 0, 1, 0, 100, 0))[0], lent(15, 15, 0))
	check("an older claim", w.by("a", 1, claim(1, 0, 4, 9, 0, 0))[0], wire.LeaseAnswer{State: wire.ItemGranted})
	w.current, w.stored = 2, 2
	check("by more", w.by("a", 1, claim(1, 0, 6, 5, 2, 0))[0], lent(2, 7, 8))
	w.current, w.stored = 1, 1
	check("by less again", w.by("a", 2, claim(1, 1, 7, 7, 0, 0))[0], lent(0, 5, 0))
	// Tokens cannot be had of it.
	if got := w.by("a", 1, item(1, 0, 1, 0), item(1, 0, 0, 0)); got[0].State != wire.ItemUnknown ||
		got[1].State != wire.ItemUnknown {
		t.Errorf("tokens of a limit of requests in flight: %+v", got)
	}
}

// A node's requests in flight count also under a limit that is not known any more, or not lent. It
// gets no permits by that.
func TestUnknownClaimsCount(t *testing.T) {
	w := newWorld(t)
	w.putLeased(1, jobs, leased)
	w.put(2, leased)
	w.put(3, jobs, leased)
	w.current, w.stored = 1, 1
	w.by("old", 1, claim(1, 0, 1, 0, 8, 0))
	none := wire.LeaseAnswer{State: wire.ItemUnknown, For: inflight.TTL}
	for _, current := range []uint64{2, 3} {
		w.current, w.stored = current, current
		if got := w.by("old", 1, claim(1, 0, current, 8, 4, 1))[0]; got != none {
			t.Errorf("by version %d: %+v", current, got)
		}
	}
	if got := w.by("old", 3, claim(1, 1, 9, 8, 4, 1))[0]; got != none {
		t.Errorf("permits of a rate: %+v", got)
	}
	w.current, w.stored = 1, 1
	if got := w.by("new", 1, claim(1, 0, 1, 0, 100, 0))[0]; got != lent(12, 12, 0) {
		t.Errorf("beside 8 in flight: %+v", got)
	}
}

// While a draft is rolled out its nodes use its figure, and all nodes share the places.
func TestPermitsInARollout(t *testing.T) {
	w := newWorld(t)
	w.putLeased(1, jobs)
	w.putLeased(2, moreJobs)
	w.current, w.stored, w.draft = 1, 1, 2
	for i, step := range []struct {
		node    string
		version uint64
		want    wire.LeaseAnswer
	}{
		{"main", 1, lent(18, 18, 2)}, {"draft", 2, lent(12, 12, 0)}, {"late", 1, lent(0, 0, 0)},
		{"later", 2, lent(0, 0, 0)},
	} {
		if got := w.by(step.node, step.version, claim(1, 0, 1, 0, 18, 0))[0]; got != step.want {
			t.Errorf("step %d: %+v, want %+v", i, got, step.want)
		}
	}
}

// A region lends its part of the permits, and a part of the store that is away makes claims
// unavailable.
func TestPermitsOfAPart(t *testing.T) {
	w, h := newWorld(t), newHalf()
	w.putLeased(1, jobs)
	w.current = 1
	h.part = regions.Part{Rate: 400, Burst: 500}
	reply, err := w.askIn(h, claim(1, 0, 1, 2, 17, 0))
	if err != nil || reply.Items[0] != lent(8, 10, 0) || h.wanted["jobs"] != 19 {
		t.Errorf("%+v, %v; wanted %v", reply.Items, err, h.wanted)
	}
	w.storeErr = &leases.Partial{Away: []time.Duration{time.Second}, Cause: errors.New("away")}
	config := w.config(time.Now)
	config.Breakers = breaker.NewGroup(time.Now, func() float64 { return 0 }, nil)
	reply, err = leases.New(config).Grant(t.Context(),
		wire.LeaseRequest{Version: 1, Items: []wire.LeaseItem{claim(1, 0, 2, 2, 0, 0)}})
	if err != nil || reply.Items[0] != (wire.LeaseAnswer{State: wire.ItemUnavailable, NotBefore: quota.Second}) {
		t.Errorf("%+v, %v", reply.Items, err)
	}
}

// Requests that wait for a place are measured like requests that wait for tokens.
func TestClaimsAreMeasured(t *testing.T) {
	w := newWorld(t)
	w.putLeased(1, jobs)
	w.current = 1
	var granted, refused, tokens int64
	config := w.config(time.Now)
	config.Meter = func(u leases.Use) {
		granted, refused, tokens = granted+u.Granted, refused+u.Refused, tokens+u.Tokens
	}
	s := leases.New(config)
	for _, it := range []wire.LeaseItem{
		claim(1, 0, 2, 0, 15, 3), claim(1, 0, 3, 15, 9, 0), claim(1, 0, 1, 9, 9, 9), claim(1, 7, 4, 15, 9, 0),
	} {
		if _, err := s.Grant(t.Context(),
			wire.LeaseRequest{Node: "a", Version: 1, Items: []wire.LeaseItem{it}}); err != nil {
			t.Fatal(err)
		}
	}
	if granted != 20 || refused != 4 || tokens != 0 {
		t.Errorf("%d granted, %d refused, %d tokens", granted, refused, tokens)
	}
}
