// Package measures reports to the control plane what a worker has measured of policies: requests in
// flight, how full limits were, what was decided, and what candidates and policies in shadow would
// have refused. A worker on which no policy has any of that reports nothing.
package measures

import (
	"github.com/weir-proxy/weir/filter/internal/base/report"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// placesOfAll are kept in each message for all requests, of each version in use.
	placesOfAll = 4
)

// Flights are the requests in flight, which are measured when a report leaves.
type Flights interface {
	// Unmeasured reports whether Measure has something.
	Unmeasured() bool
	// Measure calls each for every policy with requests in flight: for how long they were since an
	// instant, added up, and how much of a limit was used at most, in percent.
	Measure(now quota.Instant, each func(policy string, busy quota.Span, since quota.Instant, used int64))
}

// Recorder is what one VM has to report. Each worker has its own: the control plane adds them up.
// Make one with New.
type Recorder struct {
	flights Flights
	message wire.Measures
	// sent is the message that leaves. It shares the memory of message until it is written.
	sent wire.Measures
	// places are those of policies in the message, by name.
	places map[string]int
	// begun is when the measured time of the message began.
	begun quota.Instant
}

// New makes the Recorder of a VM.
func New(flights Flights) *Recorder {
	return &Recorder{flights: flights, places: make(map[string]int), begun: quota.Forever}
}

// Decided notes what was counted for a policy: the requests that its candidate would have refused,
// those that the policy would have, in shadow, and those of which they do not know it; what the
// policy decided, which waited, and which it decided without its bucket; and how much of the
// fullest bucket was used at most, in percent. Version is that of its policy set.
func (s *Recorder) Decided(policy []byte, version uint64, counts *ruleset.Counts, used int64) {
	if *counts == (ruleset.Counts{}) && used == 0 {
		return
	}
	if one := s.of(string(policy), version); one != nil {
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

// addFlown notes how long requests of a policy were in flight.
func (s *Recorder) addFlown(policy string, busy quota.Span, since quota.Instant, used int64) {
	if one := s.of(policy, 0); one != nil {
		one.Busy += int64(busy / quota.Millisecond)
		one.Used = min(max(one.Used, used), wire.MaxUsed)
		s.begun = min(s.begun, since)
	}
}

// of is the measure of a policy of a version in the next message, nil beyond the bound; of any
// version for 0.
func (s *Recorder) of(policy string, version uint64) *wire.Measure {
	at, found := s.places[policy]
	if found && version != 0 && s.message.Items[at].Version == 0 {
		s.message.Items[at].Version = version
	}
	if found && version != 0 && s.message.Items[at].Version != version { // Seldom: two are in use.
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

// EndReport implements report.Part. What did not arrive is lost.
func (s *Recorder) EndReport(report.End, quota.Instant) {}
