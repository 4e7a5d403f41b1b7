package simulation

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/controlplanetest"
	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
	"github.com/weir-proxy/weir/shared/wire"
)

var loneSeeds = flag.Uint64("lone", 200, "how many seeds of lone callers to run")

var loneModes = flag.String("modes", "local,strict,leased,optimistic",
	"the modes of the policies of lone callers")

// wrongBefore are seeds of which an answer was wrong once, by the modes of their policies.
var wrongBefore = map[string][]uint64{
	"local,strict,leased,optimistic": {
		409, 876, 1461, 1833, 20017, 20485, 20688, 20807, 21076, 21230, 21505, 21937, 22087,
	},
	"leased": {2223, 2230, 2684, 3539, 4199, 4238, 4372},
}

// A caller that is alone and waits for as long as each refusal says passes then: whatever
// algorithms, modes, lists of limits, parts of classes, penalties, costs and figures of its own its
// policies have, whichever of two Envoys it meets, and whether it sends one by one or at once. And
// the wait is no longer than the wait of an exact bucket, except for the spread, and the remaining
// tokens are the tokens of that bucket.
func TestAnswersAreTrue(t *testing.T) {
	seen, wrong := map[string]int{}, map[string]int{}
	play := func(w *lone) {
		for round := 0; round < 25 && w.wrong == ""; round++ {
			w.round(round)
		}
		for what, n := range w.seen {
			seen[what] += n
		}
		if w.wrong == "" {
			return
		}
		if wrong[w.wrong]++; wrong[w.wrong] <= 2 {
			t.Errorf("seed %d of %s, %d Envoys, %s: %s\n%s", w.seed, w.modes, len(w.nodes), w.wrong, w.why, w.document)
		}
	}
	for i := range *loneSeeds {
		play(newLone(t, *first+i))
	}
	if *first == 1 {
		for modes, seeds := range wrongBefore {
			for _, seed := range seeds {
				play(newLoneOf(t, seed, modes))
			}
		}
	}
	t.Logf("seeds from %d: %v; wrong: %v", *first, seen, wrong)
	for _, what := range []string{"allowed", "refused", "again", "dear", "too dear", "two Envoys"} {
		if seen[what] < int(*loneSeeds)/4 {
			t.Errorf("%s: %d times in %d runs", what, seen[what], *loneSeeds)
		}
	}
}

// lone is the world of a caller that is alone with its policies, in virtual time.
type lone struct {
	t        *testing.T
	seed     uint64
	modes    string
	r        *rand.Rand
	document string
	set      *policy.Set
	index    match.Index
	now      quota.Instant
	due      vtimetest.Queue[quota.Instant]
	store    *controlplanetest.Store
	plane    *controlplanetest.ControlPlane
	nodes    []*loneNode
	stream   uint32
	done     map[uint32]decided
	nth      int
	exact    map[exactKey]*exact
	seen     map[string]int
	// figure is the own quota that the caller names.
	figure int64
	// looks are the questions that nodes asked of buckets without a wish for tokens.
	looks int
	// parted are the policies that keep a part for a class. Tokens that a class gets from one
	// bucket while the other bucket refuses are missing in leased mode until they have gone back.
	parted map[uint32]bool
	// lost are tokens of leases that no request used, lostAt when the last were.
	lost   uint64
	lostAt quota.Instant
	// way, if not nil, is how long a message takes.
	way func() quota.Instant
	// asked is when each request was sent; backs are tokens that go back.
	asked map[uint32]quota.Instant
	backs []back
	// wrong is the first mistake, and why its reason.
	wrong, why string
}

type loneNode struct {
	process *filtertest.Process
	offset  quota.Instant
	ticked  []quota.Instant
}

// back is tokens that a node gives back. Until they arrive the control plane counts them as held.
type back struct {
	node    string
	bucket  keyhash.Key
	tokens  int64
	arrives quota.Instant
}

