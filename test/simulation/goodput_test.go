package simulation

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/controlplanetest"
	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
)

// oneBucket is one bucket that decides each request at once: what a caller would get of a limit if
// there were one Envoy and nothing were lent. It shares no code with what it judges.
type oneBucket struct {
	algorithm    string
	quota, burst int64
	window       quota.Span
	grain        quota.Span
	offset       quota.Instant
	// owed is what is missing from a full bucket of tokens, in tokens times microseconds of the
	// window, as of last.
	owed int64
	last quota.Instant
	log  []admitted
}

type admitted struct {
	at   quota.Instant
	cost int64
}

func (e *oneBucket) start(at quota.Instant) quota.Instant {
	return at - (at-e.offset)%quota.Instant(e.grain)
}

// counts reports whether what was admitted at an instant counts at now.
func (e *oneBucket) counts(at, now quota.Instant) bool {
	switch e.algorithm {
	case "fixed_window":
		return e.start(at) == e.start(now)
	case "sliding_window":
		return e.start(at)+quota.Instant(e.grain)-1 > now-quota.Instant(e.window)
	}
	return at > now-quota.Instant(e.window)
}

// take decides a request.
func (e *oneBucket) take(now quota.Instant, cost int64) bool {
	if e.algorithm == "token_bucket" {
		if since := int64(now - e.last); since < int64(e.window) {
			e.owed = max(0, e.owed-since*e.quota)
		} else if e.owed > e.quota*int64(e.window) {
			e.owed -= e.quota * int64(e.window)
		} else {
			e.owed = 0
		}
		e.last = now
		if e.owed+cost*int64(e.window) > e.burst*int64(e.window) {
			return false
		}
		e.owed += cost * int64(e.window)
		return true
	}
	used, kept := int64(0), e.log[:0]
	for _, one := range e.log {
		if e.counts(one.at, now) {
			kept = append(kept, one)
			used += one.cost
		}
	}
	e.log = kept
	if used+cost > e.quota {
		return false
	}
	e.log = append(e.log, admitted{now, cost})
	return true
}

// stage is some Envoys before a control plane in virtual time. Nothing fails.
type stage struct {
	t    *testing.T
	r    *rand.Rand
	now  quota.Instant
	due  vtimetest.Queue[quota.Instant]
	ref  *oneBucket
	envs []*filtertest.Process
	// ticked is when each last ticked.
	ticked  []quota.Instant
	offsets []quota.Instant // of their clocks
	store   *controlplanetest.Store
	stream  uint32
	costs   map[uint32]int64
	bucket  keyhash.Key

	calls, requests     int
	sent, passed, ideal int64
}

const simulatedWay quota.Span = 500

// share is which part of the tokens that were due has passed. A cost that does not fit is not cut.
// Leases last 200 ms at least, which is much of a window of a second: a token may count for that
// much longer than a window.
func (st *stage) share(due int64, p pattern) float64 {
	window := float64(st.ref.window)
	if st.ref.window < 10*quota.Second {
		due = int64(float64(due) * window / (window + 2e5))
	}
	return min(1, float64(st.passed+p.dear-1)/float64(max(due, 1)))
}

