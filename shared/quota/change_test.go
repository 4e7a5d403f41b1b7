package quota_test

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/quota/quotatest"
)

// changing is a bucket whose limit is changed: take converts it first, and keeps the result of the
// change, as every owner of a bucket does.
type changing interface {
	// draw draws a limit, and returns it with a function that brings it into force.
	draw(r *rand.Rand) (p quota.Params, change func())
	take(now quota.Instant, n int64) quota.Result
	left(now quota.Instant) int64
	// mayRefuse reports whether n tokens may be refused although the limits allow them, because
	// only the grain of earlier use is known.
	mayRefuse(now quota.Instant, n int64) bool
}

type changingTokens struct {
	p, next quota.Params
	s       quota.State
}

func (b *changingTokens) draw(r *rand.Rand) (quota.Params, func()) {
	windows := []quota.Span{quota.Second, 10 * quota.Second, quota.Minute, quota.Hour}
	for {
		p, err := quota.NewParams(1+r.Int64N(200), windows[r.IntN(4)], 1+r.Int64N(200))
		if err == nil {
			return p, func() { b.next = p }
		}
	}
}

func (b *changingTokens) take(now quota.Instant, n int64) (result quota.Result) {
	if b.p.Den != 0 && b.p != b.next {
		b.s = b.p.Convert(b.s, now, b.next, 0)
	}
	b.p = b.next
	b.s, result = b.p.Take(b.s, now, n)
	return result
}

func (b *changingTokens) left(now quota.Instant) int64 {
	b.take(now, 0)
	return b.p.Remaining(b.s)
}

func (b *changingTokens) mayRefuse(quota.Instant, int64) bool { return false }

type changingWindows struct {
	algorithm quota.Algorithm
	lengths   []quota.Span
	w, next   quota.Windows
	h         quota.History
	uses      []usedLate
}

// usedLate is a number of tokens that count as used until an instant: the end of their grain. Each
// change of the grain moves it by one grain, except the grain of the last use.
type usedLate struct {
	late quota.Instant
	n    int64
}

func (b *changingWindows) draw(r *rand.Rand) (quota.Params, func()) {
	for {
		a, length := b.algorithm, b.lengths[r.IntN(len(b.lengths))]
		w, err := quota.NewWindows(a, 1+r.Int64N(200), length, 1+r.IntN(20))
		if err != nil {
			continue
		}
		burst := w.Quota
		if a.OnGrid() { // Two windows meet in any interval, or an estimate is off by as much.
			burst *= 2
		}
		p, err := quota.NewParams(w.Quota, length, burst)
		if err == nil {
			return p, func() { b.next = w.At(1 << 41) }
		}
	}
}

func (b *changingWindows) take(now quota.Instant, n int64) quota.Result {
	if b.w.Quota != 0 && b.w != b.next {
		for i := range b.uses {
			if b.w.Grain != b.next.Grain {
				b.uses[i].late = min(b.uses[i].late, b.h.Last) + quota.Instant(b.next.Grain-1)
			}
		}
		b.w.Convert(&b.h, now, b.next)
	}
	b.w = b.next
	result := b.w.Take(&b.h, now, n)
	if result.Allowed {
		b.uses = append(b.uses, usedLate{now + quota.Instant(b.w.Grain-1), n})
	}
	return result
}

func (b *changingWindows) mayRefuse(now quota.Instant, n int64) bool {
	if b.algorithm != quota.SlidingWindow {
		return false
	}
	for _, u := range b.uses {
		if u.late+quota.Instant(b.w.Length) > now {
			n += u.n
		}
	}
	return n > b.w.Quota
}

func (b *changingWindows) left(now quota.Instant) int64 {
	b.take(now, 0)
	return b.w.Remaining(&b.h)
}

// However often the limit of a bucket is changed, in any interval no more passes than the largest
// limit in force in it allows. A caller that waits for the window of the new limit, two windows of
// a counter, finds the bucket full. A caller that keeps within the smallest of the limits is never
// refused. In windows, which count in grains, it keeps within a part, and their length does not
// change; each change of the grain makes its use count for up to a grain longer.
func TestChangesMintNothingAndTakeNothing(t *testing.T) {
	for name, a := range map[string]quota.Algorithm{"tokens": quota.TokenBucket, "fixed": quota.FixedWindow,
		"sliding": quota.SlidingWindow, "log": quota.SlidingLog, "counter": quota.SlidingWindowCounter} {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			for game := range uint64(2000) {
				playChanges(t, rand.New(rand.NewPCG(seed, game)), game, a)
			}
		})
	}
}