// decided is the outcome of a request, with the time and the number of its sending.
type decided struct {
	filtertest.Decision
	asked, at quota.Instant
	nth       int
	// beside: others were decided meanwhile.
	beside bool
}

// question is one request of the caller.
type question struct {
	node, worker int
	path, class  string
	cost         int64
}

func newLone(t *testing.T, seed uint64) *lone { return newLoneOf(t, seed, *loneModes) }

// newLoneOf does the same as newLone, with policies of some modes.
func newLoneOf(t *testing.T, seed uint64, modes string) *lone {
	w := &lone{
		t: t, seed: seed, modes: modes, r: rand.New(rand.NewPCG(seed, 0x701d)), now: 1e12, done: map[uint32]decided{},
		exact: map[exactKey]*exact{}, seen: map[string]int{}, parted: map[uint32]bool{},
		asked: map[uint32]quota.Instant{},
	}
	nodes, workers := 1+w.r.IntN(2), 1+w.r.IntN(2)
	w.document = w.policies(nodes)
	w.start(nodes, workers)
	return w
}

// start starts the given number of nodes and workers under the document.
func (w *lone) start(nodes, workers int) {
	w.store = &controlplanetest.Store{Now: func() quota.Instant { return 1<<50 + w.now }}
	wall := func() time.Time { return time.UnixMicro(int64(w.now)) }
	w.plane = controlplanetest.New(w.store, 1, int64(nodes), wall, w.r.Float64)
	snapshot, set, err := w.plane.Put(0, []byte(w.document))
	if err != nil {
		w.t.Fatalf("seed %d: %v\n%s", w.seed, err, w.document)
	}
	w.set = set
	if err := w.index.Load(snapshot); err != nil {
		w.t.Fatal(err)
	}
	for i := range nodes {
		n := &loneNode{offset: quota.Instant(w.r.Int64N(1e12)), ticked: make([]quota.Instant, workers)}
		n.process = filtertest.Start(filtertest.Options{
			Name: loneName(i), Boot: w.r.Uint64(), Random: w.r.Uint64(), Workers: workers,
			Now: func() quota.Instant { return w.now + n.offset }, Answers: true,
			Call: w.call,
			Decided: func(d filtertest.Decision) {
				w.nth++
				w.done[d.Stream] = decided{Decision: d, asked: w.asked[d.Stream], at: w.now, nth: w.nth}
				delete(w.asked, d.Stream)
			},
			Gathers: func(worker int) { w.due.Add(w.now+1000, func() { n.process.Flush(worker) }) },
		})
		for worker := range workers {
			if err := n.process.Apply(worker, snapshot, 1); err != nil {
				w.t.Fatal(err)
			}
		}
		w.nodes = append(w.nodes, n)
	}
	w.figure = 1 + w.r.Int64N(20)
}

// fail notes the first mistake.
func (w *lone) fail(what, format string, args ...any) {
	if w.wrong == "" {
		w.wrong, w.why = what, fmt.Sprintf(format, args...)
	}
}

// policies draws one to four policies.
func (w *lone) policies(nodes int) string {
	r := w.r
	lines := make([]string, 1+r.IntN(4))
	for i := range lines {
		lines[i] = w.policy(i, nodes)
	}
	return `{"version":"weir/v1","headers":{"standard":"draft-11","legacy":"` +
		pick(r, "x-ratelimit", "envoy", "github", "discord") + `"},` +
		`"priorities":[{"name":"critical","match":{"headers":[{"name":"x-class","equals":"critical","trusted":true}]}},{"name":"rest"}],` +
		`"policies":[` + strings.Join(lines, ",") + `]}`
}

