package adaptive_test

import (
	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/upstreamtest"
)

// found is the limit of this package, as an Envoy with several workers has it.
type found struct {
	config  adaptive.Config
	limit   adaptive.Limit
	shed    adaptive.Shed
	classes int
	workers []worker
	turn    int
	planted fault

	window    adaptive.Window
	began     quota.Instant
	load      adaptive.Load
	loadBegan quota.Instant
	last      quota.Instant

	// values are the limits at the end of each window.
	values []upstreamtest.Value
}

type worker struct {
	window adaptive.Window
	load   adaptive.Load
}

// fault is a fault that a test plants.
type fault int

const (
	none fault = iota
	ownWaitCounts
	oneWorkerAlone
	twice
	forgetful
	classBlind
	neverFalls
	refusalsUnseen
)

func newFound(workers int) *found {
	c := adaptive.Config{Min: 20, Max: 2000, Percentile: 90}
	return &found{config: c, limit: adaptive.Start(c), classes: len(upstreamtest.Classes),
		workers: make([]worker, workers)}
}

func (f *found) Admit(_ quota.Instant, req *upstreamtest.Request, inFlight int) bool {
	w := &f.workers[f.turn%len(f.workers)]
	f.turn++
	r := adaptive.Rank{Class: uint8(req.Class), Cohort: req.Caller}
	if f.planted == classBlind {
		r.Class = uint8(f.classes - 1)
	}
	w.load.Arrived[r.Class]++
	if f.shed.Sheds(r, f.classes) {
		w.load.Shed++
		return false
	}
	if int64(inFlight) >= f.limit.Room(r, &f.shed, f.classes, f.config) {
		if f.planted != refusalsUnseen {
			w.load.Refused++
			w.window.Refused++
		}
		return false
	}
	return true
}

func (f *found) Ended(_ quota.Instant, _ *upstreamtest.Request, latency quota.Span) {
	if f.planted == ownWaitCounts {
		latency += quota.Span(f.limit.Value) * 2 * quota.Millisecond
	}
	f.turn++
	f.workers[f.turn%len(f.workers)].window.Latency.Add(latency)
}

func (f *found) Tick(now quota.Instant, inFlight int) {
	f.window.Held += int64(inFlight) * int64(now-f.last)
	f.last = now
	for i := range f.workers {
		w := &f.workers[i]
		if f.planted == oneWorkerAlone && i > 0 {
			*w = worker{}
			continue
		}
		f.window.Merge(&w.window)
		f.load.Merge(&w.load)
		if f.planted == twice {
			continue
		}
		*w = worker{}
	}
	if passed := quota.Span(now - f.loadBegan); passed >= 100*quota.Millisecond {
		f.shed.Next(f.classes, 1, &f.load, -1, passed)
		f.load, f.loadBegan = adaptive.Load{}, now
	}
	lasted := quota.Span(now - f.began)
	if !f.limit.Due(&f.window, lasted) {
		return
	}
	before := f.limit.Value
	f.limit.Next(f.config, &f.window, lasted)
	if f.planted == neverFalls {
		f.limit.Value = max(f.limit.Value, before)
	}
	if f.planted == forgetful && len(f.values)%20 == 19 {
		f.limit = adaptive.Start(f.config)
	}
	f.window, f.began = adaptive.Window{}, now
	f.values = append(f.values, upstreamtest.Value{At: now, Limit: f.limit.Value})
}
