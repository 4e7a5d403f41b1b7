package simulation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/controlplanetest"
	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
	"github.com/weir-proxy/weir/shared/wire"
)

// world is one run.
type world struct {
	seed uint64
	r    *rand.Rand
	now  quota.Instant
	due  vtimetest.Queue[quota.Instant]

	// The choices of the seed.
	workers, replicas int
	interleaved       bool
	way               quota.Span // the shortest time of a message
	takes             quota.Span // how long a call to the store takes
	faults            faults
	hoarding          quota.Span // between two asks of the hoarder, 0 for none
	span              quota.Span
	policies          []shape
	callers           []caller
	planted           planted
	onlyLate          bool
	// doors are replicas that answer callers of other protocols.
	doors int
	// watch, if not nil, sees each decision.
	watch func(filtertest.Decision)

	nodes    []*node
	store    *controlplanetest.Store
	plane    *controlplanetest.ControlPlane
	sets     []*policy.Set
	snapshot []byte
	back     quota.Instant // by how much the store's machine is behind
	down     bool
	lines    []line // of each replica
	together *rand.Rand
	pausedAt quota.Instant
	nested   bool
	hoardSeq uint64
	stream   uint32

	laws  map[keyhash.Key]*law
	grids map[keyhash.Key]*windowLaw
	// both has the laws of the use of central buckets and of nodes' shares of them together, in
	// runs with only late messages.
	both map[keyhash.Key]*law
	// judgedShares are the requests by shares that were held against these, mostOfBoth the greatest
	// part of a bound that was reached.
	judgedShares int
	mostOfBoth   float64
	modes        map[keyhash.Key]policy.Mode
	known        []knownBucket
	counts       counts
	dues         dues
	happened     [faultKinds]int
	trace        [80]entry
	traced       int
	hash         uint64
	problem      string
}

type knownBucket struct {
	bucket keyhash.Key
	limit  uint32
}

// counts counts the outcomes for callers.
type counts struct {
	sent, refused, mixed, unlimited int
	usedUp                          int
	by                              [filtertest.Open + 1]int
}

func (w *world) after(d quota.Span, f func()) {
	w.due.Add(w.now+quota.Instant(max(d, 0)), f)
}

func (w *world) chance(p float64) bool { return p > 0 && w.r.Float64() < p }

// entry is one line of the trace.
type entry struct {
	at   quota.Instant
	what string
	node int
	n    int64
}

// The events of the trace.
const (
	evRequest = "request"
	evAnswer  = "call answered"
	evTimeout = "call timed out"
	evServed  = "plane answers"
	evAllowed = "allowed"
	evRefused = "refused"
	evFault   = "fault"
	evHoarded = "hoarder uses"
	evPush    = "push"
)

func (w *world) note(what string, node int, n int64) {
	w.trace[w.traced%len(w.trace)] = entry{w.now, what, node, n}
	w.traced++
	event := uint64(len(what))
	for i := range len(what) {
		event = (event ^ uint64(what[i])) * 1099511628211
	}
	for _, v := range [...]uint64{event, uint64(w.now), uint64(node), uint64(n)} {
		w.hash = (w.hash ^ v) * 1099511628211
		w.hash ^= w.hash >> 29
	}
}

// fail ends the run with the first thing that was wrong.
func (w *world) fail(format string, args ...any) {
	if w.problem == "" {
		w.problem = fmt.Sprintf("at %.6f s: ", float64(w.now)/1e6) + fmt.Sprintf(format, args...)
	}
}

// report returns the problem with the events before it.
func (w *world) report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %s\n%d nodes with %d workers, %d replicas, %+v\n", w.seed, w.problem, len(w.nodes),
		w.workers, w.replicas, w.faults)
	for _, p := range w.policies {
		fmt.Fprintf(&b, "policy %+v\n", p)
	}
	for i := max(0, w.traced-len(w.trace)); i < w.traced; i++ {
		e := w.trace[i%len(w.trace)]
		if e.what == evFault {
			e.what = evFault + ": " + faultNames[e.n]
		}
		fmt.Fprintf(&b, "%12.6f  node %d  %s %d\n", float64(e.at)/1e6, e.node, e.what, e.n)
	}
	return b.String()
}

