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
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
)

var loneSeeds = flag.Uint64("lone", 200, "how many seeds of lone callers to run")

// A caller that is alone and waits for as long as each refusal says passes then: whatever
// algorithms, modes, lists of limits, parts of classes, penalties, costs and figures of its own its
// policies have, whichever of two Envoys it meets, and whether it sends one by one or at once. And
// the wait is no longer than that of an exact bucket, but for the spread, and what is left is what
// that bucket holds.
func TestAnswersAreTrue(t *testing.T) {
	seen := map[string]int{}
	for i := range *loneSeeds {
		w := newLone(t, *first+i)
		for round := range 25 {
			if w.round(round); t.Failed() {
				t.Fatalf("seed %d, %d Envoys: %s", w.seed, len(w.nodes), w.document)
			}
		}
		for what, n := range w.seen {
			seen[what] += n
		}
	}
	t.Logf("seeds from %d: %v", *first, seen)
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
	done     map[uint32]filtertest.Decision
	exact    map[exactKey]*exact
	seen     map[string]int
	// figure is what the caller says its own quota is.
	figure int64
}

type loneNode struct {
	process *filtertest.Process
	offset  quota.Instant
	ticked  []quota.Instant
}

// question is one request of the caller.
type question struct {
	node, worker int
	path, class  string
	cost         int64
}

