package main

import (
	"os"
	"time"

	"github.com/weir-proxy/weir/test/bench/gauge"
)

// work is processor time: of Envoy, of the contestant's other processes, of this process, and of everybody.
type work struct{ envoy, others, self, all time.Duration }

// foreign is what nobody has used who takes part.
func (w work) foreign() time.Duration { return w.all - w.envoy - w.others - w.self }

func (w *world) work() (n work, err error) {
	if n.envoy, err = gauge.ProcessorTime(w.envoy.PID()); err != nil {
		return n, err
	}
	for _, p := range w.others {
		t, err := gauge.ProcessorTime(p.PID())
		if err != nil {
			return n, err
		}
		n.others += t
	}
	if n.self, err = gauge.ProcessorTime(os.Getpid()); err != nil {
		return n, err
	}
	n.all, err = gauge.EverybodysTime()
	return n, err
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
