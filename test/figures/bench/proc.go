package main

import (
	"os"
	"time"

	"github.com/weir-proxy/weir/test/figures"
)

// work is processor time: of a contestant's Envoy, of its other processes, of this process, which
// has the load and the service behind Envoy, and of all other programs.
type work struct{ envoy, others, self, foreign time.Duration }

func (n work) since(before work) work {
	return work{n.envoy - before.envoy, n.others - before.others, n.self - before.self, n.foreign - before.foreign}
}

// work returns the work of a contestant so far, while the given worlds run.
func (w *world) work(running []*world) (n work, err error) {
	n.foreign, err = figures.EverybodysTime()
	if err != nil {
		return n, err
	}
	n.self, err = figures.ProcessorTime(os.Getpid())
	if err != nil {
		return n, err
	}
	n.foreign -= n.self
	for _, one := range running {
		envoy, others, err := one.used()
		if err != nil {
			return n, err
		}
		n.foreign -= envoy + others
		if one == w {
			n.envoy, n.others = envoy, others
		}
	}
	return n, nil
}

// used returns the processor time that a contestant's processes have used.
func (w *world) used() (envoy, others time.Duration, err error) {
	return read(w, figures.ProcessorTime)
}

// resident returns the memory that they have, in millions of bytes.
func (w *world) resident() (envoy, others float64, err error) { return read(w, figures.Resident) }

// read reads a gauge of a contestant's Envoy, and the sum of it over all other processes.
func read[T time.Duration | float64](w *world, gauge func(pid int) (T, error)) (envoy, others T, err error) {
	envoy, err = gauge(w.envoy.PID())
	if err != nil {
		return 0, 0, err
	}
	for _, p := range w.others {
		one, err := gauge(p.PID())
		if err != nil {
			return 0, 0, err
		}
		others += one
	}
	return envoy, others, nil
}
