package main

import (
	"os"
	"time"

	"github.com/weir-proxy/weir/test/bench/gauge"
)

// work is processor time: of a contestant's Envoy, of its other processes, and of everybody who takes no part.
type work struct{ envoy, others, foreign time.Duration }

// work is what a contestant has done so far, where these run.
func (w *world) work(running []*world) (n work, err error) {
	if n.foreign, err = gauge.EverybodysTime(); err != nil {
		return n, err
	}
	self, err := gauge.ProcessorTime(os.Getpid())
	if err != nil {
		return n, err
	}
	n.foreign -= self
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

// used is the processor time that a contestant's processes have used.
func (w *world) used() (envoy, others time.Duration, err error) {
	if envoy, err = gauge.ProcessorTime(w.envoy.PID()); err != nil {
		return 0, 0, err
	}
	for _, p := range w.others {
		t, err := gauge.ProcessorTime(p.PID())
		if err != nil {
			return 0, 0, err
		}
		others += t
	}
	return envoy, others, nil
}

func (w *world) resident() (envoy, others float64, err error) {
	if envoy, err = gauge.Resident(w.envoy.PID()); err != nil {
		return 0, 0, err
	}
	for _, p := range w.others {
		mb, err := gauge.Resident(p.PID())
		if err != nil {
			return 0, 0, err
		}
		others += mb
	}
	return envoy, others, nil
}