func (w *lone) policy(i, nodes int) string {
	r := w.r
	mode := pick(r, strings.Split(w.modes, ",")...)
	if nodes > 1 && mode == "optimistic" {
		mode = "leased" // An Envoy does not know yet which requests the other has let through.
	}
	algorithms := []string{"token_bucket", "token_bucket", "token_bucket", "fixed_window", "sliding_window",
		"sliding_log", "sliding_window_counter"}
	switch mode {
	case "leased":
		algorithms = algorithms[:6]
	case "optimistic":
		algorithms = algorithms[:1]
	}
	algorithm := pick(r, algorithms...)
	more := ""
	limit := func() string {
		q := pick[int64](r, 1, 2, 3, 5, 10, 20, 60, 100)
		window := pick(r, "1s", "2s", "5s", "10s", "1m", "10m", "1h", "1d")
		figure := strconv.FormatInt(q, 10)
		if q >= 10 && r.IntN(6) == 0 {
			figure = fmt.Sprintf(`{"header":"x-rate","trusted":true,"max":%d,"default":%d}`, q, q/2)
		} else if algorithm == "token_bucket" && r.IntN(3) == 0 {
			return fmt.Sprintf(`{"quota":%d,"window":%q,"burst":%d}`, q, window, 1+r.Int64N(2*q))
		}
		return fmt.Sprintf(`{"quota":%s,"window":%q}`, figure, window)
	}
	limits := limit()
	switch r.IntN(5) {
	case 0:
		limits = fmt.Sprintf(`[{"quota":%d,"window":"1s"},{"quota":%d,"window":"1m"}]`, 1+r.IntN(5), 10+r.IntN(50))
	case 1:
		if algorithm == "fixed_window" {
			limits, more = `{"quota":10,"window":"1m"}`, `"align":"utc",`
		}
	}
	if r.IntN(5) == 0 && mode != "optimistic" && algorithm != "sliding_window_counter" {
		limits = fmt.Sprintf(`{"quota":%d,"window":"10s"}`, 4+r.IntN(40))
		more += `"reserve":{"critical":"25%"},`
		w.parted[uint32(i)] = true
	}
	if r.IntN(4) == 0 {
		more += fmt.Sprintf(`"penalty":{"after":{"refusals":%d,"within":"1m"},"for":%q,"factor":2,"max":"10m","extend":%v},`,
			1+r.IntN(4), pick(r, "1s", "5s", "30s"), r.IntN(3) == 0)
	}
	if r.IntN(6) == 0 {
		more += `"enforcement":"shadow",`
	}
	return fmt.Sprintf(`{"name":"p%d","match":{"paths":["/p%d","/all"]},"partition":["header:x-key"],%s"algorithm":%q,"mode":%q,`+
		`"limit":%s,"cost":{"header":"x-cost","max":1000},"on_failure":{"local_for":"0s","then":"deny"}}`,
		i, i, more, algorithm, mode, limits)
}

// call carries a lease request to the control plane and its answer back, within some milliseconds.
func (w *lone) call(_ int, body []byte, _ quota.Span, done func(int, []byte)) error {
	way := func() quota.Instant { return w.now + quota.Instant(200+w.r.IntN(3000)) }
	if w.way != nil {
		way = func() quota.Instant { return w.now + w.way() }
	}
	arrives := way()
	m, err := wire.DecodeLeaseRequest(body)
	if err != nil {
		w.t.Fatalf("seed %d: %v", w.seed, err)
	}
	w.backs = slices.DeleteFunc(w.backs, func(b back) bool { return b.arrives < w.now-quota.Instant(quota.Second) })
	for _, it := range m.Items {
		if it.Looks() {
			w.looks++
		}
		if it.Returned > 0 {
			w.backs = append(w.backs, back{m.Node, it.Bucket, it.Returned, arrives})
		}
	}
	w.due.Add(arrives, func() {
		status, reply := w.plane.Lease(0, body)
		w.due.Add(way(), func() { done(status, reply) })
	})
	return nil
}

