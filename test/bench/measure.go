package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/test/bench/gauge"
	"github.com/weir-proxy/weir/test/bench/load"
	"github.com/weir-proxy/weir/tools/stack"
)

const (
	connections = 32
	keys        = 1000
)

// plan says how long to measure. Times are of one contestant in one round.
type plan struct {
	Rounds int           `json:"rounds"`
	Warm   time.Duration `json:"warm_ns"`
	Closed time.Duration `json:"closed_ns"`
	Open   time.Duration `json:"open_ns"`
	// Slice is how long a contestant is watched at a time in the closed loop. Other users of the
	// machine make a slice dearer, by up to a half, and never cheaper, so of a contestant's slices
	// in a round the cheapest counts.
	Slice time.Duration `json:"slice_ns"`
}

// figures are what was measured of one contestant in one round.
type figures struct {
	// Rate is the answers a second of the closed loop, in its cheapest slice: what the contestant
	// can do on one processor.
	Rate float64 `json:"requests_per_second"`
	// EnvoyCPU and OtherCPU are the processor time for each of them in microseconds in that slice:
	// Envoy's, and that of all other processes.
	EnvoyCPU float64 `json:"envoy_cpu_us"`
	OtherCPU float64 `json:"other_cpu_us"`
	// Foreign is how many processors worked on average for other programs, while the closed loop
	// ran.
	Foreign float64 `json:"foreign_processors"`
	// Calls are those that Envoy made for each of them, to the control plane or the service of
	// limits.
	Calls float64 `json:"calls"`
	// Ladder is the share of them, 0 to 1, that Weir's failure ladder decided, because the control
	// plane was too slow.
	Ladder float64 `json:"ladder"`
	// OpenRate is that of the open loop, 0 if there was none. The percentiles of its latencies are
	// in milliseconds.
	OpenRate float64 `json:"open_requests_per_second,omitempty"`
	P50      float64 `json:"p50_ms,omitempty"`
	P99      float64 `json:"p99_ms,omitempty"`
	P999     float64 `json:"p999_ms,omitempty"`
	// EnvoyMB and OtherMB are resident memory after all that, in millions of bytes.
	EnvoyMB float64 `json:"envoy_mb"`
	OtherMB float64 `json:"other_mb"`
}

// round has the figures of each contestant by its id.
type round map[string]figures

// slicesPerTurn is how many slices a contestant has in a turn. Behind a service it warms up again
// before: while the others had their turn the leases of a thousand keys have ended.
var slicesPerTurn = map[scene]int{direct: 1, proxied: 4}

// runner measures rounds.
type runner struct {
	shop     *workshop
	plan     plan
	progress io.Writer
	// openRate is that of the open loop, in requests a second; 0 until Envoy without a limit has
	// been measured.
	openRate float64
	// running are the contestants that have been started.
	running []*world
}

// round measures each contestant. Those of a scene run side by side and take turns in the closed
// loop, so that what the machine does meanwhile hits all of them alike; in the open loop each runs
// alone.
func (r *runner) round(ctx context.Context, n int, all []contestant) (round, error) {
	result := round{}
	for _, s := range []scene{direct, proxied} {
		if err := r.takeTurns(ctx, n, s, inScene(all, s), result); err != nil {
			return nil, err
		}
	}
	for _, c := range inScene(all, proxied) {
		f, err := r.open(ctx, c, result[c.id()])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.id(), err)
		}
		r.say(n, "latency", c, fmt.Sprintf("%6.0f/s %7.2f ms", f.OpenRate, f.P99))
		result[c.id()] = f
	}
	return result, nil
}

func (r *runner) say(n int, what string, c contestant, how string) {
	fmt.Fprintf(r.progress, "round %d of %d: %-8s %-8s %-52s %s\n", n, r.plan.Rounds, what, c.Scene, c.Title, how)
}

