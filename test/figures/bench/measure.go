package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/weir-proxy/weir/test/figures"
	"github.com/weir-proxy/weir/test/figures/bench/load"
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
	// Curve is how long each rate of the curve lasts, Idle how long Envoys without requests are
	// watched.
	Curve time.Duration `json:"curve_ns"`
	Idle  time.Duration `json:"idle_ns"`
}

// reading has the figures of one contestant in one round.
type reading struct {
	// Rate is the answers a second of the closed loop, in its cheapest slice: the contestant's
	// capacity on one processor.
	Rate float64 `json:"requests_per_second"`
	// EnvoyCPU and OtherCPU are the processor time for each answer in that slice in microseconds,
	// of Envoy and of all other processes.
	EnvoyCPU float64 `json:"envoy_cpu_us"`
	OtherCPU float64 `json:"other_cpu_us"`
	// LoadCPU is the time of the load and of the service behind Envoy. It counts for no contestant.
	LoadCPU float64 `json:"load_cpu_us"`
	// Foreign is how many processors worked on average for other programs, while the contestant was
	// measured.
	Foreign float64 `json:"foreign_processors"`
	// Calls is the number of Envoy's calls to the control plane or the service of limits, for each
	// answer.
	Calls float64 `json:"calls"`
	// Ladder is the share of answers, 0 to 1, that Weir's failure ladder decided, because the
	// control plane was too slow; Refused is the share that was answered with 429.
	Ladder  float64 `json:"ladder"`
	Refused float64 `json:"refused"`
	// Open are the open loops, in ascending order of their rates.
	Open []paced `json:"open,omitempty"`
	// EnvoyMB and OtherMB are resident memory after all that, in millions of bytes.
	EnvoyMB float64 `json:"envoy_mb"`
	OtherMB float64 `json:"other_mb"`
	// IdleEnvoy and IdleOther are the use of Envoy and of all other processes without requests, in
	// percent of a processor.
	IdleEnvoy float64 `json:"idle_envoy_percent,omitempty"`
	IdleOther float64 `json:"idle_other_percent,omitempty"`
}

// cost returns the processor time for a request that counts for the contestant.
func (f reading) cost() float64 { return f.EnvoyCPU + f.OtherCPU }

// round has the figures of each contestant by its id.
type round map[string]reading

// runner measures rounds.
type runner struct {
	shop     *workshop
	plan     plan
	progress io.Writer
	// retries is how often a scene may be tried again.
	retries int
	// openRates are the rates of the open loops, in requests a second; a scene has none until the
	// contestant that it depends on has been measured.
	openRates map[scene]float64
	// running are the contestants that have been started.
	running []*world
}

// round measures each contestant, scene by scene. A scene that fails is tried again if it may: a
// run of twenty minutes does not end because the machine stood still for a moment.
func (r *runner) round(ctx context.Context, n int, all []contestant) (round, error) {
	result := round{}
	for _, s := range scenes() {
		some := inScene(all, s)
		if len(some) == 0 {
			continue
		}
		measured, err := r.scene(ctx, n, s, some)
		for again := 0; err != nil && again < r.retries && ctx.Err() == nil; again++ {
			fmt.Fprintf(r.progress, "round %d of %d: %s: %v: once more\n", n, r.plan.Rounds, s, err)
			measured, err = r.scene(ctx, n, s, some)
		}
		if err != nil {
			return nil, err
		}
		maps.Copy(result, measured)
	}
	return result, nil
}

// scene measures the contestants of a scene. They run side by side and take turns in the closed
// loop and on the curve, so that disturbances of the machine hit all of them alike. For latency
// each runs alone.
func (r *runner) scene(ctx context.Context, n int, s scene, all []contestant) (round, error) {
	result, measure := round{}, r.takeTurns
	switch s {
	case idle:
		measure = r.watchIdle
	case curve:
		measure = r.climb
	}
	if err := r.together(ctx, n, all, result, measure); err != nil {
		return nil, err
	}
	if !stages[s].opens {
		return result, nil
	}
	return result, r.openAll(ctx, n, all, result)
}

func (r *runner) say(n int, what string, c contestant, how string) {
	fmt.Fprintf(r.progress, "round %d of %d: %-8s %-8s %-52s %s\n", n, r.plan.Rounds, what, c.Scene, c.Title, how)
}

// measurement measures contestants that all run.
type measurement func(ctx context.Context, n int, trials []*trial, result round) error

// together starts some contestants, measures and stops them.
func (r *runner) together(ctx context.Context, n int, all []contestant, result round, measure measurement) error {
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
	return measure(ctx, n, trials, result)
}