// advance has all happen that happens up to an instant.
func (w *lone) advance(until quota.Instant) {
	for {
		next, tick := until, func() {}
		for _, n := range w.nodes {
			for worker := range n.ticked {
				at := max(n.ticked[worker]+10_000, n.process.NextDue(worker)-n.offset)
				if at <= next {
					next, tick = at, func() {
						n.ticked[worker] = w.now
						n.process.Tick(worker)
					}
				}
			}
		}
		if e, ok := w.due.Next(next); ok {
			w.now = max(w.now, e.At)
			e.Fire()
			continue
		}
		w.now = max(w.now, next)
		if tick(); next >= until {
			return
		}
	}
}

// send sends a request; it is decided at once, or later.
func (w *lone) send(q question) uint32 {
	w.stream++
	w.asked[w.stream] = w.now
	w.nodes[q.node].process.Request(q.worker, w.stream, q.path, "x-key", "a", "x-cost", strconv.FormatInt(q.cost, 10),
		"x-class", q.class, "x-rate", strconv.FormatInt(w.figure, 10))
	return w.stream
}

// decision waits for the outcome of a request.
func (w *lone) decision(stream uint32) decided {
	for range 2000 {
		if d, ok := w.done[stream]; ok {
			delete(w.done, stream)
			return d
		}
		w.advance(w.now + 1000)
	}
	w.t.Fatalf("seed %d: a request waits for ever", w.seed)
	return decided{}
}

func (w *lone) draw() question {
	r := w.r
	q := question{node: r.IntN(len(w.nodes)), path: "/all", class: pick(r, "critical", "other")}
	q.worker = r.IntN(len(w.nodes[q.node].ticked))
	if r.IntN(3) == 0 {
		q.path = "/p" + strconv.Itoa(r.IntN(len(w.set.Policies)))
	}
	q.cost = pick[int64](r, 1, 1, 1, 1, 2, 3, 5, 10, 30)
	if r.IntN(8) == 0 {
		q.cost = 1 + r.Int64N(110)
	}
	return q
}

// round sends some requests, refusals among them, and obeys each answer.
func (w *lone) round(round int) {
	r := w.r
	if len(w.nodes) > 1 {
		w.seen["two Envoys"]++
	}
	for range 1 + r.IntN(30) {
		// An Envoy believes its last answer for the time in it. So a caller of several must not go
		// on at one of them when another has refused it.
		alone := len(w.nodes) == 1
		switch {
		case alone && r.IntN(12) == 0:
			w.burst()
		default:
			q := w.draw()
			d := w.decision(w.send(q))
			if w.judge(q, d); !d.Allowed {
				if alone {
					w.insist(&q, &d)
				}
				w.obey(q, d)
			}
		}
		if r.IntN(4) == 0 {
			w.advance(w.now + quota.Instant(r.Int64N(pick[int64](r, 1e4, 1e5, 1e6, 1e7))))
		}
	}
	w.advance(w.now + quota.Instant(r.Int64N(pick[int64](r, 1e5, 1e6, 1e7, 1e8, 1e9))))
}

// insist asks again at once some times, without a thought of the wait, as penalties are for.
func (w *lone) insist(q *question, d *decided) {
	if w.r.IntN(4) > 0 || d.Answer.Headers["retry-after"] == "" {
		return
	}
	for range 1 + w.r.IntN(5) {
		*d = w.decision(w.send(*q))
		if w.judge(*q, *d); d.Allowed {
			return
		}
		w.seen["insisted"]++
	}
}

// burst sends several requests at once, and obeys the last refusal if nothing was let through after
// it.
func (w *lone) burst() {
	q := w.draw()
	type sent struct {
		q question
		d decided
	}
	all := make([]sent, 2+w.r.IntN(12))
	streams := make([]uint32, len(all))
	for i := range all {
		if all[i].q = q; w.r.IntN(3) == 0 {
			all[i].q.worker = w.r.IntN(len(w.nodes[q.node].ticked))
		}
		streams[i] = w.send(all[i].q)
	}
	for i := range all {
		all[i].d = w.decision(streams[i])
		all[i].d.beside = true
	}
	slices.SortFunc(all, func(a, b sent) int { return a.d.nth - b.d.nth })
	for _, s := range all {
		if s.d.Allowed {
			w.judge(s.q, s.d)
		}
		if len(s.d.Hits) > 1 { // The tokens for a request that another limit refused may be lost.
			w.lost, w.lostAt = max(w.lost, 1), w.now
		}
	}
	for _, s := range all {
		if !s.d.Allowed {
			w.judge(s.q, s.d)
		}
	}
	if last := all[len(all)-1]; !last.d.Allowed && !w.mayLapse(last.d) {
		w.seen["burst"]++
		w.obey(last.q, last.d)
	}
}