func (r *runner) takeTurns(ctx context.Context, n int, s scene, all []contestant, result round) error {
	defer r.stop()
	var trials []*trial
	for _, c := range all {
		r.say(n, "starts", c, "")
		t, err := r.begin(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.id(), err)
		}
		trials = append(trials, t)
	}
	for spent := time.Duration(0); spent < r.plan.Closed; {
		for _, t := range trials {
			if err := t.turn(ctx); err != nil {
				return fmt.Errorf("%s: %w", t.id(), err)
			}
			r.say(n, "turn", t.contestant, fmt.Sprintf("%6.0f/s %7.1f µs", t.best.Rate, t.best.EnvoyCPU+t.best.OtherCPU))
		}
		spent += time.Duration(slicesPerTurn[s]) * r.plan.Slice
	}
	for _, t := range trials {
		f, err := t.figures()
		if err != nil {
			return fmt.Errorf("%s: %w", t.id(), err)
		}
		result[t.id()] = f
	}
	return nil
}

// open adds what the open loop says to a contestant's figures.
func (r *runner) open(ctx context.Context, c contestant, f figures) (figures, error) {
	defer r.stop()
	t, err := r.begin(ctx, c)
	if err != nil {
		return f, err
	}
	f.OpenRate = gauge.Rounded(r.pace(c, f.Rate))
	result, err := t.load.Open(ctx, f.OpenRate, r.plan.Open)
	if err == nil {
		err = c.expects(result)
	}
	f.P50, f.P99, f.P999 = milliseconds(result, 0.5), milliseconds(result, 0.99), milliseconds(result, 0.999)
	return f, err
}

// stop ends all that runs.
func (r *runner) stop() {
	for _, w := range r.running {
		w.stop()
	}
	r.running = nil
}

// pace is the rate of the open loop: a third of what Envoy does without a limit, about half of what
// it does with Weir. A contestant that cannot do that gets half of what it can; its latencies are
// then at another load than those of the rest.
func (r *runner) pace(c contestant, capacity float64) float64 {
	if c.part == nothing && r.openRate == 0 {
		r.openRate = capacity / 3
	}
	if r.openRate == 0 || r.openRate > capacity*0.8 {
		return capacity / 2
	}
	return r.openRate
}

// trial is a contestant that runs and is warm, and what was seen of it.
type trial struct {
	contestant
	by    *runner
	world *world
	load  load.Load
	// best has the rate and the processor times of the cheapest slice.
	best figures
	// answered, took, foreign, calls and ladder are sums over all slices.
	answered      int
	took, foreign time.Duration
	calls, ladder int
}

func (r *runner) begin(ctx context.Context, c contestant) (*trial, error) {
	w, err := r.shop.start(ctx, c)
	if err != nil {
		return nil, err
	}
	r.running = append(r.running, w)
	t := &trial{contestant: c, by: r, world: w, load: newLoad(c.Scene, w.envoy)}
	_, err = t.load.Closed(ctx, r.plan.Warm) // Its answers may differ: the first ones of a refused key are allowed.
	return t, err
}

// turn watches some slices, and whether the filter did what it is measured for.
func (t *trial) turn(ctx context.Context) error {
	if t.Scene == proxied {
		if _, err := t.load.Closed(ctx, t.by.plan.Warm); err != nil {
			return err
		}
	}
	before, err := t.world.count(ctx, t.contestant)
	if err != nil {
		return err
	}
	answered := t.answered
	for range slicesPerTurn[t.Scene] {
		if err := t.ask(ctx, t.by.plan.Slice); err != nil {
			return err
		}
	}
	if err := t.world.prove(ctx, t.contestant, before.proof, t.answered-answered); err != nil {
		return err
	}
	after, err := t.world.count(ctx, t.contestant)
	t.calls += after.calls - before.calls
	t.ladder += after.ladder - before.ladder
	return err
}

// ask asks in a closed loop. The processor time is read closest to the load, because reading
// counters costs Envoy some.
func (t *trial) ask(ctx context.Context, during time.Duration) error {
	start, err := t.world.work(t.by.running)
	if err != nil {
		return err
	}
	result, err := t.load.Closed(ctx, during)
	if err != nil {
		return err
	}
	end, err := t.world.work(t.by.running)
	if err != nil {
		return err
	}
	n := float64(result.Answered())
	micros := func(d time.Duration) float64 { return gauge.Rounded(float64(d.Nanoseconds()) / 1000 / n) }
	now := figures{Rate: gauge.Rounded(n / result.Duration.Seconds()), EnvoyCPU: micros(end.envoy - start.envoy), OtherCPU: micros(end.others - start.others)}
	if t.answered == 0 || now.EnvoyCPU+now.OtherCPU < t.best.EnvoyCPU+t.best.OtherCPU {
		t.best = now
	}
	t.answered += result.Answered()
	t.took += result.Duration
	t.foreign += end.foreign - start.foreign
	return t.expects(result)
}