// wall returns the clock of the control plane's machines.
func (w *world) wall() time.Time { return time.UnixMicro(1_700_000_000_000_000 + int64(w.now)) }

// run lets the world pass.
func (w *world) run() {
	end := w.now + quota.Instant(w.span)
	for w.problem == "" && w.step(end-1) {
	}
	w.settle()
}

// step runs the next event. It returns false if there is none up to an instant.
func (w *world) step(until quota.Instant) bool {
	e, ok := w.due.Next(until)
	if ok {
		w.now = e.At
		e.Fire()
	}
	return ok
}

// start makes the fleet.
func (w *world) start() {
	w.store = &controlplanetest.Store{Now: func() quota.Instant { return 1<<50 + w.now - w.back }, Asked: w.asked}
	w.dues = dues{
		accounts: map[accountKey]*account{}, offers: map[uint32]offer{}, names: map[keyhash.Key]accountKey{},
		modes: map[string]int{}, denied: map[string]int{},
	}
	w.plant()
	w.plane = controlplanetest.New(w.store, w.replicas, w.sharing(), w.wall, w.r.Float64)
	w.both = map[keyhash.Key]*law{}
	w.laws, w.grids, w.modes = map[keyhash.Key]*law{}, map[keyhash.Key]*windowLaw{}, map[keyhash.Key]policy.Mode{}
	w.push()
	for _, n := range w.nodes {
		n.start()
	}
	for i := range w.callers {
		w.call(&w.callers[i])
	}
	if w.hoarding > 0 {
		w.hoard(w.nodes[0])
	}
	w.scheduleFaults()
	var sweep func()
	sweep = func() { w.store.Sweep(); w.after(quota.Second, sweep) }
	sweep()
}

// push makes the policies as they are now the next version.
func (w *world) push() {
	w.agree()
	lines := make([]string, len(w.policies))
	for i, p := range w.policies {
		if w.planted == emptyShares {
			p.failure = `[{"share":"forever","start":"empty"}]`
		}
		lines[i] = p.document(i)
	}
	snapshot, set, err := w.plane.Put(w.r.IntN(w.replicas), []byte(w.document(lines)))
	if err != nil {
		w.fail("the policies are refused: %v", err)
		return
	}
	w.snapshot, w.sets = snapshot, append(w.sets, set)
	w.note(evPush, 0, int64(len(w.sets)))
}

// limitOf returns a limit by its number in a version.
func (w *world) limitOf(version uint64, number uint32) (policy.Limit, bool) {
	if version == 0 || version > uint64(len(w.sets)) {
		return policy.Limit{}, false
	}
	for _, p := range w.sets[version-1].Policies {
		if int(number) < len(p.Limits) {
			return p.Limits[number], true
		}
		number -= uint32(len(p.Limits))
	}
	return policy.Limit{}, false
}

// asked follows the figures by which the control plane grants: a law changes with its ledger.
func (w *world) asked(bucket keyhash.Key, ask lease.Ask) {
	if ask.Windows.Quota != 0 {
		if l := w.grids[bucket]; l == nil {
			w.grids[bucket] = &windowLaw{windows: ask.Windows, own: ask.Most.Den > 0}
		} else if l.windows != ask.Windows {
			l.change(w.lawTime(l), ask.Windows)
		}
		return
	}
	most, own := ask.Params, ask.Most.Den > 0
	if own {
		most = ask.Most
	}
	if ask.Optimistic {
		if w.laws[bucket] == nil {
			w.laws[bucket], w.modes[bucket] = w.optimisticLaw(most, own), policy.ModeOptimistic
		}
		return
	}
	l := w.laws[bucket]
	if l == nil {
		l = &law{params: most, last: w.now, own: own}
		w.laws[bucket] = l
	} else if l.params != most {
		if l.lost { // It has earned by the new figures since they are in force, not since this first use of them.
			l.allow(w.now, l.params.Burst, quota.Second)
		}
		l.change(w.now, most, outlive(l.params))
	}
	l.lost = false
}

