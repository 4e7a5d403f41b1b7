package simulation

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// shape is one policy.
type shape struct {
	algorithm, mode string
	quota, burst    int64 // burst 0: the quota
	window          quota.Span
	failure         string
	// own: callers bring figures of their own, up to the quota.
	own bool
	// kept is the part of the limit, in percent, that is kept for the first class.
	kept int64
}

func (s shape) document(i int) string {
	burst := ""
	if s.burst > 0 {
		burst = fmt.Sprintf(`,"burst":%d`, s.burst)
	}
	figure := strconv.FormatInt(s.quota, 10)
	if s.own {
		figure = fmt.Sprintf(`{"header":"x-rate","trusted":true,"max":%d,"default":%d}`, s.quota, s.quota/3+1)
	}
	reserve := ""
	if s.kept > 0 {
		reserve = fmt.Sprintf(`,"reserve":{"first":"%d%%"}`, s.kept)
	}
	return fmt.Sprintf(`{"name":"p%d","match":{"paths":["/p%d","/all"]},"partition":["header:x-key"],"algorithm":%q,"mode":%q,`+
		`"limit":{"quota":%s,"window":"%dms"%s},"cost":{"header":"x-cost","max":1000},"on_failure":%s%s}`,
		i, i, s.algorithm, s.mode, figure, s.window/quota.Millisecond, burst, s.failure, reserve)
}

// rate returns the tokens a second.
func (s shape) rate() float64 { return float64(s.quota) * 1e6 / float64(s.window) }

// modest is how the keys of callers begin who come now and then, each within its limit.
const modest = "modest"

// caller is a stream of requests for one policy.
type caller struct {
	policy int
	every  float64 // µs between requests
	burst  int     // requests at once; 0: single requests
	keys   int
	dear   int64  // the highest cost
	prefix string // of its keys
	late   bool   // comes when a node's tokens are about to expire, for all of them
	node   int    // -1: any
}

// faults are the faults of one message, as probabilities.
type faults struct{ drop, double, late, wrong, unsent float64 }

// The kinds of faults, by which runs count them.
const (
	dropped = iota
	doubled
	late
	wrong
	unsent
	lostTogether
	interleaved
	hoarded
	crashed
	paused
	partitioned
	restarted
	storeDown
	storeLost
	failedOver
	clockBack
	pushed
	cancelled
	expired
	faultKinds
)

var faultNames = [faultKinds]string{"dropped", "doubled", "late", "wrong", "unsent", "lost together", "interleaved",
	"hoarded", "crashed", "paused",
	"partitioned", "plane restarted", "store down", "store lost", "failed over", "store's clock back", "pushed",
	"cancelled", "used at expiry"}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// newWorld chooses a run by its seed.
func newWorld(seed uint64, p planted) *world {
	w := choose(seed, p)
	w.start()
	return w
}

// newLateWorld chooses a run in which messages are late, and nothing else goes wrong.
func newLateWorld(seed uint64) *world {
	w := choose(seed, nothing)
	w.onlyLate, w.replicas = true, 1
	w.faults = faults{late: pick(w.r, 0.05, 0.2, 0.5)}
	w.start()
	return w
}

