package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/weir-proxy/weir/test/figures"
)

// plan describes the measurements and their lengths.
type plan struct {
	Pushes int
	Push   []fleetSize
	Polls  int
	// Rounds of the calls, of the crowds and of the ratio.
	Rounds int
	Calls  []paced
	Crowds []paced
	Fleets []fleet
	Each   time.Duration
	Keys   []int
	// KeyCalls is the calls a second, of 64 buckets each, that store the keys.
	KeyCalls float64
	// Connections and ratioKeys of the ratio.
	Connections, RatioKeys int
}

// fleetSize is how many nodes poll how many replicas.
type fleetSize struct{ Nodes, Replicas int }

// paced is a drive with its calls a second.
type paced struct {
	drive
	Rate float64
}

// full is how many buckets one call can ask for.
const full = 64

var usual = plan{
	Pushes: 10, Push: []fleetSize{{100, 1}, {100, 2}, {1000, 1}, {1000, 2}}, Polls: 1000, Rounds: 3,
	Calls: []paced{
		{drive{10, 2000, 1}, 500}, {drive{100, 2000, 1}, 500}, {drive{1000, 2000, 1}, 500},
		{drive{100, 32_000, 4}, 400}, {drive{100, 32_000, 16}, 300},
		{drive{10, 32_000, full}, 150}, {drive{100, 32_000, full}, 150}, {drive{1000, 32_000, full}, 150},
	},
	Crowds: []paced{{drive{1000, 4000, 1}, 1000}, {drive{1000, 20_000, 1}, goalRate}, {drive{1000, 100_000, 1}, 0}},
	Fleets: []fleet{
		{10, 10_000, 1000, false}, {100, 10_000, 1000, false}, {1000, 10_000, 1000, false},
		{1000, 100_000, 1000, false}, {100, 100, 1000, false}, {1000, 100, 1000, false},
		{1000, 100_000, 1000, true}, {1000, 100_000, 3000, true},
	},
	Each: 3 * time.Second, Keys: []int{10_000, 100_000, 1_000_000}, KeyCalls: 700, Connections: 8, RatioKeys: 100_000,
}

var brief = plan{
	Pushes: 2, Push: []fleetSize{{20, 1}, {20, 2}}, Polls: 50, Rounds: 1,
	Calls:  []paced{{drive{10, 1000, 1}, 200}, {drive{20, 1000, full}, 50}},
	Crowds: []paced{{drive{20, 100, 1}, 200}, {drive{20, 1000, 1}, 0}},
	Fleets: []fleet{{20, 100, 200, false}, {20, 1000, 200, true}},
	Each:   500 * time.Millisecond, Keys: []int{1000, 20_000}, KeyCalls: 70, Connections: 2, RatioKeys: 5000,
}

// lab measures.
type lab struct {
	root, redisCPUs string
	plan            plan
	progress        io.Writer
}

func (l *lab) say(format string, a ...any) { fmt.Fprintf(l.progress, format+"\n", a...) }

// in has f work in a world of its own.
func (l *lab) in(
	ctx context.Context, replicas int, through func(string) (string, error), f func(w *world) error,
) error {
	w, err := start(ctx, l.root, l.redisCPUs, replicas, through)
	if err != nil {
		return err
	}
	defer w.stop()
	return f(w)
}

// quietly measures again, a few times, if too many calls failed.
func (l *lab) quietly(ctx context.Context, measure func() (point, error)) (p point, err error) {
	for range 5 {
		if p, err = measure(); !errors.Is(err, errLate) || ctx.Err() != nil {
			break
		}
		l.say("%v: once more", err)
		time.Sleep(2 * time.Second) // The control plane leaves Redis alone for a while.
	}
	return p, err
}

// pushed is how long policy sets took to reach all nodes, and until the control plane knew it, in
// milliseconds.
type pushed struct {
	Nodes           int     `json:"nodes"`
	Replicas        int     `json:"replicas"`
	Pushes          int     `json:"pushes"`
	ReachedP50      float64 `json:"reached_p50_ms"`
	ReachedP99      float64 `json:"reached_p99_ms"`
	AcknowledgedP50 float64 `json:"acknowledged_p50_ms"`
	AcknowledgedP99 float64 `json:"acknowledged_p99_ms"`
}

