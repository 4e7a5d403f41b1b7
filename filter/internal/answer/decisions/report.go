package decisions

import (
	"github.com/weir-proxy/weir/filter/internal/base/report"
	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// callersApart is the interval of reports of callers; refusals are reported at once.
const callersApart = 5 * quota.Second

// New makes the Recorder of a VM of a node. Random is the VM's own number.
func New(random uint64) *Recorder {
	return &Recorder{random: rpc.NewRand(random), message: wire.Decisions{
		Counts:   make([]wire.RefusedCount, 0, wire.MaxCounts),
		Refusals: make([]wire.Refusal, 0, wire.MaxRefusals), Callers: make([]wire.CallerCount, 0, wire.MaxCallers),
	}}
}

// NextReport implements report.Part.
func (s *Recorder) NextReport(now quota.Instant) quota.Instant {
	switch {
	case len(s.message.Counts) > 0:
		return now
	case len(s.message.Callers) > 0:
		return s.callersDue
	}
	return quota.Forever
}

// AddTo implements report.Part.
func (s *Recorder) AddTo(m *wire.Report, now quota.Instant, _ *ruleset.Rules) {
	for i := range s.message.Refusals {
		s.message.Refusals[i].Ago = min(max(quota.Span(now-s.at[i]), 0), quota.Hour)
	}
	s.sent = s.message
	callers := len(s.message.Callers) > 0 && now >= s.callersDue
	if callers {
		s.callersDue = now + quota.Instant(callersApart)
	} else {
		s.sent.Callers = nil
	}
	m.Decisions = &s.sent
	s.clearSamples(callers)
}

// EndReport implements report.Part. Samples that did not arrive are lost.
func (s *Recorder) EndReport(report.End, quota.Instant) {}
