package storetest

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/quota/quotatest"
)

// reference holds the ledgers that a store should have.
type reference struct {
	tokens  map[keyhash.Key]lease.Ledger
	windows map[keyhash.Key]lease.WindowLedger
	drafts  twins
}

func newReference() *reference {
	return &reference{
		tokens: map[keyhash.Key]lease.Ledger{}, windows: map[keyhash.Key]lease.WindowLedger{},
		drafts: twins{map[keyhash.Key]lease.Ledger{}, map[keyhash.Key]lease.WindowLedger{}},
	}
}

func (r *reference) answer(now quota.Instant, it leases.Item, look bool) lease.Grant {
	if it.Twin != nil {
		return r.answerTwin(now, it, look)
	}
	var g lease.Grant
	if it.Ask.Windows.Quota == 0 {
		decide := lease.Ledger.Grant
		if look {
			decide = lease.Ledger.Look
		}
		var after lease.Ledger
		after, g = decide(lease.Twins[lease.Ledger]{Main: r.tokens[it.Bucket],
			Draft: r.drafts.tokens[it.Bucket]}.Promoted(it.Ask), now, it.Ask)
		if g.Changed {
			r.tokens[it.Bucket] = after
		}
	} else {
		decide := lease.WindowLedger.Grant
		if look {
			decide = lease.WindowLedger.Look
		}
		var after lease.WindowLedger
		after, g = decide(lease.Twins[lease.WindowLedger]{Main: r.windows[it.Bucket],
			Draft: r.drafts.windows[it.Bucket]}.Promoted(it.Ask), now, it.Ask)
		if g.Changed {
			r.windows[it.Bucket] = after
		}
	}
	g.Changed = false
	return g
}

// grant answers items as a store must: all items of a group or none.
func (r *reference) grant(now quota.Instant, items []leases.Item) (grants []lease.Grant) {
	for len(items) > 0 {
		n := leases.Leading(items)
		group := items[:n]
		items = items[n:]
		all, start := true, len(grants)
		if n > 1 {
			for _, it := range group {
				g := r.answer(now, it, true)
				all = all && !g.Stale && g.NotBefore == 0
				grants = append(grants, g)
			}
		}
		if all {
			grants = grants[:start]
			for _, it := range group {
				grants = append(grants, r.answer(now, it, false))
			}
		}
	}
	return grants
}

// limits draws asks of buckets of all kinds, in groups and alone, with limits that change under
// leases.
type limits struct {
	r       *rand.Rand
	now     quota.Instant
	version uint64
	salt    uint64
	all     [6]lease.Ask // the limit of each bucket
	old     [6]lease.Ask
}

func (l *limits) figures() (a lease.Ask) {
	for {
		algorithm := quota.Algorithm(l.r.IntN(quota.AlgorithmCount))
		length := []quota.Span{quota.Second, quota.Second, 3 * quota.Second, quota.Minute, 7777 * quota.Millisecond,
			quota.Day, quota.MaxWindow}[l.r.IntN(7)]
		q := 1 + l.r.Int64N(1<<l.r.IntN(9))
		if l.r.IntN(4) == 0 {
			q = 1 + l.r.Int64N(1<<l.r.IntN(45))
		}
		var err error
		a.Params, err = quota.NewParams(q, length, q)
		if err != nil {
			continue
		}
		if !algorithm.Windowed() {
			return a
		}
		a.Windows, err = quota.NewWindows(algorithm, q, length, 1+l.r.IntN(quota.MaxSubwindows))
		if err != nil {
			continue
		}
		if algorithm.OnGrid() {
			a.Windows = a.Windows.At(l.r.Uint64())
		}
		return a
	}
}

// own draws a caller's own limit, below the limit of the bucket. Then the counter has a resolution
// of a microsecond.
func (l *limits) own(a lease.Ask) lease.Ask {
	w := a.Windows
	if w.Algorithm.Estimates() && w.Quota > quota.MaxUnits/int64(w.Length) {
		return a
	}
	a.Most = a.Params
	a.Params.Burst = max(a.Params.Burst/(1+l.r.Int64N(9)), 1)
	if w.Quota == 0 {
		a.Params.Num = max(a.Params.Num/(1+l.r.Int64N(9)), 1)
	}
	return a
}