// outlive returns how long the leased tokens of a bucket may be used.
func outlive(p quota.Params) quota.Span { return max(lease.TTL(p), lease.Deadline) }

// decided holds a decision against the laws.
func (w *world) decided(n *node, d filtertest.Decision) {
	w.judge(n, d)
	if w.watch != nil {
		w.watch(d)
	}
	if !d.Allowed {
		w.counts.refused++
		w.note(evRefused, n.number, int64(d.Stream))
		for _, h := range d.Hits {
			w.raiseOwn(n, h)
		}
		w.follow(n, d)
		return
	}
	w.note(evAllowed, n.number, int64(d.Stream))
	if d.Mixed {
		w.follow(n, d)
	}
	for _, h := range d.Hits {
		switch {
		case d.Mixed && w.policies[h.Policy].mode == "local": // These have one source, and it is certain.
			h.Source = filtertest.Local
		case d.Mixed:
			w.counts.mixed++
			continue
		}
		w.counts.by[h.Source]++
		if h.Cost > 0 {
			w.use(n, h)
			w.useBoth(h)
		}
	}
}

func (w *world) use(n *node, h filtertest.Hit) {
	limit, ok := w.limitOf(h.Generation, h.Limit)
	if !ok {
		w.fail("a decision by limit %d of version %d, which is not there", h.Limit, h.Generation)
		return
	}
	switch h.Source {
	case filtertest.Local, filtertest.Share:
		w.useOwn(n, h, limit)
	case filtertest.Optimistic:
		l := w.laws[h.Bucket]
		if l == nil {
			l = w.optimisticLaw(limit.Params, limit.Own > 0)
			w.laws[h.Bucket], w.modes[h.Bucket] = l, policy.ModeOptimistic
		}
		if !l.use(w.now, h.Cost) {
			w.fail("an optimistic bucket: %d units of debt, %+v, %d always", l.debt, l.params, l.always)
		}
	case filtertest.Central:
		w.useCentral(h.Bucket, h.Limit, h.Cost)
	}
}

// useBoth notes a use of a central token bucket, or of a node's share of it. All nodes together use
// the tokens that the bucket grants, and tokens that are not charged yet. The tokens of a late call
// may be used when their lease has ended, and clocks go wrong by a thousandth.
func (w *world) useBoth(h filtertest.Hit) {
	limit, ok := w.limitOf(h.Generation, h.Limit)
	central := h.Source == filtertest.Central || h.Source == filtertest.Share
	if !ok || !w.onlyLate || !central || limit.Algorithm.Windowed() || w.modes[h.Bucket] == policy.ModeOptimistic {
		return
	}
	if w.outage() { // It has another bound. Intervals that begin after it are held against this one again.
		clear(w.both)
		return
	}
	l, p := w.both[h.Bucket], limit.Params
	if l == nil {
		l = &law{params: quota.Params{Num: p.Num * 1001, Den: p.Den * 1000, Burst: p.Burst}, last: w.now}
		w.both[h.Bucket] = l
	}
	l.always = p.Earned(2*lease.Deadline) + 1
	for _, n := range w.nodes {
		l.always += n.process.Owed(h.Bucket)
	}
	if h.Source == filtertest.Share {
		w.judgedShares++
	}
	ok = l.use(w.now, h.Cost)
	w.mostOfBoth = max(w.mostOfBoth, l.share)
	if !ok {
		w.fail("a central bucket and its shares: %d units of debt, %+v, %d of them not charged", l.debt, l.params,
			l.always)
	}
}

