package decisions

import (
	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Times of messages. Refusals leave at once, but at least apart after the last message; callers
// leave every callersApart. After an answer that does not know the message, the next one waits for
// unknown; without an answer, for pauses that grow.
const (
	path         = "/node/v1/decisions"
	timeout      = quota.Second
	apart        = quota.Second
	callersApart = 5 * quota.Second
	unknown      = quota.Minute
)

// pauses are the pauses after messages that did not arrive.
var pauses = rpc.Backoff{First: apart, Longest: 10 * quota.Second}

// Stats counts messages.
type Stats struct{ Told, Failed uint64 }

// reporter sends the messages to the control plane. Each worker has its own, so collecting needs no
// shared data on the path of requests.
type reporter struct {
	client rpc.Client
	clock  rpc.Clock
	random rpc.Rand
	body   []byte

	underWay bool
	// due is when the next message may leave, callersDue when it must include the callers.
	due, callersDue quota.Instant
	pause           quota.Span
}

// New makes the Recorder of a VM of a node. Random is the VM's own number.
func New(client rpc.Client, clock rpc.Clock, node string, boot, random uint64) *Recorder {
	s := &Recorder{reporter: reporter{client: client, clock: clock, random: rpc.NewRand(random)}}
	s.message = wire.Decisions{
		Node: []byte(node), Boot: boot, Counts: make([]wire.RefusedCount, 0, wire.MaxCounts),
		Refusals: make([]wire.Refusal, 0, wire.MaxRefusals), Callers: make([]wire.CallerCount, 0, wire.MaxCallers),
	}
	return s
}

// Tick sends what there is to report. A message that does not arrive is lost, since these are
// samples.
func (s *Recorder) Tick(now quota.Instant) {
	m := &s.message
	callers := len(m.Callers) > 0 && now >= s.callersDue
	if s.underWay || now < s.due || len(m.Counts) == 0 && !callers {
		return
	}
	for i := range m.Refusals {
		m.Refusals[i].Ago = min(max(quota.Span(now-s.at[i]), 0), quota.Hour)
	}
	held := m.Callers
	if !callers {
		m.Callers = held[:0]
	}
	s.body = wire.AppendDecisions(s.body[:0], m)
	m.Callers = held
	s.clear(callers)
	if callers {
		s.callersDue = now + quota.Instant(callersApart)
	}
	s.underWay = true
	err := s.client.Call(path, s.body, timeout, func(status int, _ []byte) { s.answered(s.clock.Now(), status) })
	if err != nil {
		s.answered(now, 0)
	}
}

// NextDue is when Tick has something to do.
func (s *Recorder) NextDue() quota.Instant {
	switch {
	case s.underWay:
		return quota.Forever
	case len(s.message.Counts) > 0:
		return s.due
	case len(s.message.Callers) > 0:
		return max(s.due, s.callersDue)
	}
	return quota.Forever
}

func (s *Recorder) answered(now quota.Instant, status int) {
	s.underWay = false
	switch {
	case rpc.Of(status) == rpc.Answered:
		s.Told++
		s.pause, s.due = 0, now+quota.Instant(apart)
		return
	case status == 404, status == 405:
		s.due = now + quota.Instant(unknown)
	default:
		s.pause = pauses.After(s.pause)
		s.due = now + rpc.Spread(2*s.pause, s.random.Jitter())
	}
	s.Failed++
}
