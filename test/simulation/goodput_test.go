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
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
)

// oneBucket is one bucket that decides each request at once: the limit with one Envoy and without
// leases. It shares no code with the code that it judges.
type oneBucket struct {
	algorithm    string
	quota, burst int64
	window       quota.Span
	grain        quota.Span
	offset       quota.Instant
	// owed is the number of tokens that a full bucket lacks, in tokens times microseconds of the
	// window, as of last.
	owed int64
	last quota.Instant
	log  []admitted
	// lag is how much later tokens come back than they could. passed counts the admitted tokens.
	lag    quota.Span
	passed int64
}

type admitted struct {
	at   quota.Instant
	cost int64
}

func (e *oneBucket) start(at quota.Instant) quota.Instant {
	return at - (at-e.offset)%quota.Instant(e.grain)
}

// counts reports whether a request that was admitted at an instant counts at now.
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
	took := e.algorithm == "token_bucket" && e.takeTokens(now, cost) ||
		e.algorithm != "token_bucket" && e.takeOfWindow(now, cost)
	if took {
		e.passed += cost
	}
	return took
}

func (e *oneBucket) takeTokens(now quota.Instant, cost int64) bool {
	if now > e.last { // Otherwise it was full, and refills later.
		if since := int64(now - e.last); since < int64(e.window) {
			e.owed = max(0, e.owed-since*e.quota)
		} else if e.owed > e.quota*int64(e.window) {
			e.owed -= e.quota * int64(e.window)
		} else {
			e.owed = 0
		}
		e.last = now
	}
	if e.owed+cost*int64(e.window) > e.burst*int64(e.window) {
		return false
	}
	if e.owed == 0 {
		e.last = now + quota.Instant(e.lag)
	}
	e.owed += cost * int64(e.window)
	return true
}

func (e *oneBucket) takeOfWindow(now quota.Instant, cost int64) bool {
	used, kept := int64(0), e.log[:0]
	for _, one := range e.log {
		if e.counts(one.at, now) {
			used += one.cost
		} else if one.at <= now {
			continue
		}
		kept = append(kept, one)
	}
	e.log = kept
	if used+cost > e.quota {
		return false
	}
	at := now + quota.Instant(e.lag)
	e.log = append(e.log, admitted{at, cost})
	if e.algorithm == "fixed_window" && e.start(at) != e.start(now) { // It counts in both.
		e.log = append(e.log, admitted{now, cost})
	}
	return true
}

// lagsPerWindow: tokens come back later than those in a bucket that knows everything at once, by at
// most this part of a window. The delay is the time for which a request's tokens count as leased,
// and a round trip.
const lagsPerWindow = 50

// late returns buckets of the same limit whose tokens come back later and later.
func (e *oneBucket) late() []*oneBucket {
	var all []*oneBucket
	for _, part := range []quota.Span{0, 10, 25, 50, 75, 100} {
		one := *e
		one.lag = e.window * part / 100 / lagsPerWindow
		all = append(all, &one)
	}
	return all
}

// least returns the lowest number of requests that any of some buckets has let through. A burst
// that comes just as tokens come back passes some of the buckets and not the other buckets, and
// from then on their histories differ.
func least(buckets []*oneBucket) int64 {
	n := buckets[0].passed
	for _, one := range buckets {
		n = min(n, one.passed)
	}
	return n
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
	limit   policy.Limit

	calls, requests int
	sent, passed    int64
}

const simulatedWay quota.Span = 500

// share returns the part of the due tokens that has passed. A cost that does not fit is not cut.
func (st *stage) share(due int64, p pattern) float64 {
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
	st.limit = limit
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
	s.window = pick(r, quota.Second, 2*quota.Second, 5*quota.Second, 10*quota.Second, quota.Minute, quota.Hour,
		quota.Day, 30*quota.Day)
	s.quota = pick[int64](r, 5, 20, 50, 100, 200, 1000)
	if s.algorithm == "sliding_log" {
		s.quota = min(s.quota, 200)
	}
	return s
}

// tally counts the games, and the games that were below their due.
type tally struct {
	games, below int
	worst        float64
	passed, due  int64
}