func (l *lab) pushes(ctx context.Context, r *report) error {
	for _, size := range l.plan.Push {
		err := l.in(ctx, size.Replicas, nil, func(w *world) error {
			reached, acknowledged, err := w.push(ctx, size.Nodes, l.plan.Pushes)
			if err != nil {
				return err
			}
			r.Pushes = append(r.Pushes, pushed{
				size.Nodes, size.Replicas, l.plan.Pushes, milliseconds(reached.at(.5)), milliseconds(reached.at(.99)),
				milliseconds(acknowledged.at(.5)), milliseconds(acknowledged.at(.99)),
			})
			l.say("push to %4d nodes, %d replicas: acknowledged by 99 %% within %s",
				size.Nodes, size.Replicas, acknowledged.at(.99).Round(time.Millisecond))
			return nil
		})
		if err != nil {
			return fmt.Errorf("push to %d nodes: %w", size.Nodes, err)
		}
	}
	return nil
}

// polling is the cost of waiting polls: resident memory of the control plane without and with them,
// in millions of bytes, and the processor time of the control plane and Redis meanwhile, in
// processors.
type polling struct {
	Nodes   int     `json:"nodes"`
	Without float64 `json:"without_mb"`
	With    float64 `json:"with_mb"`
	Plane   float64 `json:"plane_processors"`
	Redis   float64 `json:"redis_processors"`
}

func (l *lab) polls(ctx context.Context, r *report) error {
	return l.in(ctx, 1, nil, func(w *world) error {
		if _, err := w.apply(ctx, lasting); err != nil {
			return err
		}
		p := polling{Nodes: l.plan.Polls}
		var err error
		if p.Without, err = figures.Resident(w.planes[0].PID()); err != nil {
			return err
		}
		arrived := make(chan int, l.plan.Polls)
		waiting := w.poll(ctx, l.plan.Polls, func(node int, _ uint64) { arrived <- node })
		for range l.plan.Polls {
			select {
			case <-arrived:
			case <-time.After(patience):
				return fmt.Errorf("%d nodes have polled, not %d", len(arrived), l.plan.Polls)
			}
		}
		time.Sleep(l.plan.Each / 4) // Until the next polls of all have arrived.
		before, err := w.work()
		if err != nil {
			return err
		}
		time.Sleep(l.plan.Each)
		after, err := w.work()
		if err != nil {
			return err
		}
		spent := after.since(before)
		seconds := l.plan.Each.Seconds()
		p.Plane = figures.Rounded(spent.plane.Seconds() / seconds)
		p.Redis = figures.Rounded(spent.redis.Seconds() / seconds)
		if p.With, err = figures.Resident(w.planes[0].PID()); err != nil {
			return err
		}
		r.Polls = p
		l.say("%d polls wait: %.0f kB each", p.Nodes, p.each())
		return waiting.end()
	})
}

// each returns the memory of one poll, in thousands of bytes.
func (p polling) each() float64 { return (p.With - p.Without) * 1000 / float64(p.Nodes) }

// inRounds measures all drives round by round, in one world; each round has them in their order.
func inRounds[T interface{ words() string }](
	ctx context.Context, l *lab, drives []paced,
	measure func(ctx context.Context, w *world, version uint64, d paced) (T, error),
) (rounds [][]T, err error) {
	err = l.in(ctx, 1, nil, func(w *world) error {
		version, err := w.apply(ctx, lasting)
		if err != nil {
			return err
		}
		rounds = make([][]T, l.plan.Rounds)
		for n := range rounds {
			for _, d := range drives {
				one, err := measure(ctx, w, version, d)
				if err != nil {
					return fmt.Errorf("%+v: %w", d, err)
				}
				rounds[n] = append(rounds[n], one)
				l.say("round %d of %d, %s", n+1, l.plan.Rounds, one.words())
			}
		}
		return nil
	})
	return rounds, err
}