func newStage(t *testing.T, seed uint64, envoys int, s shape) *stage {
	st := &stage{t: t, r: rand.New(rand.NewPCG(seed, 7)), costs: map[uint32]int64{}, now: 1}
	st.store = &controlplanetest.Store{Now: func() quota.Instant { return 1<<50 + st.now }}
	wall := func() time.Time { return time.UnixMicro(1_700_000_000_000_000 + int64(st.now)) }
	plane := controlplanetest.New(st.store, 1, int64(envoys), wall, st.r.Float64)
	snapshot, set, err := plane.Put(0, []byte(`{"version":"weir/v1","policies":[`+s.document(0)+`]}`))
	if err != nil {
		t.Fatal(err)
	}
	for i := range envoys {
		offset := quota.Instant(1e9 + st.r.Int64N(1e12))
		p := filtertest.Start(filtertest.Options{
			Name: fmt.Sprint("e", i), Boot: st.r.Uint64(), Random: st.r.Uint64(), Workers: 1,
			Now: func() quota.Instant { return offset + st.now },
			Call: func(_ int, body []byte, _ quota.Span, done func(int, []byte)) error {
				st.calls++
				st.after(st.way(), func() {
					status, reply := plane.Lease(0, body)
					st.after(st.way(), func() { done(status, reply) })
				})
				return nil
			},
			Decided: st.decided,
			Gathers: func(worker int) { st.after(quota.Millisecond, func() { st.envs[i].Flush(worker) }) },
		})
		if err := p.Apply(0, snapshot, 1); err != nil {
			t.Fatal(err)
		}
		st.envs, st.ticked, st.offsets = append(st.envs, p), append(st.ticked, 0), append(st.offsets, offset)
	}
	limit := set.Policies[0].Limits[0]
	st.ref = &oneBucket{algorithm: s.algorithm, quota: s.quota, burst: limit.Params.Burst, window: s.window}
	if limit.Algorithm.Windowed() {
		st.learnBucket()
		w := limit.WindowsOf(st.bucket)
		st.ref.grain, st.ref.offset = w.Grain, quota.Instant(w.Offset)
		if s.algorithm == "sliding_log" {
			st.ref.grain = 1
		}
	}
	return st
}

// learnBucket sends a request that costs nothing, to learn the bucket of the caller.
func (st *stage) learnBucket() {
	st.send(0, 0)
	st.run(quota.Second)
	st.calls, st.requests, st.sent = 0, 0, 0
}

func (st *stage) way() quota.Span { return simulatedWay + quota.Span(st.r.Int64N(int64(simulatedWay))) }

func (st *stage) after(d quota.Span, f func()) { st.due.Add(st.now+quota.Instant(d), f) }

func (st *stage) decided(d filtertest.Decision) {
	if len(d.Hits) > 0 {
		st.bucket = d.Hits[0].Bucket
	}
	cost := st.costs[d.Stream]
	delete(st.costs, d.Stream)
	if d.Allowed {
		st.passed += cost
	}
}

// send sends a request to an Envoy.
func (st *stage) send(envoy int, cost int64) {
	st.stream++
	st.requests++
	st.sent += cost
	st.costs[st.stream] = cost
	st.envs[envoy].Request(0, st.stream, "/p0", "x-key", "k", "x-cost", strconv.FormatInt(cost, 10))
}

// run lets time pass. Envoys tick every 10 ms while they have something to do.
func (st *stage) run(span quota.Span) {
	end := st.now + quota.Instant(span)
	for {
		at, tick := end, -1
		for i, p := range st.envs {
			due := st.now + max(p.NextDue(0)-st.offsets[i]-st.now, 0)
			if p.NextDue(0) == quota.Forever {
				continue
			}
			if due = max(due, st.ticked[i]+quota.Instant(10*quota.Millisecond)); due < at {
				at, tick = due, i
			}
		}
		if e, ok := st.due.Next(at); ok {
			st.now = max(st.now, e.At)
			e.Fire()
			continue
		}
		st.now = max(st.now, at)
		if tick < 0 {
			return
		}
		st.ticked[tick] = st.now
		st.envs[tick].Tick(0)
	}
}

// pattern is how a caller sends: bursts of requests a gap apart, with pauses between.
type pattern struct {
	burst      int
	gap, pause quota.Span
	dear       int64
}

func anyPattern(r *rand.Rand, s shape) pattern {
	p := pattern{burst: pick(r, 1, 1, 2, 3, 5, 10, 20, 50, 100),
		gap:  pick[quota.Span](r, 0, 1, 1000, 20_000, 100_000, 700_000),
		dear: pick[int64](r, 1, 1, 1, 2, 5, max(1, s.quota/20), max(1, s.quota/4))}
	load := pick(r, 0.3, 0.8, 0.95, 1.1, 2, 5)
	// The pause gives the load on average.
	each := float64(p.burst) * (1 + float64(p.dear)) / 2
	p.pause = quota.Span(each / (load * s.rate()) * 1e6)
	return p
}