// count adds a game with the tokens that were due. It reports whether the share that passed is
// below least.
func (c *tally) count(st *stage, due int64, p pattern, least float64) (share float64, below bool) {
	share = st.share(due, p)
	c.games++
	c.passed, c.due, c.worst = c.passed+min(st.passed, due), c.due+due, min(c.worst, share)
	if share < least {
		c.below++
	}
	return share, share < least
}

// check fails if more than one game of each five hundred was short, if one of them got less than
// nine tenths, or if all together were short of more than a part.
func (c *tally) check(t *testing.T, part float64) {
	t.Logf("%d games: worst %.2f %%, %d short, all together %.2f %%", c.games, 100*c.worst, c.below,
		100*float64(c.passed)/float64(c.due))
	if c.below > (c.games+499)/500 || c.worst < 0.9 || float64(c.passed) < (1-part)*float64(c.due) {
		t.Error("callers get too little")
	}
}

// lasts reports whether a game goes on: for three windows, or 1500 requests and two short windows.
func (st *stage) lasts(n int) bool {
	w, begin := quota.Instant(st.ref.window), quota.Instant(quota.Second)
	return st.now < begin+3*w && (n < 1500 || n < 30000 && st.now < begin+2*w)
}

// With one Envoy any pattern of bursts, costs and pauses passes at least 98 % of the requests of
// one exact bucket whose tokens come back up to a fiftieth of a window later.
func TestOneEnvoyGivesAllThatIsThere(t *testing.T) {
	all := &tally{worst: 1}
	for seed := *first; seed < *first+*seeds/4; seed++ {
		r := rand.New(rand.NewPCG(seed, 1))
		s := anyShape(r)
		p := anyPattern(r, s)
		st := newStage(t, seed, 1, s)
		late := st.ref.late()
		for n := 0; st.lasts(n); {
			for range p.burst {
				n++
				cost := 1 + r.Int64N(p.dear)
				st.send(0, cost)
				for _, one := range late {
					one.take(1<<50+st.now, cost)
				}
				st.run(p.gap)
			}
			st.run(quota.Span(r.ExpFloat64() * float64(p.pause)))
		}
		st.run(quota.Second)
		due := least(late)
		share, below := all.count(st, due, p, 0.98)
		if below {
			t.Logf("seed %d: %s %d in %d s, %+v: %d of %d (%.1f %%), %d sent, %d requests, %d calls", seed, s.algorithm,
				s.quota, s.window/quota.Second, p, st.passed, due, 100*share, st.sent, st.requests, st.calls)
		}
	}
	all.check(t, 0.002)
}

// longWindow: games draw windows of this length or longer, and windows of 1 and 2 s, of which a
// lease is a fifth or a tenth.
const longWindow = 5 * quota.Second

// With several Envoys a caller who stays under the limit gets at least 95 % of its requests less
// one token, whichever Envoys it meets. With a window of a second or two this holds nearly always,
// and it never gets less than nine tenths.
func TestSeveralEnvoysServeACallerUnderTheLimit(t *testing.T) {
	all := &tally{worst: 1}
	for seed := *first; seed < *first+*seeds/4; seed++ {
		r := rand.New(rand.NewPCG(seed, 2))
		s := anyShape(r)
		p := anyPattern(r, s)
		envoys := pick(r, 2, 2, 3, 5, 10)
		stays := pick(r, 0, 0.5, 0.9) // How likely a request meets the Envoy of the one before.
		st := newStage(t, seed, envoys, s)
		st.ref.lag = s.window / lagsPerWindow
		at := 0
		for n := 0; st.lasts(n); {
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
		share, below := all.count(st, st.sent-1, p, 0.95)
		if below {
			t.Logf("seed %d: %d Envoys, %s %d in %d s, %+v, stays %v: %d of %d (%.1f %%), %d calls", seed, envoys,
				s.algorithm, s.quota, s.window/quota.Second, p, stays, st.passed, st.sent, 100*share, st.calls)
			if s.window >= longWindow {
				t.Error("too little of a limit that is not short")
			}
		}
	}
	all.check(t, 0.005)
}
