package storetest

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

func params(t *testing.T, q int64, window quota.Span, burst int64) quota.Params {
	t.Helper()
	return must[quota.Params](t)(quota.NewParams(q, window, burst))
}

func (s *Instance) one(t *testing.T, it leases.Item) lease.Grant {
	t.Helper()
	return must[[]lease.Grant](t)(s.Grant(testContext(t), []leases.Item{it}))[0]
}

// game draws asks that are as difficult as possible: all sizes of numbers, limits that change under
// leases, older versions, bounds of leases and refills. It holds the ledgers that the store should
// have.
type game struct {
	r       *rand.Rand
	params  []quota.Params
	version uint64
	now     quota.Instant
	// churn is the mean number of asks between two changes of a limit.
	churn   int
	salt    uint64 // separates the buckets of different games
	ledgers map[keyhash.Key]lease.Ledger
}

func newGame(seed uint64, now quota.Instant) *game {
	g := &game{r: rand.New(rand.NewPCG(seed, 0)), version: 1, now: now, ledgers: map[keyhash.Key]lease.Ledger{}}
	g.churn = []int{2, 30}[g.r.IntN(2)]
	for len(g.params) < 4 {
		g.params = append(g.params, g.figures())
	}
	return g
}

// magnitude draws from 1 to at most 2^bits, small and large numbers alike.
func (g *game) magnitude(bits int) int64 { return 1 + g.r.Int64N(1<<g.r.IntN(bits+1)) }

func (g *game) figures() quota.Params {
	windows := []quota.Span{quota.Second, 7 * quota.Second, quota.Minute, quota.Hour, quota.Day, quota.MaxWindow,
		quota.Span(g.magnitude(44))}
	for {
		p, err := quota.NewParams(g.magnitude(52), windows[g.r.IntN(len(windows))], g.magnitude(52))
		switch g.r.IntN(4) {
		case 0, 1:
			p, err = quota.NewParams(g.magnitude(7), windows[g.r.IntN(4)], g.magnitude(7))
		case 2: // leases of many lengths
			p, err = quota.NewParams(1000, quota.Second, 1000*(4+g.r.Int64N(600)))
		}
		if err == nil {
			return p
		}
	}
}

// neighbour changes p by a tiny amount: rates whose difference disappears in products of doubles,
// and full bursts.
func (g *game) neighbour(p quota.Params) quota.Params {
	switch g.r.IntN(4) {
	case 0:
		p.Num = min(p.Num+1, quota.MaxUnits)
	case 1:
		p.Num = max(p.Num-1, 1)
	case 2:
		p.Burst = quota.MaxUnits / p.Den
	case 3:
		p.Num, p.Den, p.Burst = 1<<43-1, 1<<43+1-g.r.Int64N(3), min(p.Burst, 1<<8)
	}
	return p
}

// own draws a caller's own limit of a bucket: the limit itself, a similar one or any other.
func (g *game) own(p quota.Params) quota.Params {
	switch g.r.IntN(4) {
	case 0:
		return p
	case 1:
		return g.figures()
	}
	return quota.Params{Num: max(p.Num/(1+g.r.Int64N(9)), 1), Den: p.Den, Burst: max(p.Burst/(1+g.r.Int64N(9)), 1)}
}

// pass advances the clock. It moves the clock back only if that is allowed.
func (g *game) pass(stepsBack bool) {
	p := g.params[g.r.IntN(len(g.params))]
	ttl := int64(lease.TTL(p))
	pauses := []int64{0, 0, 0, 1, 999, 49_999, 50_000, 100_000, ttl / 2, ttl, ttl + ttl/2, ttl + ttl/2 + 1,
		g.magnitude(20), g.magnitude(30), int64(p.Window())}
	step := quota.Instant(pauses[g.r.IntN(len(pauses))])
	if l := g.ledgers[g.bucket(g.r.IntN(len(g.params)))]; g.r.IntN(3) == 0 && l.Params.Den != 0 {
		edge := l.Ready(1 + g.r.Int64N(l.Params.Burst))
		if len(l.Pairs) > 0 && g.r.IntN(2) == 0 {
			edge = l.Pairs[g.r.IntN(len(l.Pairs))].End
		}
		step = max(0, edge-g.now+quota.Instant(g.r.IntN(3)-1))
	}
	switch {
	case stepsBack && g.r.IntN(20) == 0:
		g.now -= quota.Instant(g.magnitude(22))
	case g.now+step < Base+1e15: // Thirty years on; later, debts that saturate are no longer exact in doubles.
		g.now += step
	}
}

