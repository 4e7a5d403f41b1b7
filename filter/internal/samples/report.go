package samples

import (
	"github.com/weir-proxy/weir/filter/internal/calls"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Caller sends a message; done is called once, later, unless an error is returned. A status of 0 means that no answer came.
type Caller interface {
	CallDecisions(body []byte, timeout quota.Span, done func(status int, body []byte)) error
}

// Clock tells the time at which an answer is handled.
type Clock interface{ Now() quota.Instant }

// Times of messages: refusals are told at once, but so far apart; callers seldom. A control plane that does not know the message is
// asked again after unknown, one that does not answer after pauses that grow up to twice longest.
const (
	timeout      = quota.Second
	apart        = quota.Second
	callersApart = 5 * quota.Second
	longest      = 10 * quota.Second
	unknown      = quota.Minute
)

// Stats counts messages.
type Stats struct{ Told, Failed uint64 }

// reporter tells the control plane. Each worker does so by itself: a message costs it nothing on the path of requests.
type reporter struct {
	calls  Caller
	clock  Clock
	random uint64
	body   []byte

	underWay bool
	// due is when another message may leave, callersDue when it is to tell of callers.
	due, callersDue quota.Instant
	pause           quota.Span
}

// New makes the Samples of a VM of a node. Random is the VM's own number.
func New(caller Caller, clock Clock, node string, boot, random uint64) *Samples {
	s := &Samples{reporter: reporter{calls: caller, clock: clock, random: random | 1}}
	s.message = wire.Decisions{
		Node: []byte(node), Boot: boot, Counts: make([]wire.RefusedCount, 0, wire.MaxCounts),
		Refusals: make([]wire.Refusal, 0, wire.MaxRefusals), Callers: make([]wire.Caller, 0, wire.MaxCallers),
	}
	return s
}

// Tick sends what there is to tell. What does not arrive is lost: these are samples.
func (s *Samples) Tick(now quota.Instant) {
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
	err := s.calls.CallDecisions(s.body, timeout, func(status int, _ []byte) { s.answered(s.clock.Now(), status) })
	if err != nil {
		s.answered(now, 0)
	}
}

func (s *Samples) answered(now quota.Instant, status int) {
	s.underWay = false
	switch {
	case calls.Of(status) == calls.Answered:
		s.Told++
		s.pause, s.due = 0, now+quota.Instant(apart)
		return
	case status == 404, status == 405:
		s.due = now + quota.Instant(unknown)
	default:
		s.pause = min(max(2*s.pause, apart), longest)
		s.due = now + leasing.Spread(2*s.pause, int64(s.next()%1024))
	}
	s.Failed++
}

func (s *Samples) next() uint64 {
	s.random ^= s.random << 13
	s.random ^= s.random >> 7
	s.random ^= s.random << 17
	return s.random
}