func newLone(t *testing.T, seed uint64) *lone {
	w := &lone{
		t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 0x701d)), now: 1e12, done: map[uint32]filtertest.Decision{},
		exact: map[exactKey]*exact{}, seen: map[string]int{},
	}
	nodes, workers := 1+w.r.IntN(2), 1+w.r.IntN(2)
	w.store = &controlplanetest.Store{Now: func() quota.Instant { return 1<<50 + w.now }}
	wall := func() time.Time { return time.UnixMicro(int64(w.now)) }
	w.plane = controlplanetest.New(w.store, 1, int64(nodes), wall, w.r.Float64)
	w.document = w.policies(nodes)
	snapshot, set, err := w.plane.Put(0, []byte(w.document))
	if err != nil {
		t.Fatalf("seed %d: %v\n%s", seed, err, w.document)
	}
	w.set = set
	if err := w.index.Load(snapshot); err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		n := &loneNode{offset: quota.Instant(w.r.Int64N(1e12)), ticked: make([]quota.Instant, workers)}
		n.process = filtertest.Start(filtertest.Options{
			Name: string(rune('a' + i)), Boot: w.r.Uint64(), Random: w.r.Uint64(), Workers: workers,
			Now: func() quota.Instant { return w.now + n.offset }, Answers: true,
			Call: w.call,
			Decided: func(d filtertest.Decision) {
				w.done[d.Stream] = d
			},
			Gathers: func(worker int) { w.due.Add(w.now+1000, func() { n.process.Flush(worker) }) },
		})
		for worker := range workers {
			if err := n.process.Apply(worker, snapshot, 1); err != nil {
				t.Fatal(err)
			}
		}
		w.nodes = append(w.nodes, n)
	}
	w.figure = 1 + w.r.Int64N(20)
	return w
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
	mode := pick(r, "local", "strict")
	if nodes > 1 && mode == "optimistic" {
		mode = "leased" // An Envoy does not know yet what the other has let through.
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
	w.due.Add(way(), func() {
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
	w.nodes[q.node].process.Request(q.worker, w.stream, q.path, "x-key", "a", "x-cost", strconv.FormatInt(q.cost, 10),
		"x-class", q.class, "x-rate", strconv.FormatInt(w.figure, 10))
	return w.stream
}

// decision waits for what becomes of a request.
func (w *lone) decision(stream uint32) filtertest.Decision {
	for range 2000 {
		if d, ok := w.done[stream]; ok {
			delete(w.done, stream)
			return d
		}
		w.advance(w.now + 1000)
	}
	w.t.Fatalf("seed %d: a request waits for ever", w.seed)
	return filtertest.Decision{}
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

// round is some requests, a refusal at last, and what comes of obeying it.
func (w *lone) round(round int) {
	r := w.r
	if len(w.nodes) > 1 {
		w.seen["two Envoys"]++
	}
	for range 1 + r.IntN(30) {
		q := w.draw()
		d := w.decision(w.send(q))
		if w.judge(q, d); !d.Allowed {
			w.obey(q, d)
		}
		if r.IntN(4) == 0 {
			w.advance(w.now + quota.Instant(r.Int64N(pick[int64](r, 1e4, 1e5, 1e6, 1e7))))
		}
	}
	w.advance(w.now + quota.Instant(r.Int64N(pick[int64](r, 1e5, 1e6, 1e7, 1e8, 1e9))))
}

// obey waits as a refusal asks, and asks again.
func (w *lone) obey(q question, d filtertest.Decision) {
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
	asked := w.now
	w.advance(w.now + quota.Instant(n*1e6))
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
	w.t.Errorf("seed %d: %+v was refused at %v for %s s, and obeyed, and refused again (%+v at %v):\n%s\n%s",
		w.seed, q, asked, wait, again, w.now, d.Answer, second.Answer)
}

func (w *lone) hasLocal(d filtertest.Decision) bool {
	for _, h := range d.Hits {
		if w.index.Policy(h.Policy).Mode == policy.ModeLocal || w.index.Penalty(h.Policy) != nil {
			return true
		}
	}
	return false
}

var waits = regexp.MustCompile(`t=(\d+)`)

// judge holds what an answer says against itself and against exact buckets.
func (w *lone) judge(q question, d filtertest.Decision) {
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
		w.t.Errorf("seed %d: %v in %s", w.seed, err, d.Answer.Body)
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
			w.t.Errorf("seed %d: Retry-After is %d, %s is %d: %v %s", w.seed, retry, name, n, h, d.Answer.Body)
		}
	}
}

// exactKey names a bucket; each node has one of its own of a local policy.
type exactKey struct {
	bucket keyhash.Key
	node   int
}

// exact is what a bucket is by the algorithm alone.
type exact struct {
	params  quota.Params
	state   quota.State
	windows quota.Windows
	history quota.History
}

// exactly is the exact bucket of a hit, and its time.
func (w *lone) exactly(q question, h filtertest.Hit) (*exact, quota.Instant) {
	key, now := exactKey{h.Bucket, 0}, w.store.Time()
	if w.index.Policy(h.Policy).Mode == policy.ModeLocal {
		key.node, now = q.node+1, w.now+w.nodes[q.node].offset
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

// spend spends n tokens.
func (e *exact) spend(now quota.Instant, n int64) {
	if e.windows.Quota > 0 {
		e.windows.Take(&e.history, now, n)
	} else {
		e.state, _ = e.params.Take(e.state, now, n)
	}
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

func (w *lone) spend(q question, d filtertest.Decision) {
	for _, h := range d.Hits {
		e, now := w.exactly(q, h)
		e.spend(now, h.Cost)
	}
}

// againstExact holds the wait of a refusal and what it says is left against exact buckets. A second
// is rounded up, a tenth is the spread, and tokens for requests that wait count for 100 ms longer.
// What a node remembers of the other buckets of a request is up to a token late; what a window gets
// back before it is full it does not know. Tokens that are used in the last 100 ms of a part of a
// window may count in the next part.
func (w *lone) againstExact(q question, d filtertest.Decision, retry int64) {
	longest := quota.Span(0)
	for _, h := range d.Hits {
		if w.index.Limit(h.Limit).Own > 0 || w.index.Penalty(h.Policy) != nil {
			return
		}
		e, now := w.exactly(q, h)
		left, wait := e.look(now, h.Cost)
		late := e.params.Earned(150 * quota.Millisecond)
		if w.index.Policy(h.Policy).Mode != policy.ModeLocal {
			if e.windows.Quota > 0 {
				wait += e.windows.Grain
			} else if len(d.Hits) > 1 {
				wait += e.params.ResetAfter(quota.State{Debt: e.params.Den}, 0)
			}
		}
		longest = max(longest, wait)
		if _, said, _ := strings.Cut(d.Answer.Log, "remaining="); len(d.Hits) == 1 {
			n, err := strconv.ParseInt(strings.TrimSpace(said), 10, 64)
			if err != nil || n > left || n < left-1-late && e.windows.Quota == 0 {
				w.t.Errorf("seed %d: %d are left: %s", w.seed, left, d.Answer)
			}
		}
	}
	spread := min(longest/10, 30*quota.Second)
	if told := quota.Span(retry) * quota.Second; told > longest+spread+1200*quota.Millisecond {
		w.t.Errorf("seed %d: %d s are asked for, %d µs are enough: %+v %s", w.seed, retry, longest, q, d.Answer)
	}
}