// outage reports whether some worker leaves the control plane alone.
func (w *world) outage() bool {
	for _, n := range w.nodes {
		for i := range w.workers {
			if n.process.Away(i) {
				return true
			}
		}
	}
	return false
}

// optimisticLaw returns the law of a bucket that nodes decide on alone. Their clocks may run fast
// by a thousandth, and they compute the earned tokens.
func (w *world) optimisticLaw(p quota.Params, own bool) *law {
	slack := w.slack(p)
	return &law{own: own, params: quota.Params{Num: p.Num * 1001, Den: p.Den * 1000, Burst: p.Burst},
		always: (w.sharing() - 1) * slack, last: w.now}
}

// sharing returns the number of nodes and doors that share the buckets.
func (w *world) sharing() int64 { return int64(len(w.nodes) + w.doors) }

func (w *world) slack(p quota.Params) int64 {
	return max(lease.Slack(p, w.sharing()), lease.Slack(p, 64))
}

func (w *world) useCentral(bucket keyhash.Key, limit uint32, cost int64) {
	if _, met := w.modes[bucket]; !met {
		w.modes[bucket] = policy.ModeLeased
		w.known = append(w.known, knownBucket{bucket, limit})
	}
	if l := w.laws[bucket]; l != nil {
		if !l.use(w.now, cost) {
			w.fail("a central bucket: %d units of debt, %+v, %v", l.debt, l.params, l.graces)
		}
		return
	}
	l := w.grids[bucket]
	if l == nil {
		w.fail("a token of a bucket that the control plane never granted of")
		return
	}
	if !l.use(w.lawTime(l), cost) {
		w.fail("a central bucket of windows: %+v %v", l.windows, l.log)
	}
}

// useOwn notes a use of a node's own bucket, by its own clock.
func (w *world) useOwn(n *node, h filtertest.Hit, limit policy.Limit) {
	now, key := n.clock(), lawKey{h.Bucket, h.Source}
	if limit.Algorithm.Windowed() && h.Source == filtertest.Local {
		l := n.grids[h.Bucket]
		if l == nil {
			l = &windowLaw{windows: limit.WindowsOf(h.Bucket), generation: h.Generation}
			n.grids[h.Bucket] = l
		}
		if h.Generation > l.generation {
			l.follow(now, h.Generation, limit.WindowsOf(h.Bucket))
		}
		if !l.use(now, h.Cost) {
			w.fail("node %d's own bucket of windows: %+v %v", n.number, l.windows, l.log)
		}
		return
	}
	p := w.own(n, h.Source, limit)
	l := n.locals[key]
	if l == nil {
		l = &law{params: p, last: now, generation: h.Generation}
		n.locals[key] = l
	}
	if h.Generation >= l.generation || l.used == 0 && !p.SlowerThan(l.params) {
		l.follow(now, h.Generation, p)
	}
	if !l.use(now, h.Cost) {
		w.fail("node %d's own bucket, source %d: %d units of debt, %+v", n.number, h.Source, l.debt, l.params)
	}
}

// raiseOwn notes that a node has refused a request. The refusal may have brought the node's own
// bucket figures of a newer policy set, and a worker with an older policy set counts in them from
// then on. The law follows only to figures that allow more, since it does not know.
func (w *world) raiseOwn(n *node, h filtertest.Hit) {
	limit, ok := w.limitOf(h.Generation, h.Limit)
	if !ok {
		return
	}
	if l := n.grids[h.Bucket]; l != nil && h.Source == filtertest.Local {
		more := l.windows
		more.Quota = max(more.Quota, limit.WindowsOf(h.Bucket).Quota)
		if h.Generation > l.generation && more == limit.WindowsOf(h.Bucket) {
			l.follow(n.clock(), h.Generation, more)
		}
		return
	}
	l, p := n.locals[lawKey{h.Bucket, h.Source}], w.own(n, h.Source, limit)
	if l != nil && h.Generation > l.generation && p.Burst >= l.params.Burst && !p.SlowerThan(l.params) {
		l.follow(n.clock(), h.Generation, p)
	}
}