func anyShape(r *rand.Rand) shape {
	s := shape{mode: "leased", failure: `{"then":"local"}`}
	s.algorithm = pick(r, "token_bucket", "token_bucket", "fixed_window", "sliding_window", "sliding_log")
	s.window = pick(r, quota.Second, 10*quota.Second, quota.Minute, quota.Hour, quota.Day, 30*quota.Day)
	s.quota = pick[int64](r, 5, 20, 50, 100, 200, 1000)
	if s.algorithm == "sliding_log" {
		s.quota = min(s.quota, 200)
	}
	return s
}

// With one Envoy any pattern of bursts, costs and pauses gets at least 98 % of what one bucket that
// decides at once would let through.
func TestOneEnvoyGivesAllThatIsThere(t *testing.T) {
	worst := 1.0
	for seed := *first; seed < *first+*seeds/8; seed++ {
		r := rand.New(rand.NewPCG(seed, 1))
		s := anyShape(r)
		p := anyPattern(r, s)
		st := newStage(t, seed, 1, s)
		end := st.now + quota.Instant(3*s.window)
		for n := 0; n < 1500 && st.now < end; {
			for range p.burst {
				n++
				cost := 1 + r.Int64N(p.dear)
				st.send(0, cost)
				if st.ref.take(1<<50+st.now, cost) {
					st.ideal += cost
				}
				st.run(p.gap)
			}
			st.run(quota.Span(r.ExpFloat64() * float64(p.pause)))
		}
		st.run(quota.Second)
		share := st.share(st.ideal, p)
		worst = min(worst, share)
		line := fmt.Sprintf("seed %d: %s %d in %d s, %+v: %d of %d (%.1f %%), %d sent, %d requests, %d calls",
			seed, s.algorithm, s.quota, s.window/quota.Second, p, st.passed, st.ideal, 100*share, st.sent, st.requests,
			st.calls)
		if share < 0.98 {
			t.Error(line)
		} else if testing.Verbose() {
			t.Log(line)
		}
	}
	t.Logf("worst %.2f %%", 100*worst)
}

// With several Envoys a caller who stays under the limit gets at least 95 % of what it asks for,
// whichever Envoy it meets.
func TestSeveralEnvoysServeACallerUnderTheLimit(t *testing.T) {
	worst := 1.0
	for seed := *first; seed < *first+*seeds/8; seed++ {
		r := rand.New(rand.NewPCG(seed, 2))
		s := anyShape(r)
		p := anyPattern(r, s)
		envoys := pick(r, 2, 2, 3, 5, 10)
		stays := pick(r, 0, 0.5, 0.9) // How likely a request meets the Envoy of the one before.
		st := newStage(t, seed, envoys, s)
		end, at := st.now+quota.Instant(3*s.window), 0
		for n := 0; n < 1500 && st.now < end; {
			for range p.burst {
				n++
				cost := 1 + r.Int64N(p.dear)
				if r.Float64() >= stays {
					at = r.IntN(envoys)
				}
				if st.ref.take(1<<50+st.now, cost) {
					st.send(at, cost)
				}
				st.run(p.gap)
			}
			st.run(quota.Span(r.ExpFloat64() * float64(p.pause)))
		}
		st.run(quota.Second)
		share := st.share(st.sent, p)
		worst = min(worst, share)
		line := fmt.Sprintf("seed %d: %d Envoys, %s %d in %d s, %+v, stays %v: %d of %d (%.1f %%), %d calls", seed,
			envoys, s.algorithm, s.quota, s.window/quota.Second, p, stays, st.passed, st.sent, 100*share, st.calls)
		if share < 0.95 {
			t.Error(line)
		} else if testing.Verbose() {
			t.Log(line)
		}
	}
	t.Logf("worst %.2f %%", 100*worst)
}