func playChanges(t *testing.T, r *rand.Rand, game uint64, a quota.Algorithm) {
	t.Helper()
	var b changing = &changingTokens{}
	isModest, part, full := r.IntN(3) == 0, 1.0, func(p quota.Params) int64 { return p.Burst }
	if a.Windowed() {
		w := &changingWindows{algorithm: a, lengths: []quota.Span{quota.Second, 10 * quota.Second, quota.Minute,
			quota.Hour}}
		full = func(quota.Params) int64 { return w.next.Quota }
		if part = 0.25; isModest { // What came in a long grain counts as late as it can have come.
			w.lengths = w.lengths[r.IntN(4):][:1]
		}
		b = w
	}
	limits, changes := make([]quota.Params, 20), make([]func(), 20)
	var law quotatest.Eras
	var modest quotatest.Modest
	for i := range limits {
		limits[i], changes[i] = b.draw(r)
		modest.Change(limits[i], part)
	}
	now, p := quota.Instant(1e15), limits[0]
	for step, changed := 0, 0; step < 200; step++ {
		if step == 0 || r.IntN(8) == 0 && changed < len(limits) {
			p = limits[changed]
			changes[changed]()
			changed++
			law.Change(now, p, 0)
			if !isModest && r.IntN(3) == 0 {
				now += quota.Instant(waitFor(b, p))
				if got := b.left(now); got != full(p) {
					t.Fatalf("game %d: a window after a change to %+v %d are left: %+v", game, p, got, b)
				}
				continue
			}
		}
		now += quota.Instant([]int64{0, 0, 1, 1000, 1 + r.Int64N(2_000_000),
			r.Int64N(int64(p.Window())) / 4}[r.IntN(6)])
		n := 1 + r.Int64N(p.Burst)/int64(1+r.IntN(20))
		if isModest {
			n = min(n, modest.Room(now))
		}
		if n < 1 {
			continue
		}
		if b.take(now, n).Allowed {
			modest.Use(n)
			if over := law.Use(now, n); over > 0 {
				t.Fatalf("game %d: %.3f too many passed at %+v: %+v", game, over, p, b)
			}
		} else if isModest && !b.mayRefuse(now, n) {
			t.Fatalf("game %d: %d of the smallest limit were refused at %+v: %+v", game, n, p, b)
		}
	}
}

// A window that becomes shorter and longer again, any number of times, lets through no more than
// the larger of both limits: use during the short window counts again in the long window. A caller
// that takes all tokens shows this. After it waits for the long window it finds all tokens.
func TestWindowsThatGoBackAndForthMintNothing(t *testing.T) {
	for _, a := range []quota.Algorithm{quota.SlidingLog, quota.SlidingWindow} {
		b := &changingWindows{algorithm: a}
		limit := func(n int64, length quota.Span) (quota.Windows, quota.Params) {
			w, err := quota.NewWindows(a, n, length, 10)
			if err != nil {
				t.Fatal(err)
			}
			p, err := quota.NewParams(n, length, 36)
			if err != nil {
				t.Fatal(err)
			}
			return w, p
		}
		long, longLaw := limit(36, 20*quota.Second)
		short, shortLaw := limit(18, 10*quota.Second)
		var law quotatest.Eras
		now := quota.Instant(1e15)
		use := func() (n int64) {
			for ; b.take(now, 1).Allowed; n++ {
				if over := law.Use(now, 1); over > 0 {
					t.Fatalf("%v: %.2f too many passed: %+v", a, over, b)
				}
			}
			return n
		}
		for round := range 20 {
			b.next = long
			if law.Change(now, longLaw, 0); round%5 == 0 {
				now += quota.Instant(22 * quota.Second)
				if n := use(); n != 36 {
					t.Errorf("%v, round %d: %d pass after a window", a, round, n)
				}
			}
			use()
			now++
			b.next = short
			law.Change(now, shortLaw, 0)
			for range 8 {
				now += 2_750_000
				use()
			}
		}
	}
}

// Marks that are only kept are few, however often and for however long the short window is used.
// When nothing was used for the long window, none is left and it is forgotten.
func TestMarksThatAreOnlyKeptAreFew(t *testing.T) {
	long, err := quota.NewWindows(quota.SlidingLog, 36, 1000*quota.Second, 1)
	if err != nil {
		t.Fatal(err)
	}
	short, err := quota.NewWindows(quota.SlidingLog, 18, quota.Second, 1)
	if err != nil {
		t.Fatal(err)
	}
	b, now := &changingWindows{algorithm: quota.SlidingLog, next: long}, quota.Instant(1e15)
	b.take(now, 36)
	b.next = short
	now += quota.Instant(2 * quota.Second)
	for range 3000 * 18 {
		now += quota.Instant(quota.Second / 17)
		if !b.take(now, 1).Allowed || len(b.h.Marks) > 18+33 || b.h.Reach != long.Reach() {
			t.Fatalf("%d marks: %+v", len(b.h.Marks), b.h)
		}
	}
	now += quota.Instant(long.Reach())
	if b.left(now) != 18 || len(b.h.Marks) != 0 || b.h.Reach != 0 {
		t.Errorf("a long window after the last use: %+v", b.h)
	}
}

