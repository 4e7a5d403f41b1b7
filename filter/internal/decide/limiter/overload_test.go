package limiter_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/filter/internal/load/overload"
	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/upstreamtest"
)

// guarded is an Envoy of several workers whose policies have an adaptive limit.
type guarded struct {
	*node
	workers []*guardedWorker
	turn    int
	// late is by how much the ticks of the first worker come late.
	late quota.Span
	// cluster is the upstream of the requests. utilisation is the upstream's report; below 0 it
	// reports nothing.
	cluster     string
	utilisation float64
	values      []upstreamtest.Value
	windows     uint32
	bucket      [5 + 16]byte
	open        map[*entered]bool
}

type guardedWorker struct {
	*limiter.Limiter
	flights *inflight.Book
	guards  *overload.Guards
}

// entered is a request with its worker.
type entered struct {
	worker *guardedWorker
	req    *limiter.Request
	sent   quota.Instant
}

// fourClasses are by a header that is trusted.
const fourClasses = `"identity":{"consumer":[{"header":"x-key"}]},"priorities":[` +
	`{"name":"c0","match":{"headers":[{"name":"x-class","equals":"0","trusted":true}]}},` +
	`{"name":"c1","match":{"headers":[{"name":"x-class","equals":"1"}]}},` +
	`{"name":"c2","match":{"headers":[{"name":"x-class","equals":"2"}]}},{"name":"c3"}]`

const worker = `{"name":"worker","partition":["upstream"],"adaptive":{"min":20,"max":2000},` +
	`"shed_by":["latency","worker","orca"],"mode":"local"}`

func newGuarded(t *testing.T, workers int, classes, policies string) *guarded {
	n := bareNode(t)
	g := &guarded{node: n, cluster: "up", utilisation: -1, open: map[*entered]bool{}}
	for i := range workers {
		w := &guardedWorker{flights: newBook(n.data, uint64(i)+1)}
		w.guards = overload.New(n.data, shareddata.Space{}, w.flights)
		w.Limiter = limiter.New(limiter.Config{
			Store: bucketstore.New(n.data, [4]byte{}, 1024, 0), Flights: w.flights, Guards: w.guards,
		})
		g.workers = append(g.workers, w)
	}
	g.pushWith(1, classes, policies)
	return g
}

func (g *guarded) pushWith(version uint64, classes, policies string) {
	if classes != "" {
		classes += ","
	}
	g.pushDocument(version, `{"version":"weir/v1",`+classes+`"policies":[`+policies+`]}`)
}

// Property implements match.Properties.
func (g *guarded) Property([]byte) []byte { return []byte(g.cluster) }

// ask begins a request at the next worker.
func (g *guarded) ask(class int, caller uint8) (*entered, limiter.Status) {
	w := g.workers[g.turn%len(g.workers)]
	g.turn++
	g.stream++
	e := &entered{worker: w, req: &limiter.Request{Stream: g.stream}, sent: g.now}
	a := match.Attributes{
		Method: []byte("GET"), Path: []byte("/"), Host: []byte("h"), ClientIP: []byte{10, 0, 0, 1}, Properties: g,
		Headers: []match.Header{
			{Name: []byte("x-class"), Value: []byte(strconv.Itoa(class))},
			{Name: []byte("x-key"), Value: []byte(strconv.Itoa(int(caller)))},
		},
	}
	status := w.Begin(e.req, g.rules, &a, g.now)
	if e.req.Lasting {
		g.open[e] = true
	}
	return e, status
}

// Admit implements upstreamtest.Gate.
func (g *guarded) Admit(now quota.Instant, r *upstreamtest.Request, _ int) bool {
	g.now = now + 1000*sec
	e, status := g.ask(r.Class, r.Caller)
	r.Gate = e
	if status == limiter.Refused && e.req.Reason != policy.ReasonShed {
		g.t.Fatalf("refused for %v", e.req.Reason)
	}
	return status == limiter.Allowed
}

// Ended implements upstreamtest.Gate.
func (g *guarded) Ended(now quota.Instant, r *upstreamtest.Request, _ quota.Span) {
	g.now = now + 1000*sec
	g.finish(r.Gate.(*entered))
}

// finish answers a request and ends it.
func (g *guarded) finish(e *entered) {
	delete(g.open, e)
	e.worker.Answered(e.req, quota.Span(g.now-e.sent))
	if g.utilisation >= 0 && e.req.WantsReports() {
		e.worker.Reported(e.req, g.utilisation)
	}
	if len(e.req.Hits) > 0 {
		copy(g.bucket[5:], e.req.Hits[0].Key[:])
	}
	e.worker.End(e.req, limiter.Life{Sent: e.sent, Answered: g.now, Ended: g.now})
}