// figures are those of the closed loop, and the memory after it.
func (t *trial) figures() (f figures, err error) {
	f, n := t.best, float64(t.answered)
	f.Foreign = gauge.Rounded(max(0, t.foreign.Seconds()/t.took.Seconds()))
	f.Calls, f.Ladder = gauge.Rounded(float64(t.calls)/n), gauge.Rounded(float64(t.ladder)/n)
	if t.inHand && f.Calls > 0.05 {
		return f, fmt.Errorf("%d calls for %.0f requests: their tokens were not in hand", t.calls, n)
	}
	f.EnvoyMB, f.OtherMB, err = t.world.resident()
	return f, err
}

// expects says what is wrong with the answers.
func (c contestant) expects(r load.Result) error {
	if n := r.Answered(); n == 0 || r.Statuses[c.status] != n {
		return fmt.Errorf("every answer must be %d, there were (by status) %v", c.status, r.Statuses)
	}
	return nil
}

// counts are Envoy's counters: proof matches the contestant's, ladder what Weir's failure ladder
// decided.
type counts struct{ calls, proof, ladder int }

func (w *world) count(ctx context.Context, c contestant) (n counts, err error) {
	if n.proof, err = w.counter(ctx, c.proof); err != nil {
		return n, err
	}
	if n.calls, err = w.counter(ctx, map[part]string{
		weir: `cluster\.weir\.upstream_rq_total`, global: `cluster\.ratelimit\.upstream_rq_total`,
	}[c.part]); err != nil || c.part != weir {
		return n, err
	}
	n.ladder, err = w.counter(ctx, ladder)
	return n, err
}

// counter sums the counters and gauges of Envoy's whose names match; one that has never counted is
// not there and is 0.
func (w *world) counter(ctx context.Context, names string) (sum int, err error) {
	if names == "" {
		return 0, nil
	}
	content, err := w.envoy.Admin(ctx, "/stats?filter="+url.QueryEscape("^"+names+"$"))
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Fields(strings.ReplaceAll(string(content), ": ", ":")) {
		_, value, _ := strings.Cut(line, ":")
		n, err := strconv.Atoi(value)
		if err != nil {
			return 0, fmt.Errorf("counter %q of Envoy: %w", line, err)
		}
		sum += n
	}
	return sum, nil
}

// prove waits until the contestant's proof has grown by n: Weir's filter reports with its tick. The
// empty filter counts nothing, so of it there is only proof that it runs.
func (w *world) prove(ctx context.Context, c contestant, before, n int) error {
	if c.proof == "" {
		return nil
	}
	if c.part == emptyWasm {
		before, n = 0, 1
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return stack.Await(ctx, "proof that the filter worked", func(ctx context.Context) error {
		now, err := w.counter(ctx, c.proof)
		if err == nil && now-before < n {
			err = fmt.Errorf("%s grew by %d, not by %d", c.proof, now-before, n)
		}
		return err
	})
}

func milliseconds(r load.Result, p float64) float64 {
	return float64(r.Percentile(p).Microseconds()) / 1000
}

// newLoad is the load of a scene.
func newLoad(s scene, e *stack.Envoy) load.Load {
	l := load.Load{Address: net.JoinHostPort(e.Host, strconv.Itoa(e.Port)), Connections: connections}
	n := 1
	if s == proxied {
		n = keys
	}
	for i := range n {
		l.Requests = append(l.Requests, fmt.Appendf(nil,
			"GET %s HTTP/1.1\r\nhost: bench.example\r\nuser-agent: bench\r\naccept: */*\r\n%s: key-%04d\r\n\r\n", path, keyHeader, i))
	}
	l.Order = zipf(n, 1<<16)
	return l
}

// zipf draws numbers below n, each k with a probability that falls as 1/(k+1); always the same
// ones.
func zipf(n, draws int) []int {
	sums := make([]float64, n)
	sum := 0.0
	for k := range sums {
		sum += 1 / float64(k+1)
		sums[k] = sum
	}
	random := rand.New(rand.NewPCG(1, 2))
	order := make([]int, draws)
	for i := range order {
		order[i] = min(sort.SearchFloat64s(sums, random.Float64()*sum), n-1)
	}
	return order
}