func choose(seed uint64, p planted) *world {
	w := &world{seed: seed, r: rand.New(rand.NewPCG(seed, 0x5eed)), planted: p}
	r := w.r
	w.workers, w.replicas, w.interleaved = 1+r.IntN(3), 1+r.IntN(2), r.IntN(2) == 0
	w.way = pick[quota.Span](r, 200, 500, 2000, 10_000)
	w.together = rand.New(rand.NewPCG(seed, 0x70))
	w.takes, w.lines = pick[quota.Span](w.together, 100, 1000, 4000), make([]line, w.replicas)
	w.span = quota.Span(3+r.IntN(4)) * quota.Second
	for i := range 2 + r.IntN(7) {
		w.nodes = append(w.nodes, &node{
			world: w, number: i, drift: pick(r, 0, 0, r.Int64N(2000)-1000, 1000, -1000),
			offset: quota.Instant(1e9 + r.Int64N(1e12)),
		})
	}
	if r.IntN(3) > 0 { // A third of the runs is calm except for the scheduled events.
		some := func() float64 { return pick(r, 0, 0, 0.01, 0.05, 0.2) }
		w.faults = faults{drop: some(), double: some(), late: some(), wrong: some(), unsent: some() / 10}
	}
	if r.IntN(2) == 0 {
		w.hoarding = quota.Span(5_000 + r.Int64N(100_000))
	}
	for i := range 1 + r.IntN(3) {
		s := shape{mode: pick(r, "leased", "leased", "leased", "strict", "optimistic", "local"),
			algorithm: "token_bucket"}
		s.quota = pick[int64](r, 1, 2, 5, 10, 20, 50, 100, 200, 1000)
		s.window = pick(r, quota.Second, 2*quota.Second, 4*quota.Second, 10*quota.Second, quota.Minute, 10*quota.Minute)
		s.failure = pick(r, `{"then":"local"}`, `{"local_for":"1s","then":"deny"}`, `{"local_for":"0s","then":"deny"}`, `{"local_for":"1s","then":"allow"}`)
		if s.mode != "optimistic" && r.IntN(3) == 0 {
			s.algorithm = pick(r, "fixed_window", "sliding_window", "sliding_log")
			s.quota = min(s.quota, 200)
		} else if r.IntN(3) == 0 {
			s.burst = max(1, s.quota/pick[int64](r, 2, 5, 20))
		}
		s.own = s.burst == 0 && s.quota > 1 && r.IntN(4) == 0
		w.policies = append(w.policies, s)
		w.addCallers(i, s)
	}
	return w
}

// addCallers adds the callers of one policy: ordinary callers, at times a caller that overloads,
// and at times an adversary.
func (w *world) addCallers(i int, s shape) {
	r, keys := w.r, pick(w.r, 1, 1, 2, 5)
	// Some come now and then, each within its limit.
	w.callers = append(w.callers, caller{policy: i, every: 2e4, keys: 40, dear: 1, node: -1, prefix: modest})
	dear := pick[int64](r, 1, 1, 1, max(1, s.quota/4), s.quota)
	load := pick(r, 0.3, 0.9, 1.2, 3, 10) * s.rate() * float64(keys)
	w.callers = append(w.callers,
		caller{policy: i, every: 1e6 / min(max(load, 10), 250), keys: keys, dear: dear, node: -1})
	if r.IntN(2) == 0 {
		w.callers = append(w.callers, caller{
			policy: i, every: pick(r, 2e5, 5e5, 2e6), burst: 1 + r.IntN(int(min(2*s.quota, 300))), keys: keys, dear: 1,
			node: pick(r, -1, 0, 1),
		})
	}
	if r.IntN(3) == 0 {
		w.callers = append(w.callers, caller{policy: i, every: 4000, keys: 1, dear: 1, node: pick(r, -1, -1, 0)})
	}
	if s.mode == "leased" && r.IntN(2) == 0 {
		w.callers = append(w.callers,
			caller{policy: i, every: float64(lease.TTL(quota.Params{Num: s.quota, Den: int64(s.window),
				Burst: s.quota})) + 1e4, keys: keys, dear: 1, late: true, node: -1})
	}
	if i > 0 && r.IntN(3) == 0 {
		w.callers = append(w.callers, caller{policy: -1, every: 5e4, keys: keys, dear: 1, node: -1})
	}
}

// call lets a caller come, again and again.
func (w *world) call(c *caller) {
	w.after(quota.Span(w.r.ExpFloat64()*c.every)+1, func() {
		node := c.node
		if node < 0 || node >= len(w.nodes) {
			node = w.r.IntN(len(w.nodes))
		}
		if c.late {
			w.useHeld(w.nodes[node], c)
		} else {
			for range max(c.burst, 1) {
				w.ask(w.nodes[node], w.r.IntN(w.workers), c)
			}
		}
		w.call(c)
	})
}

// ask sends one request of a caller.
func (w *world) ask(n *node, worker int, c *caller) {
	path := "/all"
	if c.policy >= 0 {
		path = "/p" + strconv.Itoa(c.policy)
	}
	w.send(n, worker, path, cmp.Or(c.prefix, "k")+strconv.Itoa(w.r.IntN(c.keys)), 1+w.r.Int64N(c.dear))
}