// Tick implements upstreamtest.Gate.
func (g *guarded) Tick(now quota.Instant, _ int) {
	g.now = now + 1000*sec
	for i, w := range g.workers {
		if i == 0 {
			w.guards.Late(g.late)
		} else {
			w.guards.Late(0)
		}
		w.flights.Tick(g.now)
		w.guards.Tick(g.now)
	}
	if u, ok := g.upstream(); ok && u.Windows != g.windows {
		g.windows = u.Windows
		g.values = append(g.values, upstreamtest.Value{At: now, Limit: u.Limit.Value})
	}
}

// upstream is the shared knowledge of the upstream that was answered last.
func (g *guarded) upstream() (u adaptive.Upstream, ok bool) {
	prefix := shareddata.Space{}.Key(shareddata.Upstream)
	copy(g.bucket[:], prefix[:])
	value, _, found := g.data.Get(g.bucket[:])
	return u, found && u.Decode(value)
}

// atRest ends open requests, and checks that no place is held any more.
func (g *guarded) atRest() {
	g.t.Helper()
	for e := range g.open {
		g.finish(e)
	}
	for _, w := range g.workers {
		for _, group := range w.flights.Groups() {
			if group.InFlight != 0 {
				g.t.Errorf("%d requests of %s are still in flight", group.InFlight, group.Name)
			}
		}
	}
}

// By the filter's own path the limit meets the bars that its arithmetic meets, with several
// workers.
func TestTheLimitFindsTheCapacity(t *testing.T) {
	for i, s := range upstreamtest.Scenes[:2] {
		workers, seed := 2+2*i, uint64(i+1)
		g := newGuarded(t, workers, fourClasses, worker)
		v := upstreamtest.Judge(t, s, seed, g, func() []upstreamtest.Value { return g.values },
			upstreamtest.BestFixed(s, seed))
		for _, problem := range v.Problems() {
			t.Errorf("%s, %d workers, seed %d: %s", s.Name, workers, seed, problem)
		}
	}
}

// A quiet service loses no request, however many workers it has.
func TestAQuietServiceIsNeverShed(t *testing.T) {
	for seed := uint64(1); seed <= 8; seed++ {
		m, g := upstreamtest.New(seed), newGuarded(t, int(seed), fourClasses, worker)
		m.Offered, m.Service, m.Gate = 20+300*m.Rng.Float64(), upstreamtest.Lognormal(20_000, 1.5*m.Rng.Float64()), g
		m.Run(upstreamtest.Quiet...)
		if lost, of := m.Lost(); lost > 0 || of == 0 {
			t.Errorf("seed %d: %d of %d requests were shed, at %.0f a second", seed, lost, of, m.Offered)
		}
		g.atRest()
	}
}

// A new configuration in the middle, with other bounds even, leaves the limit where it is.
func TestANewConfigurationKeepsTheLimit(t *testing.T) {
	m, g := upstreamtest.New(1), newGuarded(t, 2, fourClasses, worker)
	m.End, m.Gate = 10_000_000, g
	m.Run()
	before, _ := g.upstream()
	g.pushWith(2, fourClasses, `{"name":"other","partition":[],"limit":{"quota":1000000,"window":"1s"},"mode":"local"},`+
		`{"name":"worker","partition":["upstream"],"adaptive":{"min":10,"max":1000},"mode":"local"}`)
	admitted := 0
	for e, status := g.ask(0, 0); status == limiter.Allowed; e, status = g.ask(0, 0) {
		admitted++
		copy(g.bucket[5:], e.req.Hits[1].Key[:])
	}
	after, ok := g.upstream()
	if !ok || after.Limit != before.Limit || before.Limit.Value < 40 || admitted == 0 {
		t.Errorf("limit %v before, %v after; %d more went on", before.Limit.Value, after.Limit.Value, admitted)
	}
}

// steps lets the time pass, with a number of requests of each class at every tick, each of which
// lasts a tick, and counts the shed requests.
func (g *guarded) steps(ticks, each int) (shed [4]int) {
	for range ticks {
		var open []*entered
		for class := range shed {
			for caller := range each {
				e, status := g.ask(class, uint8(caller))
				if status == limiter.Allowed {
					open = append(open, e)
				} else {
					shed[class]++
				}
			}
		}
		g.now += 10 * millisecond
		for _, e := range open {
			g.finish(e)
		}
		g.Tick(g.now-1000*sec, 0)
	}
	return shed
}

