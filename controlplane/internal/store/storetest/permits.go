package storetest

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/inflight/inflighttest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// permit lets the store answer one claim.
func (s *Instance) permit(t *testing.T, bucket keyhash.Key, c inflight.Claim) inflight.Answer {
	t.Helper()
	return answerOf(s.one(t, leases.Item{Bucket: bucket, Kind: wire.KindClaim, Claim: c}))
}

func answerOf(g lease.Grant) inflight.Answer {
	return inflight.Answer{Permits: g.Keep, Free: g.Level, For: g.FullAfter}
}

// testPermits plays the life of a bucket with 10 permits, used by two nodes and a third that
// restarts.
func testPermits(t *testing.T, s *Instance) {
	const ttl = inflight.TTL
	a, b := inflight.Node{ID: "a", Boot: 1}, inflight.Node{ID: "b", Boot: 1}
	again := inflight.Node{ID: "a", Boot: 1<<64 - 1}
	for i, step := range []struct {
		at                     quota.Span
		node                   inflight.Node
		seq                    uint64
		hold, need, spare, max int64
		want, free             int64
		lasts                  quota.Span
	}{
		{0, a, 5, 0, 3, 0, 10, 3, 7, ttl},
		{0, a, 5, 0, 3, 0, 10, 3, 7, ttl},                                         // doubled
		{1, a, 4, 0, 9, 0, 10, 0, 0, 0},                                           // overtaken
		{2, b, 1, 0, 2, 8, 10, 3, 4, ttl},                                         // a quarter to spare
		{3, b, 2, 3, 9, 0, 10, 7, 0, ttl},                                         // all
		{quota.Second, a, 6, 1, 0, 0, 10, 1, 2, ttl},                              // gives two back
		{2 * quota.Second, a, 7, 1, 0, 0, 4, 0, 0, ttl},                           // a smaller limit
		{3 * quota.Second, a, 8, 1, 5, 0, 10, 3, 0, ttl},                          // by the former one
		{ttl + 2, again, 1, 0, 9, 0, 10, 0, 0, ttl},                               // predecessor
		{ttl + 3, again, 2, 0, 9, 0, 10, 7, 0, ttl},                               // b is gone
		{ttl + 4, b, 3, 5, 0, 0, 10, 0, 0, ttl},                                   // b is back: it counts
		{ttl + 5, again, 3, 7, 1, 0, 10, 2, 0, ttl},                               // no room
		{3 * ttl, b, 4, 0, 0, 0, 10, 0, 10, ttl},                                  // others are gone
		{3*ttl + 1, b, 5, 1 << 20, 1 << 20, 1 << 20, 1_000_000, 1e6, 0, ttl},      // largest
		{5 * ttl, a, 1, 0, 1 << 20, 1 << 20, 1_000_000, 1e6, 0, ttl},              // begins anew
		{5*ttl + 1, b, 1 << 53, 3, 0, 0, 1_000_000, 0, 0, ttl},                    // largest
		{5*ttl + 2, b, 1<<53 - 1, 9, 0, 0, 1_000_000, 0, 0, 0},                    // and one less
		{5*ttl + 2, a, 2, 4, 0, 0, 1_000_000, 4, 1_000_000 - 4 - 3, ttl},          // b counts
		{5*ttl + 3, inflight.Node{}, 1, 0, 0, 1 << 40, 17, 2, 8, quota.Span(ttl)}, // no name
	} {
		s.SetClock(Base + quota.Instant(step.at))
		got := s.permit(t, keyhash.Key{5}, inflight.Claim{
			Node: step.node, Seq: step.seq, Hold: step.hold, Need: step.need, Spare: step.spare,
			Limit: step.max, Nodes: 2,
		})
		if want := (inflight.Answer{Permits: step.want, Free: step.free, For: step.lasts}); got != want {
			t.Errorf("step %d: %+v, want %+v", i, got, want)
		}
	}
}

// testPermitsFollowTheLedger plays claims that are as difficult as possible, among other items,
// against the store and the ledger, and compares their answers.
func testPermitsFollowTheLedger(t *testing.T, s *Instance) {
	const batches = 2500
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	now, ctx := Base, testContext(t)
	var ledgers [3]inflight.Ledger
	p := params(t, 1000, quota.Second, 1000)
	few := func() int64 { return []int64{0, 0, 1, 3, 10, 1 << 20}[r.IntN(6)] }
	for batch := range batches {
		now += quota.Instant(r.Int64N(int64([]quota.Span{1, quota.Second, inflight.TTL}[r.IntN(3)])))
		if s.StepsBack && r.IntN(30) == 0 {
			now -= quota.Instant(r.Int64N(int64(3 * inflight.TTL)))
		}
		s.SetClock(now)
		var items []leases.Item
		var want []inflight.Answer
		for range 1 + r.IntN(4) {
			which := r.IntN(len(ledgers))
			c := inflight.Claim{
				Node: inflight.Node{ID: string("abcd"[r.IntN(4)]), Boot: r.Uint64N(2)},
				Seq:  1 + uint64(batch) - min(uint64(batch), r.Uint64N(4)),
				Hold: few(), Lent: few(), Need: few(), Spare: few(), Limit: 1 + few(), Nodes: 1 + r.Int64N(5),
			}
			after, answer := ledgers[which].Claim(now, c)
			ledgers[which], want = after, append(want, answer)
			items = append(items, leases.Item{Bucket: keyhash.Key{6, 0, byte(which)}, Kind: wire.KindClaim, Claim: c})
		}
		ask := lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 1, Nodes: 1}
		tokens := leases.Item{Bucket: keyhash.Key{6, 1}, Ask: ask}
		got := must[[]lease.Grant](t)(s.Grant(ctx, append(items, tokens)))
		for i := range want {
			if answerOf(got[i]) != want[i] {
				t.Fatalf("batch %d at %d: %+v of item %d, %+v: want %+v",
					batch, now, got[i], i, items[i].Claim, want[i])
			}
		}
		s.sameHolders(t, keyhash.Key{6}, ledgers[0], now)
	}
}

