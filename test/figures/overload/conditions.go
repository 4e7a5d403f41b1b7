package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/weir-proxy/weir/test/figures"
)

const (
	// mostLate is the largest delay with which one request in a hundred may be sent: a tenth of the
	// time that the service takes.
	mostLate = takes / 10
	// mostForeign is the part of the processors that other programs may use.
	mostForeign = 0.1
)

// conditions are the circumstances of a course.
type conditions struct {
	// late are how much after their times the requests were sent.
	late []time.Duration
	// foreign is the part of the processors that other programs used meanwhile.
	foreign float64
}

// flaw says why the figures of a course are worth nothing; "" if they are.
func (c conditions) flaw() string {
	late := append([]time.Duration{0}, c.late...)
	slices.Sort(late)
	if p99 := late[len(late)*99/100]; p99 > mostLate {
		return fmt.Sprintf("one request in a hundred was sent %v or more after its time, allowed are %v: "+
			"give it a machine with more processors, or a quiet one", p99.Round(time.Millisecond), mostLate)
	}
	if c.foreign > mostForeign {
		return fmt.Sprintf("other programs used %.0f %% of the processors, allowed are %.0f %%: "+
			"end them and measure again", 100*c.foreign, 100*mostForeign)
	}
	return ""
}

// spent returns the processor time of other programs than this one and Envoy so far.
func spent(envoy int) (time.Duration, error) {
	all, err := figures.EverybodysTime()
	if err != nil {
		return 0, err
	}
	for _, pid := range []int{os.Getpid(), envoy} {
		own, err := figures.ProcessorTime(pid)
		if err != nil {
			return 0, err
		}
		all -= own
	}
	return all, nil
}

// observe does something, and returns the part of the processors that other programs used
// meanwhile.
func observe(envoy int, do func()) (foreign float64, err error) {
	before, err := spent(envoy)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	do()
	passed := time.Since(begin)
	after, err := spent(envoy)
	return float64(after-before) / float64(passed) / float64(runtime.NumCPU()), err
}