// A signal to shed more sheds from the last class up and never the first class, and ends gradually.
func TestABusyUpstreamAndALateWorkerShed(t *testing.T) {
	busy, late := newGuarded(t, 2, fourClasses, worker), newGuarded(t, 2, fourClasses, worker)
	for name, c := range map[string]struct {
		g      *guarded
		begin  func()
		end    func()
		shed   bool
		factor int
	}{
		"the upstream reports that it is busy": {busy, func() { busy.utilisation = 1 },
			func() { busy.utilisation = 0.1 }, true, 1},
		"the upstream reports next to nothing": {newGuarded(t, 2, fourClasses, worker), func() {}, func() {}, false, 1},
		"the first worker is late": {late, func() { late.late = quota.Second / 5 },
			func() { late.late = 0 }, true, 2},
	} {
		calm := c.g.steps(100, 2)
		c.begin()
		c.g.steps(300, 2)
		during := c.g.steps(100, 2)
		c.end()
		c.g.steps(1500, 2)
		after := c.g.steps(100, 2)
		want := [4]int{}
		if c.shed { // It is the half that a late worker sees.
			want = [4]int{0, 200 / c.factor, 200 / c.factor, 200 / c.factor}
		}
		if calm != [4]int{} || during != want || after != [4]int{} {
			t.Errorf("%s: %v shed before, %v during, %v after; want %v during", name, calm, during, after, want)
		}
	}
}

// One tick that comes late sheds nothing.
func TestOneLateTick(t *testing.T) {
	g := newGuarded(t, 1, fourClasses, worker)
	for range 50 {
		g.late = quota.Minute
		shed := g.steps(1, 2)
		g.late = 0
		if rest := g.steps(20, 2); shed != [4]int{} || rest != [4]int{} {
			t.Fatalf("%v %v were shed", shed, rest)
		}
	}
}

// In a class the same callers stay in or out.
func TestTheSameCallersAreShed(t *testing.T) {
	g := newGuarded(t, 1, fourClasses, worker)
	g.utilisation = 1
	g.steps(30, 4)
	g.utilisation = 0.85 // As it is, so it stays.
	g.steps(30, 4)
	half := -1
	for class := range 4 {
		in := 0
		for caller := range uint8(100) {
			e, first := g.ask(class, caller)
			other, again := g.ask(class, caller)
			if first != again {
				t.Fatalf("caller %d of class %d: %v, then %v", caller, class, first, again)
			}
			if first == limiter.Allowed {
				in++
				g.finish(e)
				g.finish(other)
			}
		}
		if in > 0 && in < 100 {
			half = class
		}
	}
	if half < 1 {
		t.Error("no class is shed in part")
	}
}

// A request that another limit refuses holds no place and has not come, and one in shadow is never
// refused.
func TestBesideOtherLimits(t *testing.T) {
	g := newGuarded(t, 1, "", `{"name":"worker","partition":[],"adaptive":{"min":2,"max":2},"mode":"local"},`+
		`{"name":"rate","partition":[],"limit":{"quota":3,"window":"1h"},"mode":"local"}`)
	var open []*entered
	for _, want := range []policy.Reason{policy.ReasonShed, policy.ReasonQuota} {
		for range 2 {
			e, status := g.ask(0, 0)
			if status == limiter.Allowed {
				open = append(open, e)
			}
		}
		if e, status := g.ask(0, 0); status != limiter.Refused || e.req.Reason != want || e.req.Lasting {
			t.Errorf("%v for %v, want %v", status, e.req.Reason, want)
		}
		for _, e := range open {
			g.finish(e)
		}
		open = nil
	}
	g.now += 100 * millisecond
	g.Tick(g.now-1000*sec, 0)
	if u, ok := g.upstream(); !ok || u.Load.Arrived[0]+u.Load.Refused > 5 || u.Window.Latency.Total != 3 {
		t.Errorf("%v, %+v, %d answers", ok, u.Load, u.Window.Latency.Total)
	}
	g.atRest()

	g = newGuarded(t, 1, "", `{"name":"worker","partition":[],"adaptive":{"min":2,"max":2},"mode":"local","enforcement":"shadow"}`)
	for range 5 {
		if _, status := g.ask(0, 0); status != limiter.Unlimited {
			t.Errorf("%v in shadow", status)
		}
	}
	if s := g.workers[0].Stats; s.ShadowAllowed != 2 || s.ShadowRefused != 3 {
		t.Errorf("%d allowed, %d refused in shadow", s.ShadowAllowed, s.ShadowRefused)
	}
	g.atRest()
}