// sameHolders compares the store's holders of permits with a ledger's holders.
func (s *Instance) sameHolders(t *testing.T, bucket keyhash.Key, want inflight.Ledger, now quota.Instant) {
	t.Helper()
	got, at, err := s.Holders(testContext(t), bucket)
	if err != nil || at != now {
		t.Fatalf("at %d, not %d: %v", at, now, err)
	}
	byNode := func(a, b inflight.Holding) int {
		return 2*int(a.Node.Boot) + int(a.Node.ID[0])*4 - 2*int(b.Node.Boot) - int(b.Node.ID[0])*4
	}
	expected := slices.DeleteFunc(slices.Clone(want.Holdings), func(h inflight.Holding) bool { return h.Until <= now })
	for _, all := range [][]inflight.Holding{expected, got.Holdings} {
		for i := range all {
			all[i].Want = 0 // A store may forget it late.
		}
	}
	slices.SortFunc(expected, byNode)
	slices.SortFunc(got.Holdings, byNode)
	if !slices.Equal(got.Holdings, expected) {
		t.Fatalf("at %d the holders are %+v, want %+v", now, got.Holdings, expected)
	}
}

// storeControl is a control plane of games that uses the store.
type storeControl struct {
	t      *testing.T
	s      *Instance
	bucket keyhash.Key
}

func (c storeControl) Claim(now quota.Instant, claim inflight.Claim) inflight.Answer {
	c.s.SetClock(now)
	return c.s.permit(c.t, c.bucket, claim)
}

func (c storeControl) Held(now quota.Instant) int64 {
	c.s.SetClock(now)
	l, _, err := c.s.Holders(testContext(c.t), c.bucket)
	if err != nil {
		c.t.Fatal(err)
	}
	return l.Held(now)
}

func (c storeControl) Lose(now quota.Instant) (doubt quota.Span, remembers bool) {
	if c.s.Lose == nil {
		return 0, false
	}
	c.s.SetClock(now)
	c.s.Lose(c.t, now)
	return c.s.Doubt, c.s.Remembers
}

// testGamesOfPermits plays the games of nodes whose messages are lost, doubled and late.
func testGamesOfPermits(t *testing.T, s *Instance) {
	seed, now := rand.Uint64(), Base
	for n := range uint64(30) {
		bucket := keyhash.Key{8}
		binary.BigEndian.PutUint64(bucket[8:], n)
		g := inflighttest.Game{Now: now, Steps: 100}
		if kept, free := g.Play(storeControl{t, s, bucket}, seed, n); !kept || !free {
			t.Fatalf("seed %d: game %d: %d in flight of %d, all is free at rest: %v", seed, n, g.Peak, g.Limit(), free)
		}
		now = g.Now
	}
}