// waitFor is the window of the limit that is in force now, as its algorithm has it.
func waitFor(b changing, p quota.Params) quota.Span {
	w, windows := b.(*changingWindows)
	switch {
	case !windows:
		return p.Window()
	case w.next.Algorithm == quota.SlidingWindowCounter:
		return 2 * w.next.Length
	}
	return w.next.Length + w.next.Grain
}

// Where a bucket stands after several changes: each step brings a limit into force at a time, says
// how much is left then, and uses some.
func TestChangesByTheClock(t *testing.T) {
	const min, hour = quota.Minute, quota.Hour
	type step struct {
		at        quota.Span
		quota     int64
		window    quota.Span
		left, use int64
	}
	for name, c := range map[string]struct {
		a     quota.Algorithm
		steps []step
	}{
		"raised again at once": {quota.TokenBucket, []step{
			{0, 100, hour, 100, 100}, {0, 50, hour, 0, 0}, {0, 100, hour, 0, 0}, {0, 150, hour, 50, 0}}},
		"raised again later, by the tokens that the lower limit has earned": {quota.TokenBucket, []step{
			{0, 200, hour, 200, 200}, {0, 50, hour, 0, 0}, {30 * min, 50, hour, 25, 0}, {30 * min, 200, hour, 25, 0}}},
		"raised again after a window, when all has left": {quota.TokenBucket, []step{
			{0, 200, hour, 200, 200}, {0, 50, hour, 0, 0}, {hour, 200, hour, 200, 0}}},
		"raised again after a window in which it was seen": {quota.TokenBucket, []step{
			{0, 200, hour, 200, 200}, {0, 50, hour, 0, 0}, {hour, 50, hour, 50, 0}, {hour, 200, hour, 200, 0}}},
		"changed at an unknown time, when the limit before had earned all": {quota.TokenBucket, []step{
			{0, 200, 2 * hour, 200, 200}, {2 * hour, 50, hour, 50, 0}, {2 * hour, 200, 2 * hour, 200, 0}}},
		"lowered twice": {quota.TokenBucket, []step{
			{0, 200, hour, 200, 200}, {0, 100, hour, 0, 0}, {0, 50, hour, 0, 0}, {hour, 200, hour, 200, 0}}},
		"a lower rate in a shorter window, which is used": {quota.TokenBucket, []step{
			{0, 200, 2 * hour, 200, 200}, {0, 50, hour, 0, 0}, {hour, 50, hour, 50, 50},
			{2 * hour, 50, hour, 50, 0}, {2 * hour, 200, 2 * hour, 50, 0}}},
		"a higher rate pays": {quota.TokenBucket, []step{
			{0, 100, hour, 100, 100}, {0, 10, min, 0, 0}, {min, 10, min, 10, 0}, {5 * min, 100, hour, 50, 0}}},
		"a higher rate, then a lower one": {quota.TokenBucket, []step{
			{0, 100, hour, 100, 100}, {0, 10, min, 0, 0}, {0, 1, 10 * min, 0, 0},
			{5 * min, 1, 10 * min, 0, 0}, {5 * min, 100, hour, 0, 0}}},
		"eased": {quota.TokenBucket, []step{{0, 5, hour, 5, 5}, {0, 5, 5 * quota.Second, 0, 0},
			{5 * quota.Second, 5, 5 * quota.Second, 5, 0}}},
		"a window in between, and another": {quota.SlidingLog, []step{
			{0, 100, hour, 100, 50}, {0, 20, 10 * quota.Second, 0, 0}, {min, 20, 10 * quota.Second, 20, 5},
			{min, 3, quota.Second, 0, 0}, {2 * min, 100, hour, 45, 0}, {hour + 1, 100, hour, 95, 0}}},
		"a short window, forgotten by its own time": {quota.SlidingLog, []step{
			{0, 100, 10 * quota.Second, 100, 50}, {0, 20, quota.Second, 0, 0}, {11 * quota.Second, 100, hour, 100, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			tokens, windows := &changingTokens{}, &changingWindows{}
			var b changing = tokens
			if c.a.Windowed() {
				b = windows
			}
			for i, s := range c.steps {
				if b == changing(windows) {
					windows.next = windowsOf(t, c.a, s.quota, s.window, 1)
				} else {
					tokens.next = must(t, s.quota, s.window, s.quota)
				}
				now := quota.Instant(1e15) + quota.Instant(s.at)
				if got := b.left(now); got != s.left {
					t.Errorf("step %d: %d left, want %d", i, got, s.left)
				}
				if !b.take(now, s.use).Allowed {
					t.Errorf("step %d: %d were refused", i, s.use)
				}
			}
		})
	}
}