// request sends one request of any caller.
func (w *world) request(n *node, worker int) {
	c := &w.callers[w.r.IntN(len(w.callers))]
	w.ask(n, worker, c)
}

func (w *world) send(n *node, worker int, path, key string, cost int64, more ...string) {
	if n.paused {
		return
	}
	w.stream++
	w.counts.sent++
	stream := w.stream
	w.offered(stream, path, key, cost)
	w.note(evRequest, n.number, int64(stream))
	headers := append([]string{"x-key", key, "x-cost", strconv.FormatInt(cost, 10)}, more...)
	if rate := w.rate(key); rate != "" {
		headers = append(headers, "x-rate", rate)
	}
	if !n.process.Request(worker, stream, path, headers...) {
		w.counts.unlimited++
	}
	if w.r.IntN(50) == 0 { // Its client may lose patience.
		n.later(n.boots, quota.Span(w.r.Int64N(30_000)), func() {
			w.happen(cancelled)
			n.process.Cancel(worker, stream)
		})
	}
}

// rate returns the figure of a caller: modest callers have the largest, other callers one of
// several.
func (w *world) rate(key string) string {
	if strings.HasPrefix(key, modest) {
		return "1000000"
	}
	return pick(w.r, "", "1", "3", "10", "50", "200", "1000000")
}

// useHeld has requests come for all that a node holds of a bucket, at the last moment that its
// clock allows.
func (w *world) useHeld(n *node, c *caller) {
	if len(w.known) == 0 || n.paused {
		return
	}
	k := w.known[w.r.IntN(len(w.known))]
	tokens, until := n.process.Held(k.bucket)
	last := n.when(until)
	if tokens == 0 || last < w.now {
		return
	}
	n.later(n.boots, quota.Span(last-w.now), func() {
		tokens, _ := n.process.Held(k.bucket)
		w.happen(expired)
		for range min(tokens, 300) {
			for key := range c.keys {
				w.send(n, w.r.IntN(w.workers), "/p"+strconv.Itoa(int(k.limit)), "k"+strconv.Itoa(key), 1)
			}
		}
	})
}

// scheduleFaults lets some kinds of trouble come at random moments.
func (w *world) scheduleFaults() {
	if w.onlyLate {
		return
	}
	kinds := map[int]func(){
		crashed: w.crash, paused: w.pause, partitioned: w.partition, restarted: w.restart, storeDown: w.storeDown,
		storeLost:  w.lose,
		failedOver: w.failOver, clockBack: w.clockBack, pushed: w.change,
	}
	for number := range faultKinds {
		kind := kinds[number]
		if kind == nil {
			continue
		}
		if w.r.IntN(4) > 0 {
			continue
		}
		mean := float64(w.span) / float64(1+w.r.IntN(4))
		var again func()
		again = func() {
			w.note(evFault, 0, int64(number))
			kind()
			w.after(quota.Span(w.r.ExpFloat64()*mean), again)
		}
		w.after(quota.Span(w.r.ExpFloat64()*mean), again)
	}
}

func (w *world) crash() {
	n := w.nodes[w.r.IntN(len(w.nodes))]
	if n.paused {
		return
	}
	w.happen(crashed)
	for bucket, l := range w.laws {
		if w.modes[bucket] == policy.ModeOptimistic {
			l.allow(w.now, w.slack(l.params), 0)
		}
	}
	n.start()
}

// pause stops a node, for longer than its leases last at times. Its clock goes on.
func (w *world) pause() {
	n := w.nodes[w.r.IntN(len(w.nodes))]
	if n.paused || w.pausedAt != 0 {
		return
	}
	w.happen(paused)
	n.paused, w.pausedAt = true, w.now
	w.after(quota.Span(w.r.Int64N(1_500_000)), func() {
		if w.planted == stoppedClock {
			n.stood += w.now - w.pausedAt
		}
		n.paused, w.pausedAt = false, 0
		missed := n.missed
		n.missed = nil
		w.r.Shuffle(len(missed), func(i, j int) { missed[i], missed[j] = missed[j], missed[i] })
		for _, f := range missed {
			f()
		}
		w.press(n)
	})
}