// bucket is one of the game's own buckets.
func (g *game) bucket(which int) (b keyhash.Key) {
	binary.BigEndian.PutUint64(b[8:], g.salt)
	b[0] = byte(which)
	return b
}

func (g *game) item() leases.Item {
	which := g.r.IntN(len(g.params))
	if g.r.IntN(g.churn) == 0 {
		g.version++
		g.params[which] = g.figures()
		if g.r.IntN(3) == 0 {
			g.params[which] = g.neighbour(g.params[which])
		}
	} else if g.r.IntN(g.churn) == 0 {
		g.version++
		g.params[which] = g.neighbour(g.params[which])
	}
	p := g.params[which]
	version := g.version
	if g.r.IntN(10) == 0 {
		version -= min(version-1, g.r.Uint64N(3))
		p = g.params[g.r.IntN(len(g.params))]
	}
	most := quota.Params{}
	if g.r.IntN(3) == 0 { // A caller with an own limit.
		most = p
		p = g.own(p)
	}
	some := func() int64 {
		return []int64{0, 1, 2, 7, p.Burst / 2, p.Burst, p.Burst + 1, g.magnitude(8), g.magnitude(52)}[g.r.IntN(9)]
	}
	if g.r.IntN(12) == 0 { // The limit is optimistic for once.
		return leases.Item{Bucket: g.bucket(which), Ask: lease.Ask{
			Params: p, Most: most, Version: version, Optimistic: true, Used: max(1, some()),
		}}
	}
	owing := g.r.IntN(3) == 0
	return leases.Item{Bucket: g.bucket(which), Ask: lease.Ask{
		Params: p, Most: most, Version: version, Owing: owing,
		Waiting: min(some(), 1<<20), Cost: max(1, some()), Keep: some(),
		Deadline:   []quota.Span{0, lease.Deadline, lease.Deadline, 1, 33_333}[g.r.IntN(5)],
		Nodes:      []int64{1, 1, 2, 3, 50, 1 << 20}[g.r.IntN(6)],
		Optimistic: !owing && g.r.IntN(12) == 0,
	}}
}

// testDifferential plays games against the store and against lease.Ledger, and compares their
// answers.
func testDifferential(t *testing.T, s *Instance) {
	const batches = 60
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ctx, calls, start := testContext(t), 0, Base
	for n := range uint64(s.some(200)) {
		g := newGame(seed+n, start)
		g.salt = n
		for range batches {
			g.pass(s.StepsBack)
			s.SetClock(g.now)
			items := make([]leases.Item, 1+g.r.IntN(6))
			for i := range items {
				items[i] = g.item()
			}
			got := must[[]lease.Grant](t)(s.Grant(ctx, items))
			for i, it := range items {
				calls++
				before := g.ledgers[it.Bucket]
				after, want := before.Grant(g.now, it.Ask)
				if want.Changed {
					g.ledgers[it.Bucket] = after
				}
				got[i].Changed, want.Changed = false, false
				if got[i] != want {
					t.Fatalf("game %d (seed %d) at %d: ask %+v of ledger %+v\n got %+v\nwant %+v", n, seed, g.now,
						it.Ask, before, got[i], want)
				}
			}
		}
		if !s.StepsBack {
			start = g.now
		}
	}
	t.Logf("%d asks", calls)
}