// testPermitRace lets many nodes claim at once. No permit is lent twice, and none is lost.
func testPermitRace(t *testing.T, s *Instance) {
	const limit, nodes = 100, 16
	granted := make([]int64, nodes)
	var wait sync.WaitGroup
	ctx := testContext(t)
	for n := range nodes {
		wait.Go(func() {
			for seq := uint64(1); seq <= 20; seq++ {
				c := inflight.Claim{
					Node: inflight.Node{ID: strconv.Itoa(n), Boot: 1}, Seq: seq, Hold: granted[n], Need: 1,
					Limit: limit, Nodes: nodes,
				}
				for {
					g, err := s.Grant(ctx, []leases.Item{{Bucket: keyhash.Key{9}, Kind: wire.KindClaim, Claim: c}})
					if err == nil {
						granted[n] = g[0].Keep
						break
					}
					if ctx.Err() != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wait.Wait()
	lent := int64(0)
	for _, n := range granted {
		lent += n
	}
	if lent > limit {
		t.Errorf("%d permits of %d are lent", lent, limit)
	}
	s.SetClock(Base + 2*quota.Instant(quota.Second)) // No node lacks permits any more.
	claim := func(n int, need int64) int64 {
		return s.permit(t, keyhash.Key{9}, inflight.Claim{
			Node: inflight.Node{ID: strconv.Itoa(n), Boot: 1}, Seq: 21, Hold: granted[n], Need: need,
			Limit: limit, Nodes: nodes,
		}).Permits
	}
	// Permits that a node was asked to leave to others are free after its next claim.
	others := int64(0)
	for n := 1; n < nodes; n++ {
		others += claim(n, 0)
	}
	if got := claim(0, limit); got != limit-others {
		t.Errorf("the last one has %d permits, and others %d of %d", got, others, limit)
	}
}

// testPermitsOfManyNodes checks that a bucket knows a bounded number of nodes, and drops nodes that
// are gone.
func testPermitsOfManyNodes(t *testing.T, s *Instance) {
	ctx := testContext(t)
	claim := func(first, count int) (granted int64) {
		for from := first; from < first+count; from += 500 {
			var items []leases.Item
			for n := from; n < min(from+500, first+count); n++ {
				items = append(items, leases.Item{Bucket: keyhash.Key{7}, Kind: wire.KindClaim, Claim: inflight.Claim{
					Node: inflight.Node{ID: "envoy", Boot: uint64(n)}, Seq: 1, Need: 1, Limit: 1_000_000, Nodes: 1,
				}})
			}
			for _, g := range must[[]lease.Grant](t)(s.Grant(ctx, items)) {
				granted += g.Keep
			}
		}
		return granted
	}
	if got := claim(1, inflight.MaxNodes+100); got != inflight.MaxNodes {
		t.Errorf("%d nodes got permits, want %d", got, inflight.MaxNodes)
	}
	if got := claim(1, 10); got != 10 {
		t.Errorf("%d of 10 known nodes got permits", got)
	}
	s.SetClock(Base + quota.Instant(inflight.TTL))
	if got := claim(50_000, 600); got != 600 {
		t.Errorf("a lease later %d of 600 nodes got permits", got)
	}
	l, _, err := s.Holders(ctx, keyhash.Key{7})
	if err != nil || len(l.Holdings) != 600 {
		t.Errorf("%d nodes are known: %v", len(l.Holdings), err)
	}
}

// testLostPermits checks that after a loss of state nodes keep the permits that are lent to them,
// and get no more until all lent permits are known again.
func testLostPermits(t *testing.T, s *Instance) {
	if s.Lose == nil {
		return
	}
	claim := func(node string, seq uint64, hold, lent, need int64) inflight.Answer {
		return s.permit(t, keyhash.Key{3}, inflight.Claim{
			Node: inflight.Node{ID: node}, Seq: seq, Hold: hold, Lent: lent, Need: need, Spare: need,
			Limit: 10, Nodes: 1,
		})
	}
	doubt := quota.Instant(s.Doubt)
	if a := claim("a", 1, 0, 0, 4); a.Permits != 7 || a.Free != 3 {
		t.Fatalf("of a deployment that has lost nothing: %+v", a)
	}
	s.SetClock(Base + 1)
	s.Lose(t, Base+1)
	for i, step := range []struct {
		at               quota.Instant
		node             string
		seq              uint64
		hold, lent, need int64
		want, free       int64
	}{
		{2, "b", 1, 0, 0, 3, 0, 0},              // a may hold them all.
		{3, "c", 1, 5, 0, 3, 0, 0},              // It was cut off: its requests in flight count, and no more.
		{4, "a", 2, 7, 7, 1, 5, 0},              // Since they do, a cannot have all that was lent to it.
		{doubt, "c", 2, 1, 0, 0, 0, 0},          //
		{doubt, "a", 3, 7, 7, 1, 7, 0},          //
		{doubt + 1, "b", 2, 0, 0, 3, 2, 0},      // Now all that was lost is known again.
		{doubt + 2, "a", 4, 2, 2, 0, 2, 10 - 5}, //
		{doubt + 1<<20, "b", 3, 2, 2, 1, 4, 3},  // One more that it needs, and one to spare.
	} {
		s.SetClock(Base + step.at)
		got := claim(step.node, step.seq, step.hold, step.lent, step.need)
		if want := (inflight.Answer{Permits: step.want, Free: step.free, For: inflight.TTL}); got != want {
			t.Errorf("step %d: %+v, want %+v", i, got, want)
		}
	}
}

// testPermitsAreKept checks that an orderly restart changes nothing.
func testPermitsAreKept(t *testing.T, s *Instance) {
	claim := func(node string, seq uint64) inflight.Answer {
		return s.permit(t, keyhash.Key{3}, inflight.Claim{
			Node: inflight.Node{ID: node, Boot: 1 << 63}, Seq: seq, Need: 7, Limit: 10, Nodes: 1,
		})
	}
	if a := claim("a", 2); a.Permits != 7 {
		t.Fatalf("%+v", a)
	}
	s.Restart(t)
	if a := claim("a", 1); a.For != 0 {
		t.Errorf("after a restart an older claim counts: %+v", a)
	}
	if a := claim("b", 1); a.Permits != 3 || a.For != inflight.TTL {
		t.Errorf("after a restart %+v, want the other 3", a)
	}
}