// takeTurns measures the closed loop of each.
func (r *runner) takeTurns(ctx context.Context, n int, trials []*trial, result round) error {
	for spent := time.Duration(0); spent < r.plan.Closed; {
		for _, t := range trials {
			if err := t.turn(ctx); err != nil {
				return fmt.Errorf("%s: %w", t.id(), err)
			}
			r.say(n, "turn", t.contestant, fmt.Sprintf("%6.0f/s %7.1f µs", t.best.Rate, t.best.cost()))
		}
		spent += time.Duration(stages[trials[0].Scene].perTurn) * r.plan.Slice
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

// stop ends all that runs.
func (r *runner) stop() {
	for _, w := range r.running {
		w.stop()
	}
	r.running = nil
}

// trial is a contestant that runs, with its observations.
type trial struct {
	contestant
	by    *runner
	world *world
	load  load.Load
	// best has the rate and the processor times of the cheapest slice, and the share of its turn
	// that the failure ladder decided.
	best reading
	// answered, refused, took, foreign, calls and ladder are sums over all slices.
	answered, refused int
	took, foreign     time.Duration
	calls, ladder     int
}

// begin starts a contestant and warms it up, unless it is to have no requests.
func (r *runner) begin(ctx context.Context, c contestant) (*trial, error) {
	w, err := r.shop.start(ctx, c)
	if err != nil {
		return nil, err
	}
	r.running = append(r.running, w)
	t := &trial{contestant: c, by: r, world: w, load: r.shop.load(c.load(), w.envoy)}
	if c.Scene != idle {
		// Its answers may differ: the first ones of a refused key are allowed.
		_, err = t.closed(ctx, r.plan.warm(c.Scene))
	}
	return t, err
}

// warm returns the time for which a contestant warms up in a scene: of a thousand busy keys, the
// rare keys take a while until they have their leases.
func (p plan) warm(s scene) time.Duration { return p.Warm * time.Duration(1+stages[s].settles) }

// closed and open ask in a loop. The next one goes on with the keys where this one ends.
func (t *trial) closed(ctx context.Context, during time.Duration) (load.Result, error) {
	result, err := t.load.Closed(ctx, during)
	t.load.First += result.Answered()
	return result, err
}

func (t *trial) open(ctx context.Context, rate float64, during time.Duration) (load.Result, error) {
	t.load.Overtime = during
	result, err := t.load.Open(ctx, rate, during)
	t.load.First += result.Answered()
	return result, err
}

// turn watches some slices, and whether the filter did the measured work.
func (t *trial) turn(ctx context.Context) error {
	if t.Scene != direct {
		if _, err := t.closed(ctx, t.by.plan.warm(t.Scene)); err != nil {
			return err
		}
	}
	before, err := t.world.count(ctx, t.contestant)
	if err != nil {
		return err
	}
	answered := t.answered
	var slices []reading
	for range stages[t.Scene].perTurn {
		slice, err := t.ask(ctx, t.by.plan.Slice)
		if err != nil {
			return err
		}
		slices = append(slices, slice)
	}
	if err := t.world.prove(ctx, t.contestant, before.proof, t.answered-answered); err != nil {
		return err
	}
	after, err := t.world.count(ctx, t.contestant)
	t.calls += after.calls - before.calls
	t.ladder += after.ladder - before.ladder
	for _, slice := range slices {
		slice.Ladder = float64(after.ladder-before.ladder) / float64(t.answered-answered)
		if t.best.Rate == 0 || slice.counts(t.best) {
			t.best = slice
		}
	}
	return err
}

// counts reports whether a slice counts rather than another slice: the cheaper slice counts. But
// the failure ladder's decisions are cheap and are not to be measured, so a slice with clearly
// fewer of them counts first.
func (f reading) counts(other reading) bool {
	if less := other.Ladder - f.Ladder; less > 0.01 || less < -0.01 {
		return less > 0
	}
	return f.cost() < other.cost()
}

// ask asks in a closed loop. The processor time is read closest to the load, because reading
// counters costs Envoy some.
func (t *trial) ask(ctx context.Context, during time.Duration) (reading, error) {
	result, spent, err := t.spend(func() (load.Result, error) { return t.closed(ctx, during) })
	if err != nil {
		return reading{}, err
	}
	n := float64(result.Answered())
	t.answered += result.Answered()
	t.refused += result.Statuses[429]
	return reading{
		Rate:     figures.Rounded(n / result.Duration.Seconds()),
		EnvoyCPU: micros(spent.envoy, n), OtherCPU: micros(spent.others, n), LoadCPU: micros(spent.self, n),
	}, nil
}

// spend returns the cost of a load. It fails if the answers are not as they should be.
func (t *trial) spend(ask func() (load.Result, error)) (load.Result, work, error) {
	start, err := t.world.work(t.by.running)
	if err != nil {
		return load.Result{}, start, err
	}
	result, err := ask()
	if err != nil {
		return result, start, err
	}
	end, err := t.world.work(t.by.running)
	if err != nil {
		return result, end, err
	}
	spent := end.since(start)
	t.took += result.Duration
	t.foreign += spent.foreign
	return result, spent, t.expects(result)
}

// micros returns a time for each of n, in microseconds.
func micros(d time.Duration, n float64) float64 {
	return figures.Rounded(float64(d.Nanoseconds()) / 1000 / n)
}

// processors returns the average number of processors that a processor time takes. A difference of
// two readings may be a little below zero.
func processors(spent, during time.Duration) float64 {
	return figures.Rounded(max(0, spent.Seconds()/during.Seconds()))
}

// figures returns the figures of the closed loop, and the memory after it.
func (t *trial) figures() (f reading, err error) {
	f, n := t.best, float64(t.answered)
	f.Foreign = processors(t.foreign, t.took)
	f.Calls, f.Ladder = figures.Rounded(float64(t.calls)/n), figures.Rounded(float64(t.ladder)/n)
	f.Refused = figures.Rounded(float64(t.refused) / n)
	if t.inHand && f.Calls > 0.05 {
		return f, fmt.Errorf("%d calls for %.0f requests: their tokens were not in hand", t.calls, n)
	}
	f.EnvoyMB, f.OtherMB, err = t.world.resident()
	return f, err
}

// expects returns an error if the answers are wrong.
func (c contestant) expects(r load.Result) error {
	n, expected := r.Answered(), r.Statuses[c.status]
	if stages[c.Scene].refuses && c.part != nothing && c.part != emptyWasm {
		expected += r.Statuses[429]
	}
	if n == 0 || expected != n {
		return fmt.Errorf("every answer must be %d, there were (by status) %v", c.status, r.Statuses)
	}
	return nil
}