// testRateChange changes limits while a bucket refills. The result shows the rate that counted for
// the time before the change, also with numbers whose products exceed 2^53.
func testRateChange(t *testing.T, s *Instance) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	now := Base
	for n := range uint64(3000) {
		draw := func() quota.Params { return quota.Params{Num: 1 + r.Int64N(6), Den: 1 + r.Int64N(6), Burst: 1000} }
		if n%2 == 0 {
			draw = func() quota.Params {
				return quota.Params{Num: 1<<40 + r.Int64N(3), Den: 1<<40 + r.Int64N(3), Burst: 1000}
			}
		}
		it := leases.Item{Ask: lease.Ask{Params: draw(), Version: 1, Waiting: 900, Cost: 1, Nodes: 1}}
		binary.BigEndian.PutUint64(it.Bucket[:], n)
		s.SetClock(now)
		s.one(t, it)
		ledger, _ := lease.Ledger{}.Grant(now, it.Ask)
		now += quota.Instant(1 + r.Int64N(700))
		s.SetClock(now)
		it.Ask.Params, it.Ask.Version = draw(), 2
		got := s.one(t, it)
		_, want := ledger.Grant(now, it.Ask)
		got.Changed, want.Changed = false, false
		if got != want {
			t.Fatalf("step %d: from %+v to %+v: got %+v, want %+v", n, ledger.Params, it.Ask.Params, got, want)
		}
	}
}

func testBatch(t *testing.T, s *Instance) {
	p := params(t, 100, quota.Minute, 100)
	items := make([]leases.Item, 64)
	for i := range items {
		items[i] = leases.Item{Bucket: keyhash.Key{byte(i % 40)},
			Ask: lease.Ask{Params: p, Version: 1, Waiting: 60, Cost: 1, Deadline: lease.Deadline, Nodes: 1}}
	}
	for i, g := range must[[]lease.Grant](t)(s.Grant(testContext(t), items)) {
		want := int64(60)
		if i >= 40 { // The second time the same bucket.
			want = 40
		}
		if g.Waiting != want {
			t.Errorf("item %d: %d granted, want %d", i, g.Waiting, want)
		}
	}
}

func testConcurrency(t *testing.T, s *Instance) {
	p := params(t, 10, quota.Minute, 1000)
	ctx := testContext(t)
	// lost are the tokens that calls without an answer may have been granted, which happens on a
	// busy machine.
	var granted, lost atomic.Int64
	var wait sync.WaitGroup
	for worker := range 32 {
		wait.Go(func() {
			for answers := 0; answers < 40; {
				ask := lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 1, Deadline: lease.Deadline,
					Keep: int64(worker % 3), Nodes: 4}
				grants, err := s.Grant(ctx, []leases.Item{{Bucket: keyhash.Key{9}, Ask: ask}})
				switch {
				case err == nil:
					granted.Add(grants[0].Waiting + grants[0].Keep)
					answers++
				case ctx.Err() != nil:
					t.Error(err)
					return
				default:
					lost.Add(ask.Waiting + ask.Keep)
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	wait.Wait()
	if got := granted.Load(); got > p.Burst || got+lost.Load() < p.Burst { // The clock stands still.
		t.Errorf("32 workers were granted %d of %d, and at most %d that they do not know of", got, p.Burst, lost.Load())
	}
}

func testRestart(t *testing.T, s *Instance) {
	p := params(t, 100, quota.Minute, 100)
	it := leases.Item{Bucket: keyhash.Key{3},
		Ask: lease.Ask{Params: p, Version: 1, Waiting: 70, Cost: 1, Deadline: lease.Deadline, Keep: 13, Nodes: 1}}
	before := s.one(t, it)
	if before.Waiting != 70 || before.Keep != 13 {
		t.Fatalf("of a fresh bucket %+v was granted", before)
	}
	s.Restart(t)
	if after := s.one(t, it); after.Waiting != 17 || after.Keep != 0 {
		t.Errorf("after a restart %+v was granted, want the 17 tokens that were left", after)
	}
	other := it
	other.Bucket = keyhash.Key{4}
	if g := s.one(t, other); g.Waiting != 70 {
		t.Errorf("after a restart in good order a new bucket gives %d, want all of its 70", g.Waiting)
	}
}