// mayLapse reports whether tokens for requests of a burst may be lost because a further policy
// refused the requests: tokens that came beside tokens to keep do not go back.
func (w *lone) mayLapse(d decided) bool {
	several, leased := false, false
	for _, h := range d.Hits {
		several = several || h.Policy != d.Hits[0].Policy
		leased = leased || w.index.Policy(h.Policy).Mode == policy.ModeLeased
	}
	return several && leased
}

// lapsed reports whether a bucket may lack tokens that were lost: until a window has passed, of a
// bucket of tokens one since it would be full without that.
func (w *lone) lapsed(e *exact, now quota.Instant) bool {
	var n uint64
	for _, node := range w.nodes {
		n += node.process.Lapsed()
	}
	if n > w.lost {
		w.lost, w.lostAt = n, w.now
	}
	if w.lost == 0 {
		return false
	}
	if e.windows.Quota > 0 {
		return w.now-w.lostAt < quota.Instant(2*e.params.Window())
	}
	if e.lostAt != w.lostAt {
		e.lostAt, e.since, e.full = w.lostAt, now, 0
	}
	return e.full+e.fullFor(now) < e.params.Window()
}

// fullFor returns the time for which a bucket of tokens has been full, since tokens were lost.
func (e *exact) fullFor(now quota.Instant) quota.Span {
	from := e.state.Last + quota.Instant(e.params.ResetAfter(e.state, e.state.Last))
	return quota.Span(max(now-max(from, e.since), 0))
}

// obey waits as a refusal asks, and asks again.
func (w *lone) obey(q question, d decided) {
	wait := d.Answer.Headers["retry-after"]
	if wait == "" {
		w.seen["too dear"]++
		return
	}
	n, err := strconv.ParseInt(wait, 10, 64)
	if err != nil || n < 1 {
		w.t.Fatalf("seed %d: Retry-After is %q", w.seed, wait)
	}
	w.seen[d.Reason]++
	w.seen["refused"]++
	if q.cost > 1 {
		w.seen["dear"]++
	}
	asked := d.at
	w.advance(max(w.now, d.at+quota.Instant(n*1e6)))
	again := q
	again.node = w.r.IntN(len(w.nodes))
	if local := w.hasLocal(d); local {
		again.node = q.node // Another Envoy has another bucket.
	}
	again.worker = w.r.IntN(len(w.nodes[again.node].ticked))
	second := w.decision(w.send(again))
	w.seen["again"]++
	w.judge(again, second)
	if second.Allowed {
		return
	}
	w.fail("refused again", "%+v was refused at %v for %s s, and obeyed, and refused again (%+v at %v):\n%s\n%s",
		q, asked, wait, again, w.now, d.Answer, second.Answer)
}

func (w *lone) hasLocal(d decided) bool {
	for _, h := range d.Hits {
		if w.index.Policy(h.Policy).Mode == policy.ModeLocal || w.index.Penalty(h.Policy) != nil {
			return true
		}
	}
	return false
}

var waits = regexp.MustCompile(`t=(\d+)`)

