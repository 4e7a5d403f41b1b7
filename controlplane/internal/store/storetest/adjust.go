package storetest

import (
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

func testAdjust(t *testing.T, s *Instance) {
	ctx := testContext(t)
	p, err := quota.NewParams(100, quota.Minute, 100)
	if err != nil {
		t.Fatal(err)
	}
	bucket := keyhash.Key{7}
	ask := lease.Ask{Params: p, Version: 1, Nodes: 1, Deadline: lease.Deadline}
	do := func(c lease.Change, level, leased, given int64) {
		t.Helper()
		it := leases.Item{Bucket: bucket, Ask: ask}
		got := must[lease.Holding](t)(s.Adjust(ctx, it, c, audit.Entry{Action: "key.change"}))
		if got.Level != level || got.Leased != leased || got.Given != given || got.Used != 100-level-leased {
			t.Errorf("%+v: %+v, want level %d, leased %d, given %d", c, got, level, leased, given)
		}
	}
	do(lease.Change{}, 100, 0, 0)
	spend, keep := ask, ask
	spend.Waiting, spend.Cost, spend.Deadline = 40, 1, 0
	keep.Keep = 20
	must[[]lease.Grant](t)(s.Grant(ctx, []leases.Item{{Bucket: bucket, Ask: spend}}))
	must[[]lease.Grant](t)(s.Grant(ctx, []leases.Item{{Bucket: bucket, Ask: keep}}))
	do(lease.Change{}, 40, 20, 0)
	do(lease.Change{Give: 15}, 55, 20, 15)
	s.Restart(t)
	do(lease.Change{}, 55, 20, 0)
	do(lease.Change{Reset: true}, 80, 20, 25)
	do(lease.Change{Give: 5}, 80, 20, 0)
	// The answer decides the next ask of a node.
	g := must[[]lease.Grant](t)(s.Grant(ctx, []leases.Item{{Bucket: bucket, Ask: spend}}))
	if g[0].Waiting != 40 || g[0].Level != 40 {
		t.Errorf("%+v", g[0])
	}
	if n := len(must[[]audit.Entry](t)(s.Audit(ctx, "", 10))); n != 3 {
		t.Errorf("%d entries of three changes", n)
	}
	old := ask
	old.Version, old.Params.Burst = 0, 50
	it := leases.Item{Bucket: bucket, Ask: old}
	if got := must[lease.Holding](t)(s.Adjust(ctx, it, lease.Change{Reset: true}, audit.Entry{})); !got.Stale {
		t.Errorf("by an older limit: %+v", got)
	}
}

// During the rollout of a version, a bucket has two ledgers, which are read and changed separately.
// After the promotion, the ledger of the draft becomes the ledger of the bucket.
func testAdjustTwins(t *testing.T, s *Instance) {
	ctx := testContext(t)
	for n, algorithm := range []quota.Algorithm{quota.TokenBucket, quota.SlidingLog} {
		bucket := keyhash.Key{9, byte(n)}
		of := func(units int64, version uint64) lease.Ask {
			p, err := quota.NewParams(units, quota.Day, units)
			if err != nil {
				t.Fatal(err)
			}
			a := lease.Ask{Params: p, Version: version << lease.EpochBits, Nodes: 1, Deadline: lease.Deadline}
			if algorithm.Windowed() {
				if a.Windows, err = quota.NewWindows(algorithm, units, quota.Day, 0); err != nil {
					t.Fatal(err)
				}
			}
			return a
		}
		main, draft := of(100, 1), of(60, 2)
		look := func(what string, it leases.Item, c lease.Change, level, given int64) {
			t.Helper()
			it.Bucket = bucket
			got := must[lease.Holding](t)(s.Adjust(ctx, it, c, audit.Entry{}))
			if got.Level != level || got.Given != given || got.Stale {
				t.Errorf("%v, %s: %+v, want level %d, given %d", algorithm, what, got, level, given)
			}
		}
		its, theirs := leases.Item{Ask: main}, leases.Item{Ask: draft, Twin: &main, Draft: true}
		look("unused", theirs, lease.Change{}, 60, 0)
		spend := leases.Item{Bucket: bucket, Ask: draft, Twin: &main, Draft: true}
		spend.Ask.Waiting, spend.Ask.Cost, spend.Ask.Deadline = 50, 1, 0
		if g := must[[]lease.Grant](t)(s.Grant(ctx, []leases.Item{spend})); g[0].Waiting != 50 {
			t.Fatalf("%+v", g)
		}
		look("the tokens that a draft's node took", theirs, lease.Change{}, 10, 0)
		look("the same for the other nodes", its, lease.Change{}, 50, 0)
		look("given at the draft", theirs, lease.Change{Give: 20}, 30, 20)
		s.Restart(t)
		look("kept", theirs, lease.Change{}, 30, 0)
		look("not given at the other", its, lease.Change{}, 50, 0)
		look("given there", its, lease.Change{Give: 5}, 55, 5)
		look("a reset there", its, lease.Change{Reset: true}, 100, 45)
		look("leaves the draft's", theirs, lease.Change{}, 30, 0)
		look("promoted", leases.Item{Ask: draft}, lease.Change{}, 30, 0)
	}
	if n := len(must[[]audit.Entry](t)(s.Audit(ctx, "", 10))); n != 0 {
		t.Errorf("%d entries of changes without an action", n)
	}
}

// Grants and changes of all kinds of buckets, with limits that change, against the arithmetic.
func testAdjustFollowsTheLedgers(t *testing.T, s *Instance) {
	ctx := testContext(t)
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	l := &limits{r: r, now: Base, version: 1, salt: r.Uint64()}
	for i := range l.all {
		l.all[i] = l.figures()
		l.old[i] = l.all[i]
	}
	want := &reference{tokens: map[keyhash.Key]lease.Ledger{}, windows: map[keyhash.Key]lease.WindowLedger{}}
	for step := range 1500 {
		l.now += quota.Instant(r.Int64N(int64([]quota.Span{1, quota.Millisecond, quota.Second,
			quota.Minute}[r.IntN(4)])))
		s.SetClock(l.now)
		it := l.item(r.IntN(len(l.all)))
		if r.IntN(2) == 0 {
			got := must[[]lease.Grant](t)(s.Grant(ctx, []leases.Item{it}))[0]
			got.Changed = false
			if got != want.grant(l.now, []leases.Item{it})[0] {
				t.Fatalf("seed %d, step %d: a grant differs", seed, step)
			}
			continue
		}
		c := lease.Change{Reset: r.IntN(3) == 0, Give: r.Int64N(20) * r.Int64N(2)}
		looked := leases.Item{Bucket: it.Bucket, Ask: it.Ask}
		got := must[lease.Holding](t)(s.Adjust(ctx, looked, c, audit.Entry{Action: "key.change"}))
		var expected lease.Holding
		changed := c != lease.Change{}
		if it.Ask.Windows.Quota == 0 {
			var after lease.Ledger
			after, expected = want.tokens[it.Bucket].Adjust(l.now, it.Ask, c)
			if changed && !expected.Stale {
				want.tokens[it.Bucket] = after
			}
		} else {
			var after lease.WindowLedger
			after, expected = want.windows[it.Bucket].Adjust(l.now, it.Ask, c)
			if changed && !expected.Stale {
				want.windows[it.Bucket] = after
			}
		}
		if !reflect.DeepEqual(got, expected) {
			t.Fatalf("seed %d, step %d: %+v of %+v gives %+v, want %+v", seed, step, c, it, got, expected)
		}
	}
}

// No token is taken twice and none is lost while tokens are given back and others take tokens. The
// bucket is used less often than the store retries a change, so each change must succeed.
func testAdjustRace(t *testing.T, s *Instance) {
	ctx := testContext(t)
	p, err := quota.NewParams(1000, quota.Day, 1000)
	if err != nil {
		t.Fatal(err)
	}
	bucket := keyhash.Key{9}
	ask := lease.Ask{Params: p, Version: 1, Nodes: 1, Waiting: 1, Cost: 1}
	const users, uses, gifts = 4, 100, 20
	var wait sync.WaitGroup
	for range users {
		wait.Go(func() {
			for range uses {
				if g, err := s.Grant(ctx, []leases.Item{{Bucket: bucket, Ask: ask}}); err != nil || g[0].Waiting != 1 {
					t.Errorf("%+v %v", g, err)
				}
			}
		})
	}
	var given int64
	wait.Go(func() {
		for range gifts {
			held, err := s.Adjust(ctx, leases.Item{Bucket: bucket, Ask: ask}, lease.Change{Give: 3}, audit.Entry{})
			if err != nil {
				t.Error(err)
			}
			given += held.Given
		}
	})
	wait.Wait()
	held := must[lease.Holding](t)(s.Adjust(ctx, leases.Item{Bucket: bucket, Ask: ask}, lease.Change{}, audit.Entry{}))
	if held.Used != users*uses-given {
		t.Errorf("%d used, of which %d were given back: %+v", users*uses, given, held)
	}
}