// A request that waits, for the control plane or for a place in flight, is not on its way to the
// upstream: it counts for no adaptive limit, so a quiet service sheds no request that comes
// meanwhile. It counts from the moment at which it goes on.
func TestARequestThatWaitsIsNotAtTheUpstream(t *testing.T) {
	const two = `{"name":"worker","partition":[],"adaptive":{"min":2,"max":2},"mode":"local"},`
	for name, other := range map[string]string{
		"tokens": `{"name":"rate","partition":[],"limit":{"quota":90,"window":"1h"},"mode":"strict"}`,
		"places": `{"name":"permits","partition":[],"limit":{"in_flight":90},"mode":"leased"}`,
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, true, two+other)
			var waiting []*limiter.Request
			for range 5 {
				req, status := n.begin()
				if status != limiter.Paused {
					t.Fatalf("%v for %v while others wait, want it to wait too", status, req.Reason)
				}
				waiting = append(waiting, req)
			}
			n.let(100*millisecond, 200)
			var got []limiter.Status
			for _, req := range waiting {
				got = append(got, n.limiter.Resume(req, n.now))
			}
			if want := []limiter.Status{
				limiter.Allowed, limiter.Allowed, limiter.Refused, limiter.Refused, limiter.Refused,
			}; !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			if last := waiting[4]; last.Reason != policy.ReasonShed {
				t.Errorf("refused for %v", last.Reason)
			}
			n.end(waiting[0])
			n.end(waiting[1])
			for _, group := range n.book.Groups() {
				if group.InFlight != 0 {
					t.Errorf("%d requests of %s are still in flight", group.InFlight, group.Name)
				}
			}
		})
	}
}

// A request that a leaky bucket holds back does not count either, until it goes on. Then it goes on
// even where the limit is full meanwhile, and counts.
func TestARequestThatIsHeldBackIsNotAtTheUpstream(t *testing.T) {
	g := newGuarded(t, 1, "", `{"name":"worker","partition":[],"adaptive":{"min":2,"max":2},"mode":"local"},`+
		`{"name":"queue","partition":[],"match":{"headers":[{"name":"x-key","equals":"1"}]},`+
		`"algorithm":"leaky_bucket","max_wait":"10s","limit":{"quota":1,"window":"1s"},"mode":"local"}`)
	first, _ := g.ask(0, 1)
	held, status := g.ask(0, 1)
	if status != limiter.Delayed {
		t.Fatal(status)
	}
	second, status := g.ask(0, 0)
	if status != limiter.Allowed {
		t.Fatalf("%v for %v beside a request that is held back", status, second.req.Reason)
	}
	if _, status := g.ask(0, 0); status != limiter.Refused {
		t.Error("a third is at the upstream")
	}
	g.now += sec
	held.worker.Release(g.now, 1)
	held.worker.NoteSent(held.req, g.now)
	g.finish(first)
	if e, status := g.ask(0, 0); status != limiter.Refused || e.req.Reason != policy.ReasonShed {
		t.Errorf("%v beside a request that went on late: it does not count", status)
	}
	g.finish(held)
	if _, status := g.ask(0, 0); status != limiter.Allowed {
		t.Error("its place is not free again")
	}
	g.atRest()
}

// Each upstream has a limit of its own. A request that goes to none is not limited.
func TestUpstreams(t *testing.T) {
	g := newGuarded(t, 1, "", `{"name":"worker","partition":["upstream"],"adaptive":{"min":2,"max":2},"mode":"local"}`)
	for i := range 300 { // More than are guarded at once.
		g.cluster = "up" + strconv.Itoa(i)
		for range 3 {
			g.ask(0, 0)
		}
	}
	if s := g.workers[0].Stats; s.Refused < 256 || s.Allowed != 900-s.Refused {
		t.Errorf("%d allowed, %d refused", s.Allowed, s.Refused)
	}
	g.cluster = ""
	if _, status := g.ask(0, 0); status != limiter.Unlimited {
		t.Errorf("%v without an upstream", status)
	}
	g.atRest()
}

// The time that a leaky bucket holds a request counts neither as latency nor as time at the
// upstream.
func TestOurOwnDelayDoesNotCount(t *testing.T) {
	g := newGuarded(t, 1, "", `{"name":"worker","partition":[],"adaptive":{"min":20,"max":200},"mode":"local"},`+
		`{"name":"queue","partition":[],"algorithm":"leaky_bucket","max_wait":"10s","limit":{"quota":1,"window":"1s"},"mode":"local"}`)
	first, _ := g.ask(0, 0)
	second, status := g.ask(0, 0)
	if status != limiter.Delayed {
		t.Fatal(status)
	}
	g.finish(first)
	g.now += sec
	second.worker.Release(g.now, 1)
	second.worker.NoteSent(second.req, g.now)
	second.sent = g.now
	g.now += 30 * millisecond
	g.finish(second)
	g.Tick(g.now-1000*sec, 0)
	if u, ok := g.upstream(); !ok || u.Window.Held != 30_000 || u.Window.Latency.Quantile(1) > 40_000 {
		t.Errorf("%v: %d µs at the upstream, latency up to %v µs", ok, u.Window.Held, u.Window.Latency.Quantile(1))
	}
}