func (l *limits) item(which int) leases.Item {
	if l.r.IntN(25) == 0 {
		l.version++
		l.old[which], l.all[which] = l.all[which], l.figures()
	}
	a := l.all[which]
	a.Version = l.version
	if l.r.IntN(20) == 0 {
		a = l.old[which]
		a.Version = max(1, l.version-1)
	}
	if l.r.IntN(3) == 0 {
		a = l.own(a)
	}
	q := a.Params.Burst
	some := func() int64 { return []int64{0, 1, 1, 2, 3, q / 3, q, q + 1}[l.r.IntN(8)] }
	a.Waiting, a.Cost, a.Keep = min(some(), 1<<20), max(1, some()/2), some()
	a.Deadline = []quota.Span{0, lease.Deadline, lease.Deadline, 33_333}[l.r.IntN(4)]
	a.Nodes = []int64{1, 2, 3, 50}[l.r.IntN(4)]
	a.Optimistic = a.Windows.Quota == 0 && l.r.IntN(6) == 0
	if a.Optimistic && l.r.IntN(2) == 0 {
		a.Used, a.Waiting, a.Keep = 1+some(), 0, 0
	}
	it := leases.Item{Ask: a}
	binary.BigEndian.PutUint64(it.Bucket[8:], l.salt)
	it.Bucket[1] = byte(which)
	return it
}

// batch draws up to six items. The items of a group have different buckets, one request each, and
// the same tag.
func (l *limits) batch() (items []leases.Item) {
	for group := range 1 + l.r.IntN(3) {
		members := l.r.Perm(len(l.all))[:1+l.r.IntN(3)]
		for _, which := range members {
			it := l.item(which)
			if len(members) > 1 {
				it.Ask.Waiting, it.Ask.Used, it.Group = 1, 0, group+1
			}
			items = append(items, it)
		}
	}
	return items
}

// pass advances the clock, often to a time at which something leaves a window.
func (l *limits) pass(ref *reference, stepsBack bool) {
	which := l.r.IntN(len(l.all))
	length := int64(l.all[which].Params.Window())
	step := quota.Instant([]int64{0, 0, 1, 999, 49_999, 50_000, length / 20, length / 7, length,
		1 + l.r.Int64N(length)}[l.r.IntN(10)])
	if it := l.item(which); l.r.IntN(2) == 0 {
		if w := ref.windows[it.Bucket]; len(w.History.Marks) > 0 {
			mark := w.History.Marks[l.r.IntN(len(w.History.Marks))]
			step = max(0, w.Windows.Leaves(mark)-l.now+quota.Instant(l.r.IntN(3)-1))
		}
	}
	switch {
	case stepsBack && l.r.IntN(20) == 0:
		l.now -= quota.Instant(1 + l.r.Int64N(1<<l.r.IntN(24)))
	case l.now+step < Base+1e15:
		l.now += step
	}
}

// testLimitsAndGroups plays long games of all algorithms and of groups against the ledgers.
func testLimitsAndGroups(t *testing.T, s *Instance) {
	const batches = 80
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ctx, calls, together, start := testContext(t), 0, 0, Base
	for n := range uint64(s.some(150)) {
		l := &limits{r: rand.New(rand.NewPCG(seed+n, 1)), now: start, version: 1, salt: 1<<32 + n}
		for i := range l.all {
			l.all[i] = l.figures()
			l.old[i] = l.all[i]
		}
		ref := newReference()
		for range batches {
			l.pass(ref, s.StepsBack)
			s.SetClock(l.now)
			items := l.batch()
			got := must[[]lease.Grant](t)(s.Grant(ctx, items))
			want := ref.grant(l.now, items)
			for i, it := range items {
				calls++
				if it.Group > 0 {
					together++
				}
				got[i].Changed = false
				if got[i] != want[i] {
					t.Fatalf("game %d (seed %d) at %d: item %d of %+v\n got %+v\nwant %+v", n, seed, l.now, i, items,
						got[i], want[i])
				}
			}
		}
		if !s.StepsBack {
			start = l.now
		}
	}
	t.Logf("%d asks, %d in groups", calls, together)
}

