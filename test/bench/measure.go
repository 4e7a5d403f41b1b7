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
}

// figures are what was measured of one contestant in one round.
type figures struct {
	// Rate is the answers a second of the closed loop: what the contestant can do on one processor.
	Rate float64 `json:"requests_per_second"`
	// EnvoyCPU and OtherCPU are the processor time for each of them in microseconds: Envoy's, and that of all other processes.
	EnvoyCPU float64 `json:"envoy_cpu_us"`
	OtherCPU float64 `json:"other_cpu_us"`
	// Foreign is how many processors worked on average for nobody who takes part, while the closed loop ran.
	Foreign float64 `json:"foreign_processors"`
	// Calls are those that Envoy made for each of them, to the control plane or the service of limits.
	Calls float64 `json:"calls"`
	// Ladder is the share of them, 0 to 1, that Weir's failure ladder decided, because the control plane was too slow.
	Ladder float64 `json:"ladder"`
	// OpenRate is that of the open loop, 0 if there was none. The percentiles of its latencies are in milliseconds.
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

// runner measures rounds.
type runner struct {
	shop     *workshop
	plan     plan
	progress io.Writer
	// openRate is that of the open loop, in requests a second; 0 until Envoy without a limit has been measured.
	openRate float64
}

// round measures each contestant once.
func (r *runner) round(ctx context.Context, n int, all []contestant) (round, error) {
	result := round{}
	for i, c := range all {
		fmt.Fprintf(r.progress, "round %d of %d, %2d of %d: %-8s %-52s ", n, r.plan.Rounds, i+1, len(all), c.Scene, c.Title)
		f, err := r.measure(ctx, c)
		if err != nil {
			fmt.Fprintln(r.progress)
			return nil, fmt.Errorf("%s: %w", c.id(), err)
		}
		fmt.Fprintf(r.progress, "%6.0f/s %7.1f µs\n", f.Rate, f.EnvoyCPU+f.OtherCPU)
		result[c.id()] = f
	}
	return result, nil
}

func (r *runner) measure(ctx context.Context, c contestant) (f figures, err error) {
	w, err := r.shop.start(ctx, c)
	if err != nil {
		return f, err
	}
	defer w.stop()
	l := newLoad(c.Scene, w.envoy)
	if _, err = l.Closed(ctx, r.plan.Warm); err != nil { // Its answers may differ: the first ones of a refused key are allowed.
		return f, err
	}
	if f, err = w.closed(ctx, c, l, r.plan.Closed); err != nil {
		return f, err
	}
	if c.Scene == proxied {
		f.OpenRate = gauge.Rounded(r.pace(c, f.Rate))
		result, err := l.Open(ctx, f.OpenRate, r.plan.Open)
		if err == nil {
			err = c.expects(result)
		}
		if err != nil {
			return f, err
		}
		f.P50, f.P99, f.P999 = milliseconds(result, 0.5), milliseconds(result, 0.99), milliseconds(result, 0.999)
	}
	f.EnvoyMB, f.OtherMB, err = w.resident()
	return f, err
}

// pace is the rate of the open loop: a third of what Envoy does without a limit, about half of what it does with Weir. Who cannot
// do even that at ease is asked for half of what it can; its latencies are then at another load than those of the rest.
func (r *runner) pace(c contestant, capacity float64) float64 {
	if c.part == nothing && r.openRate == 0 {
		r.openRate = capacity / 3
	}
	if r.openRate == 0 || r.openRate > capacity*0.8 {
		return capacity / 2
	}
	return r.openRate
}

// closed measures the closed loop, and whether the filter did what it is measured for. The processor time is read closest to
// the load, because reading counters costs Envoy some.
func (w *world) closed(ctx context.Context, c contestant, l load.Load, during time.Duration) (f figures, err error) {
	before, err := w.count(ctx, c)
	if err != nil {
		return f, err
	}
	start, err := w.work()
	if err != nil {
		return f, err
	}
	result, err := l.Closed(ctx, during)
	if err != nil {
		return f, err
	}
	end, err := w.work()
	if err != nil {
		return f, err
	}
	if err := c.expects(result); err != nil {
		return f, err
	}
	if err := w.prove(ctx, c, before.proof, result.Answered()); err != nil {
		return f, err
	}
	after, err := w.count(ctx, c)
	if err != nil {
		return f, err
	}
	n := float64(result.Answered())
	f.Rate = gauge.Rounded(n / result.Duration.Seconds())
	f.EnvoyCPU = gauge.Rounded(float64((end.envoy - start.envoy).Microseconds()) / n)
	f.OtherCPU = gauge.Rounded(float64((end.others - start.others).Microseconds()) / n)
	f.Foreign = gauge.Rounded(max(0, (end.foreign()-start.foreign()).Seconds()/result.Duration.Seconds()))
	f.Calls = gauge.Rounded(float64(after.calls-before.calls) / n)
	f.Ladder = gauge.Rounded(float64(after.ladder-before.ladder) / n)
	if c.inHand && f.Calls > 0.05 {
		return f, fmt.Errorf("%.0f calls for %.0f requests: their tokens were not in hand", f.Calls*n, n)
	}
	return f, nil
}

// expects says what is wrong with the answers.
func (c contestant) expects(r load.Result) error {
	if n := r.Answered(); n == 0 || r.Statuses[c.status] != n {
		return fmt.Errorf("every answer must be %d, there were (by status) %v", c.status, r.Statuses)
	}
	return nil
}

// counts are Envoy's counters: proof matches the contestant's, ladder what Weir's failure ladder decided.
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

// counter sums the counters and gauges of Envoy's whose names match; one that has never counted is not there and is 0.
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
			return 0, fmt.Errorf("Envoy's counter %q: %w", line, err)
		}
		sum += n
	}
	return sum, nil
}

// prove waits until the contestant's proof has grown by n: Weir's filter reports with its tick. The empty filter counts
// nothing, so of it there is only proof that it runs.
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

// zipf draws numbers below n, each k with a probability that falls as 1/(k+1); always the same ones.
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
