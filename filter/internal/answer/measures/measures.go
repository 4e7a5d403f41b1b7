// Package measures reports a worker's measurements of policies to the control plane: requests in
// flight, the use of limits, decisions, and the requests that candidates and policies in shadow
// would have refused. A worker without measurements reports nothing.
package measures

import (
	"github.com/weir-proxy/weir/filter/internal/base/report"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// placesOfAll is the number of places in each message that are kept for all requests, a place
	// for each version in use.
	placesOfAll = 4
)

// Flights are the requests in flight, which are measured when a report leaves.
type Flights interface {
	// Unmeasured reports whether Measure has something.
	Unmeasured() bool
	// Measure calls each for every policy with requests in flight: the sum of their time in flight
	// since an instant, and the highest use of a limit in percent.
	Measure(now quota.Instant, each func(policy string, busy quota.Span, since quota.Instant, used int64))
}

// Recorder has the measurements of one VM. Each worker has its own Recorder: the control plane adds
// them up. Make a Recorder with New.
type Recorder struct {
	flights Flights
	message wire.Measures
	// sent is the message that leaves. It shares the memory of message until it is written.
	sent wire.Measures
	// places are the indexes of policies in the message, by name.
	places map[string]int
	// begun is when the measured time of the message began.
	begun quota.Instant
}

// New makes the Recorder of a VM.
func New(flights Flights) *Recorder {
	return &Recorder{flights: flights, places: make(map[string]int), begun: quota.Forever}
}

// Decided notes the counts of a policy: the requests that its candidate, or the policy in shadow,
// would have refused or left undetermined; the policy's decisions, the decisions that waited, and
// the decisions without its bucket; and the highest use of its fullest bucket, in percent. Version
// is the version of its policy set.
func (s *Recorder) Decided(policy []byte, version uint64, counts *ruleset.Counts, used int64) {
	if *counts == (ruleset.Counts{}) && used == 0 {
		return
	}
	if one := s.measureOf(string(policy), version); one != nil {
		one.CandidateRefused += int64(counts[ruleset.CountCandidateRefused])
		one.ShadowRefused += int64(counts[ruleset.CountShadowRefused])
		one.CandidateUndetermined += int64(counts[ruleset.CountCandidateUndetermined])
		one.ShadowUndetermined += int64(counts[ruleset.CountShadowUndetermined])
		one.Refused += int64(counts[ruleset.CountRefused])
		one.Decided += int64(counts[ruleset.CountRefused]) + int64(counts[ruleset.CountAllowed])
		one.Unsure += int64(counts[ruleset.CountUnsure])
		one.Waited += int64(counts[ruleset.CountWaited])
		one.Held += int64(counts[ruleset.CountHeld])
		one.Used = min(max(one.Used, used), wire.MaxUsed)
	}
}

// addFlown adds the time for which requests of a policy were in flight.
func (s *Recorder) addFlown(policy string, busy quota.Span, since quota.Instant, used int64) {
	if one := s.measureOf(policy, 0); one != nil {
		one.Busy += int64(busy / quota.Millisecond)
		one.Used = min(max(one.Used, used), wire.MaxUsed)
		s.begun = min(s.begun, since)
	}
}

// measureOf returns the measure of a policy of a version in the next message, nil beyond
// wire.MaxMeasures. Version 0 means any version.
func (s *Recorder) measureOf(policy string, version uint64) *wire.Measure {
	at, found := s.places[policy]
	if found && version != 0 && s.message.Items[at].Version == 0 {
		s.message.Items[at].Version = version
	}
	if found && version != 0 && s.message.Items[at].Version != version { // This is rare: two versions are in use.
		for at = 0; at < len(s.message.Items); at++ {
			if one := &s.message.Items[at]; one.Version == version && string(one.Policy) == policy {
				return one
			}
		}
		found = false
	}
	if !found {
		at = len(s.message.Items)
		if at == wire.MaxMeasures || at >= wire.MaxMeasures-placesOfAll && policy != wire.AllRequests {
			return nil
		}
		s.places[policy] = at
		s.message.Items = append(s.message.Items, wire.Measure{Policy: []byte(policy), Version: version})
	}
	return &s.message.Items[at]
}

// NextReport implements report.Part.
func (s *Recorder) NextReport(now quota.Instant) quota.Instant {
	if len(s.message.Items) == 0 && !s.flights.Unmeasured() {
		return quota.Forever
	}
	return now
}

// AddTo implements report.Part.
func (s *Recorder) AddTo(m *wire.Report, now quota.Instant, _ *ruleset.Rules) {
	s.flights.Measure(now, s.addFlown)
	if len(s.message.Items) == 0 {
		return
	}
	s.sent = s.message
	s.sent.Covers = min(max(quota.Span(now-s.begun), 0), wire.MaxCovers)
	m.Measures = &s.sent
	s.message.Items, s.begun = s.message.Items[:0], quota.Forever
	clear(s.places)
}

// EndReport implements report.Part. Measurements that did not arrive are lost.
func (s *Recorder) EndReport(report.End, quota.Instant) {}
