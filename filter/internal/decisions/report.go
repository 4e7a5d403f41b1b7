package decisions

import (
	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Times of messages. Refusals leave at once, but at least apart after the last message; callers
// leave every callersApart.
const (
	apart        = quota.Second
	callersApart = 5 * quota.Second
)

// pauses are the pauses after messages that did not arrive.
var pauses = rpc.Backoff{First: apart, Longest: 10 * quota.Second}

// New makes the Recorder of a VM of a node. Random is the VM's own number.
func New(client rpc.Client, clock rpc.Clock, node string, boot, random uint64) *Recorder {
	s := &Recorder{Reporter: rpc.Reporter{
		Client: client, Clock: clock, Random: rpc.NewRand(random), Apart: apart, Pauses: pauses,
	}}
	s.report = wire.Report{Node: []byte(node), Boot: boot, Decisions: &s.message}
	s.message = wire.Decisions{
		Counts:   make([]wire.RefusedCount, 0, wire.MaxCounts),
		Refusals: make([]wire.Refusal, 0, wire.MaxRefusals), Callers: make([]wire.CallerCount, 0, wire.MaxCallers),
	}
	return s
}

// Tick sends what there is to report. A message that does not arrive is lost, since these are
// samples.
func (s *Recorder) Tick(now quota.Instant) {
	m := &s.message
	callers := len(m.Callers) > 0 && now >= s.callersDue
	if !s.Due(now) || len(m.Counts) == 0 && !callers {
		return
	}
	for i := range m.Refusals {
		m.Refusals[i].Ago = min(max(quota.Span(now-s.at[i]), 0), quota.Hour)
	}
	held := m.Callers
	if !callers {
		m.Callers = held[:0]
	}
	s.body = wire.AppendReport(s.body[:0], &s.report)
	m.Callers = held
	s.clear(callers)
	if callers {
		s.callersDue = now + quota.Instant(callersApart)
	}
	s.Send(s.body, now)
}

// NextDue is when Tick has something to do.
func (s *Recorder) NextDue() quota.Instant {
	switch {
	case len(s.message.Counts) > 0:
		return s.NextReport()
	case len(s.message.Callers) > 0:
		return max(s.NextReport(), s.callersDue)
	}
	return quota.Forever
}