// press has requests come for all that a node holds of any bucket, as when it wakes and its callers
// have queued up.
func (w *world) press(n *node) {
	for _, k := range w.known {
		tokens, _ := n.process.Held(k.bucket)
		for range min(tokens, 300) {
			w.send(n, w.r.IntN(w.workers), "/p"+strconv.Itoa(int(k.limit)), "k"+strconv.Itoa(w.r.IntN(5)), 1)
		}
	}
}

func (w *world) partition() {
	w.happen(partitioned)
	for _, n := range w.nodes {
		n.cut = w.r.IntN(2) == 0
	}
	w.after(quota.Span(w.r.Int64N(2_000_000)), func() {
		for _, n := range w.nodes {
			n.cut = false
		}
	})
}

func (w *world) restart() {
	w.happen(restarted)
	for i := range w.replicas {
		w.plane.Restart(i)
	}
	w.down = true
	w.after(quota.Span(w.r.Int64N(500_000)), func() { w.down = false })
}

func (w *world) storeDown() {
	w.happen(storeDown)
	w.store.Down = true
	w.after(quota.Span(w.r.Int64N(500_000)), func() { w.store.Down = false })
}

// lose restarts the store without its data: buckets start half full, and earn while leased tokens
// may still be used.
func (w *world) lose() {
	w.happen(storeLost)
	w.losing()
	w.store.Lose()
	for bucket, l := range w.laws {
		extra := lease.Fill(l.params.Burst, planeFill)
		if l.own { // Half of the first caller's burst, which may be small.
			extra = l.params.Burst
		}
		if w.modes[bucket] == policy.ModeOptimistic {
			extra += l.always + w.slack(l.params)
		} else { // Tokens earned while leased tokens are not counted come on top.
			extra = min(l.params.Burst, extra+l.params.Earned(outlive(l.params))+1)
		}
		l.allow(w.now, extra, max(outlive(l.params), quota.Second))
		l.lost = true
	}
	for _, l := range w.grids {
		extra := lease.Fill(l.windows.Quota, planeFill)
		if l.own {
			extra = l.windows.Quota
		}
		l.allow(w.lawTime(l), extra)
	}
}

// failOver goes back to a replica that lags: grants that it did not know of can be made again.
func (w *world) failOver() {
	w.happen(failedOver)
	for bucket, tokens := range w.store.Fail(pick(w.r, quota.Millisecond, 10*quota.Millisecond, 100*quota.Millisecond,
		quota.Second)) {
		if l := w.laws[bucket]; l != nil {
			span := max(outlive(l.params), quota.Second)
			// The change is lost too: it earns by the older figures until it is used.
			if p, known := w.store.Figures(bucket); known && l.older(p) {
				tokens, span = tokens+l.params.Burst, max(span, l.params.Window())
			}
			l.allow(w.now, tokens, span)
		}
		if l := w.grids[bucket]; l != nil {
			l.allow(w.lawTime(l), tokens)
		}
	}
}

// lawTime returns the time that a law of windows uses.
func (w *world) lawTime(l *windowLaw) quota.Instant {
	if l.windows.Algorithm == quota.FixedWindow {
		return w.store.Time()
	}
	return w.now
}

// clockBack sets the clock of the store's machine back.
func (w *world) clockBack() {
	w.happen(clockBack)
	w.back += quota.Instant(w.r.Int64N(int64(2 * quota.Second)))
}

// change lowers or raises a limit; nodes learn of it one worker after the other.
func (w *world) change() {
	s := &w.policies[w.r.IntN(len(w.policies))]
	if s.mode == "optimistic" || w.down {
		return
	}
	w.happen(pushed)
	s.quota = max(1, s.quota*pick[int64](w.r, 1, 2, 5, 8, 15, 30)/10)
	if s.algorithm != "token_bucket" {
		s.quota = min(s.quota, 200)
	} else if s.burst = min(s.burst, s.quota); w.r.IntN(2) == 0 {
		s.window = pick(w.r, quota.Second, 2*quota.Second, 10*quota.Second, quota.Minute)
	}
	w.push()
	for _, n := range w.nodes {
		for i := range w.workers {
			n.later(n.boots, quota.Span(w.r.Int64N(300_000)), func() { n.apply(i) })
		}
	}
}