// judge checks an answer against itself and against exact buckets.
func (w *lone) judge(q question, d decided) {
	if d.Allowed {
		w.seen["allowed"]++
		w.spend(q, d)
		return
	}
	h := d.Answer.Headers
	if h["retry-after"] == "" {
		return
	}
	retry, _ := strconv.ParseInt(h["retry-after"], 10, 64)
	var body struct {
		Detail string `json:"detail"`
		Retry  int64  `json:"retry_after"`
	}
	if err := json.Unmarshal(d.Answer.Body, &body); err != nil {
		w.fail("unreadable", "%v in %s", err, d.Answer.Body)
	}
	w.againstExact(q, d, retry)
	named := map[string]int64{"retry_after": body.Retry}
	for i, m := range waits.FindAllStringSubmatch(h["ratelimit"], -1) {
		named["t"+strconv.Itoa(i)], _ = strconv.ParseInt(m[1], 10, 64)
	}
	if after, ok := h["x-ratelimit-reset-after"]; ok {
		seconds, _ := strconv.ParseFloat(after, 64)
		named["reset-after"] = int64(seconds*1000+0.5) / 1000
	}
	if reset, ok := h["x-ratelimit-reset"]; ok {
		n, _ := strconv.ParseInt(reset, 10, 64)
		node := w.nodes[q.node]
		if n > 1e5 && h["x-ratelimit-limit"] != "" && !strings.Contains(h["x-ratelimit-limit"], ",") {
			n -= int64(w.now+node.offset) / 1e6
			if n == retry+1 {
				n-- // The second that has begun.
			}
		}
		named["reset"] = n
	}
	for name, n := range named {
		if n != retry {
			w.fail("two waits", "Retry-After is %d, %s is %d: %v %s", retry, name, n, h, d.Answer.Body)
		}
	}
}

// exactKey names a bucket; each node has one of its own of a local policy.
type exactKey struct {
	bucket keyhash.Key
	node   int
}

// exact is a bucket by the algorithm alone.
type exact struct {
	params  quota.Params
	state   quota.State
	windows quota.Windows
	history quota.History
	// lostAt is when tokens were lost last, since that by the bucket's own time, and full for how
	// long it was full until it was used last.
	lostAt, since quota.Instant
	full          quota.Span
}

// exactly returns the exact bucket of a hit, and its time at an instant.
func (w *lone) exactly(q question, h filtertest.Hit, at quota.Instant) (*exact, quota.Instant) {
	key, now := exactKey{h.Bucket, 0}, 1<<50+at
	if w.index.Policy(h.Policy).Mode == policy.ModeLocal {
		key.node, now = q.node+1, at+w.nodes[q.node].offset
	}
	e := w.exact[key]
	if e == nil {
		l := w.index.Limit(h.Limit)
		e = &exact{params: l.Params}
		if l.Algorithm.Windowed() {
			e.windows = l.WindowsOf(h.Bucket)
		}
		w.exact[key] = e
	}
	return e, now
}

// spend spends n tokens. The control plane has granted them some milliseconds ago, so they may come
// here as much later.
func (e *exact) spend(now quota.Instant, n int64) bool {
	for range 2 {
		var r quota.Result
		if e.windows.Quota > 0 {
			r = e.windows.Take(&e.history, now, n)
		} else {
			full := e.fullFor(now)
			if e.state, r = e.params.Take(e.state, now, n); r.Allowed {
				e.full += full
			}
		}
		if r.Allowed || r.RetryAfter > 10*quota.Millisecond {
			return r.Allowed
		}
		now += quota.Instant(r.RetryAfter)
	}
	return false
}

// look finds out how many tokens are left, and how long to wait for n.
func (e *exact) look(now quota.Instant, n int64) (left int64, wait quota.Span) {
	if e.windows.Quota > 0 {
		h := quota.History{Last: e.history.Last, Marks: slices.Clone(e.history.Marks)}
		e.windows.Advance(&h, now)
		left = e.windows.Remaining(&h)
		return left, e.windows.Take(&h, now, n).RetryAfter
	}
	s := e.params.Refill(e.state, now)
	_, r := e.params.Take(s, now, n)
	return e.params.Remaining(s), r.RetryAfter
}