// testGoldenWindows runs the vectors of the window algorithms and of the queue with the store.
func testGoldenWindows(t *testing.T, s *Instance) {
	bucket, start := byte(0), Base
	one := func(t *testing.T, at quota.Instant, a lease.Ask) lease.Grant {
		s.SetClock(start + at)
		a.Version, a.Nodes = 1, 1
		return s.one(t, leases.Item{Bucket: keyhash.Key{bucket}, Ask: a})
	}
	fresh := func() {
		bucket++
		if !s.StepsBack {
			start += quota.Instant(quota.Day * 30 * 3) // The store's clock must not go back.
		}
	}
	quotatest.RunWindows(t, func(t *testing.T, w quota.Windows) quotatest.Decide {
		fresh()
		w = w.At(uint64(start)) // The grid of the vectors begins at their start.
		p, latest := params(t, w.Quota, w.Length, w.Quota), quota.Instant(0)
		return func(at quota.Instant, cost int64) (bool, int64, quota.Span) {
			latest = max(latest, at)
			g := one(t, at, lease.Ask{Params: p, Windows: w, Waiting: min(cost, 1), Cost: cost})
			if !s.StepsBack && g.NotBefore > 0 && g.NotBefore != quota.Never {
				g.NotBefore += quota.Span(latest - at) // Its own clock did not step back.
			}
			return g.Waiting == min(cost, 1), g.Level, g.NotBefore
		}
	})
	quotatest.RunQueue(t, func(t *testing.T, p quota.Params) quotatest.Enqueue {
		fresh()
		latest := quota.Instant(0)
		return func(at quota.Instant) (bool, quota.Span, quota.Span) {
			latest = max(latest, at)
			g := one(t, at, lease.Ask{Params: p, Waiting: 1, Cost: 1})
			if !s.StepsBack && g.Delay > 0 {
				g.Delay += quota.Span(latest - at)
			}
			return g.Waiting == 1, g.Delay, g.NotBefore
		}
	})
}

// testGroups asks for several limits of one request. It gets all or none, and a refused request is
// charged nowhere.
func testGroups(t *testing.T, s *Instance) {
	p := params(t, 10, quota.Hour, 10)
	w := must[quota.Windows](t)(quota.NewWindows(quota.SlidingLog, 3, quota.Minute, 0))
	wp := params(t, 3, quota.Minute, 3)
	request := func() []leases.Item {
		return []leases.Item{
			{Bucket: keyhash.Key{64, 1}, Group: 1,
				Ask: lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 1, Nodes: 1}},
			{Bucket: keyhash.Key{64, 2}, Group: 1,
				Ask: lease.Ask{Params: wp, Windows: w, Version: 1, Waiting: 1, Cost: 1, Nodes: 1}},
			{Bucket: keyhash.Key{64, 3}, Group: 1,
				Ask: lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 2, Nodes: 1}},
		}
	}
	for range 3 {
		for i, g := range must[[]lease.Grant](t)(s.Grant(testContext(t), request())) {
			if g.Waiting != 1 || g.NotBefore != 0 {
				t.Fatalf("item %d: %+v", i, g)
			}
		}
	}
	for range 2 {
		got := must[[]lease.Grant](t)(s.Grant(testContext(t), request()))
		want := []lease.Grant{{Level: 7}, {NotBefore: quota.Minute, FullAfter: quota.Minute}, {Level: 4}}
		for i := range want {
			got[i].Changed = false
			if got[i] != want[i] {
				t.Errorf("item %d of a refused request: %+v, want %+v", i, got[i], want[i])
			}
		}
	}
	// The same bucket alone, between groups.
	alone := append(request(), leases.Item{Bucket: keyhash.Key{64, 1},
		Ask: lease.Ask{Params: p, Version: 1, Waiting: 9, Cost: 1, Nodes: 1}})
	if got := must[[]lease.Grant](t)(s.Grant(testContext(t), alone)); got[3].Waiting != 7 {
		t.Errorf("alone: %+v, want the 7 that are left", got[3])
	}
}