// own returns the figures of a node's own bucket.
func (w *world) own(n *node, source filtertest.Source, limit policy.Limit) quota.Params {
	switch {
	case source != filtertest.Share:
		return limit.Params
	case n.heard:
		return lease.Share(limit.Params, w.sharing())
	}
	return lease.Share(limit.Params, 1)
}

// follow updates the laws of a node's own buckets after a request that was refused, or whose charge
// in each of several buckets is unknown: the bucket uses the newer figures since then, and a new
// share is kept even if it refuses.
func (w *world) follow(n *node, d filtertest.Decision) {
	for _, h := range d.Hits {
		limit, ok := w.limitOf(h.Generation, h.Limit)
		if !ok {
			return
		}
		if w.policies[h.Policy].mode != "local" {
			key, p := lawKey{h.Bucket, filtertest.Share}, w.own(n, filtertest.Share, limit)
			if l := n.locals[key]; l == nil || l.used == 0 && !p.SlowerThan(l.params) {
				n.locals[key] = &law{params: p, last: n.clock(), generation: h.Generation}
			}
		}
		if limit.Own > 0 {
			w.quicken(n, h, limit)
		}
		if l := n.grids[h.Bucket]; l != nil && h.Generation > l.generation {
			l.generation = h.Generation
			l.change(n.clock(), limit.WindowsOf(h.Bucket))
		}
		for _, source := range [...]filtertest.Source{filtertest.Local, filtertest.Share} {
			l, p := n.locals[lawKey{h.Bucket, source}], w.own(n, source, limit)
			if l != nil && h.Generation > l.generation && !p.SlowerThan(l.params) && p != l.params {
				l.generation = h.Generation
				l.change(n.clock(), p, quota.Second)
			}
		}
	}
}

// quicken has the laws of a node's own buckets earn by a raised limit from the first request under
// it on: a bucket goes on by a refused caller's own figures if these are faster. If they only hold
// more, it holds as much: workers with the older policy set decide by them too.
func (w *world) quicken(n *node, h filtertest.Hit, limit policy.Limit) {
	for _, source := range [...]filtertest.Source{filtertest.Local, filtertest.Share} {
		l, p := n.locals[lawKey{h.Bucket, source}], w.own(n, source, limit)
		if l != nil && h.Generation > l.generation && l.params.SlowerThan(p) {
			p.Burst = max(p.Burst, l.params.Burst) // The law of the old burst holds until the next use.
			l.change(n.clock(), p, 0)
		} else if l != nil && h.Generation > l.generation && p.Burst > l.params.Burst {
			l.change(n.clock(), quota.Params{Num: l.params.Num, Den: l.params.Den, Burst: p.Burst}, 0)
		}
	}
}

// useLate makes the hoarder use its grant at the last moment that its clock allows.
func (w *world) useLate(n *node, k knownBucket, p quota.Params, sent quota.Instant, a wire.LeaseAnswer) {
	for _, held := range [...]lease.Lease{
		{Tokens: a.Keep, Expiry: lease.Expiry(sent, lease.TTL(p))},
		{Tokens: a.Waiting, Expiry: lease.Expiry(sent, lease.Deadline)},
	} {
		last := n.when(held.Expiry)
		if a.State != wire.ItemGranted || held.Tokens == 0 || last < w.now {
			continue
		}
		n.later(n.boots, quota.Span(last-w.now), func() {
			if n.clock() < held.Expiry {
				w.happen(hoarded)
				w.note(evHoarded, n.number, held.Tokens)
				w.useCentral(k.bucket, k.limit, held.Tokens)
			}
		})
	}
}