func (l *lab) calls(ctx context.Context, r *report) (err error) {
	r.Calls, err = inRounds(ctx, l, l.plan.Calls, l.call)
	return err
}

// call measures calls at their rate.
func (l *lab) call(ctx context.Context, w *world, version uint64, c paced) (point, error) {
	return l.quietly(ctx, func() (point, error) { return c.open(ctx, w, version, c.Rate, l.plan.Each) })
}

func (l *lab) fleets(ctx context.Context, r *report) error {
	for _, f := range l.plan.Fleets {
		err := l.in(ctx, 1, nil, func(w *world) error {
			lived, err := f.live(ctx, w, l.plan.Each, 2*l.plan.Each)
			if err != nil {
				return err
			}
			r.Fleets = append(r.Fleets, lived)
			l.say("fleet of %4d nodes, %6d keys: %5.0f calls/s, p99 %.1f ms", f.Nodes, f.Keys, lived.Calls, lived.P99)
			return nil
		})
		if err != nil {
			return fmt.Errorf("%+v: %w", f, err)
		}
	}
	return nil
}

// ratioRound is buckets granted a second by a control plane, and by a client that sends Redis the
// same scripts and does nothing else.
type ratioRound struct {
	Plane   float64 `json:"plane_grants_per_second"`
	Bare    float64 `json:"bare_grants_per_second"`
	P99     float64 `json:"p99_ms"`
	Foreign float64 `json:"foreign_processors"`
}

func (l *lab) ratio(ctx context.Context, r *report) error {
	var rec recorder
	return l.in(ctx, 1, rec.record, func(w *world) error {
		defer rec.listener.Close()
		version, err := w.apply(ctx, lasting)
		if err != nil {
			return err
		}
		d := drive{l.plan.Connections, l.plan.RatioKeys, full}
		scripts, err := rec.during(func() error {
			_, err := l.quietly(ctx, func() (point, error) { return d.open(ctx, w, version, 500, 0) })
			return err
		})
		if err != nil {
			return err
		}
		return l.in(ctx, 1, nil, func(w *world) error { return l.race(ctx, r, w, d, scripts) })
	})
}

// race lets a control plane and a bare client work by turns.
func (l *lab) race(ctx context.Context, r *report, w *world, d drive, scripts [][]any) error {
	version, err := w.apply(ctx, lasting)
	if err != nil {
		return err
	}
	requests := d.load(w, version)
	for n := range 2*l.plan.Rounds + 1 {
		p, err := l.quietly(ctx, func() (point, error) {
			return d.closed(ctx, w, requests, l.plan.Each)
		})
		if err != nil {
			return err
		}
		bare, err := replay(ctx, w.address, scripts, l.plan.Connections, l.plan.Each)
		if err != nil {
			return err
		}
		if n == 0 { // The first meets buckets that do not exist yet.
			continue
		}
		one := ratioRound{p.Granted, figures.Rounded(bare * full), p.P99, p.Foreign}
		r.Ratio = append(r.Ratio, one)
		l.say("grants: control plane %.0f/s, bare %.0f/s: %.0f %%", one.Plane, one.Bare, 100*one.share())
	}
	return nil
}

func (r ratioRound) share() float64 { return r.Plane / r.Bare }

func (l *lab) keys(ctx context.Context, r *report) error {
	for _, n := range l.plan.Keys {
		err := l.in(ctx, 1, nil, func(w *world) error {
			version, err := w.apply(ctx, lasting)
			if err != nil {
				return err
			}
			p, err := l.quietly(ctx, func() (point, error) {
				return drive{10, n, full}.open(ctx, w, version, l.plan.KeyCalls, 0)
			})
			if err != nil {
				return err
			}
			r.Keys = append(r.Keys, p)
			l.say("%8d keys: Redis %6.1f MB, %.0f µs a call", n, p.RedisMB, p.RedisCPU)
			return nil
		})
		if err != nil {
			return fmt.Errorf("%d keys: %w", n, err)
		}
	}
	return nil
}