func (w *lone) spend(q question, d decided) {
	for _, h := range d.Hits {
		e, now := w.exactly(q, h, d.at)
		e.spend(now, h.Cost)
	}
}

// elsewhere counts the tokens that other nodes hold, and the tokens that had not come back from a
// node or worker when the request was sent: the control plane may have answered the request before.
func (w *lone) elsewhere(q question, d decided, h filtertest.Hit) (n int64) {
	for i, node := range w.nodes {
		if i != q.node {
			held, _ := node.process.Held(h.Bucket)
			n += held
		}
	}
	for _, b := range w.backs {
		if b.bucket == h.Bucket && b.arrives >= d.asked {
			n += b.tokens
		}
	}
	return n
}

// loneName returns the name of a node.
func loneName(i int) string { return string(rune('a' + i)) }

// againstExact compares the wait and the remaining tokens in a refusal with exact buckets. A second
// is rounded up, a tenth is the spread, and tokens for requests that wait count for 100 ms longer.
// A node's memory of the other buckets of a request is up to a token late. It does not know the
// tokens that a window gets back before the window is full. Tokens that are used in the last 100 ms
// of a part of a window may count in the next part.
func (w *lone) againstExact(q question, d decided, retry int64) {
	longest := quota.Span(0)
	for _, h := range d.Hits {
		if w.index.Limit(h.Limit).Own > 0 || w.index.Penalty(h.Policy) != nil {
			return
		}
		e, now := w.exactly(q, h, d.at)
		left, wait := e.look(now, h.Cost)
		late := e.params.Earned(150 * quota.Millisecond)
		most := left
		if mode := w.index.Policy(h.Policy).Mode; mode != policy.ModeLocal {
			var elsewhere int64
			if w.lapsed(e, now) || mode == policy.ModeLeased && w.parted[h.Policy] {
				return
			}
			if mode == policy.ModeLeased {
				elsewhere = w.elsewhere(q, d, h)
				_, wait = e.look(now, min(h.Cost+elsewhere, e.params.Burst))
				if beyond := h.Cost + elsewhere - e.params.Burst; beyond > 0 { // It would be more than full.
					wait += e.params.ResetAfter(quota.State{Debt: beyond * e.params.Den}, 0)
				}
			}
			if e.windows.Quota > 0 {
				wait += e.windows.Grain
				most, _ = e.look(now+quota.Instant(e.windows.Grain), 1)
			} else if len(d.Hits) > 1 {
				wait += e.params.ResetAfter(quota.State{Debt: e.params.Den}, 0)
			}
			if mode == policy.ModeLeased && e.windows.Quota > 0 {
				wait += lease.TTL(e.params) * 3 / 2
			}
			if mode == policy.ModeOptimistic && d.beside {
				return
			}
			if mode == policy.ModeOptimistic { // Use of a full bucket that is not reported earns nothing yet.
				late = e.params.Earned(lease.ReportRarely+200*quota.Millisecond) + 1
				wait += 2 * lease.ReportRarely
			}
			if late += elsewhere; mode == policy.ModeLeased && len(w.nodes) > 1 {
				most = e.params.Burst // A node believes its last answer.
			}
		}
		longest = max(longest, wait)
		if _, said, _ := strings.Cut(d.Answer.Log, "remaining="); len(d.Hits) == 1 && !d.beside {
			n, err := strconv.ParseInt(strings.TrimSpace(said), 10, 64)
			if err != nil || n > most || n < left-1-late && e.windows.Quota == 0 {
				w.fail("left", "%d are left: %s", left, d.Answer)
			}
		}
	}
	if d.beside && len(d.Hits) > 1 { // The requests beside it gave back their tokens when it was decided.
		return
	}
	w.seen["held against exact"]++
	spread := min(longest/10, 30*quota.Second)
	if asked := quota.Span(retry) * quota.Second; asked > longest+spread+1200*quota.Millisecond {
		w.fail("too long", "%d s are asked for, %d µs are enough: %+v %s", retry, longest, q, d.Answer)
	}
}
