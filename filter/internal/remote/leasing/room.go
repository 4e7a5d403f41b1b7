package leasing

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// MaxWaiting bounds the requests that wait in one VM.
const MaxWaiting = 1024

const (
	// mostRoom is the largest number of lines of waiting requests that are asked for at once.
	mostRoom = 256
	// waitingPerLine is the number of requests that may wait per line of the room, and leastWaiting
	// the number that may always wait.
	waitingPerLine = MaxWaiting / mostRoom
	leastWaiting   = 64
	// linesPerCall is the part of the room for each call under way. leastCalls calls are always
	// allowed, because one call may hang.
	linesPerCall = 16
	leastCalls   = 2
	// afterOutage is the room after an outage, because all nodes come back at once.
	afterOutage = 2
	// lateAnswer is the duration from which an answer is nearly too late. It shows overload as well
	// as a missing answer does.
	lateAnswer = lease.Deadline * 4 / 5
	// longestRest is the longest time for which a worker sends nothing after a room of 1 was too
	// much.
	longestRest = 200 * quota.Millisecond
)

// room bounds the lines that a worker asks for at once by the number that can be answered in time.
// It grows by one line with each answer in time, and halves at a late or missing answer, once for
// the calls of a time. Make a room with newRoom.
type room struct {
	// most is the number of lines of waiting requests that may be under way.
	most int
	// calls is the number of calls under way, and asks the number of lines that wait for their
	// answers.
	calls, asks int
	// shrunk is when the room last halved.
	shrunk quota.Instant
	// rest is until when nothing is asked for, because the room could not halve any more.
	rest quota.Instant
}

// newRoom returns a room of the largest size.
func newRoom() room { return room{most: mostRoom} }

// freeLines returns the number of lines that the next call may ask for; 0: it must wait for an
// answer.
func (r *room) freeLines(now quota.Instant) int {
	if now < r.rest || r.calls >= max(r.most/linesPerCall, leastCalls) {
		return 0
	}
	return max(r.most-r.asks, 0)
}

// maxItems returns the number of items that a call may have, unless a single request needs more.
func (r *room) maxItems() int { return min(wire.MaxItems, r.most) }

// maxWaiters returns the number of requests that may wait: about the number that can be answered in
// time.
func (r *room) maxWaiters(now quota.Instant) int {
	if now < r.rest {
		return 0
	}
	return max(r.most*waitingPerLine, leastWaiting)
}

// isPressed reports whether calls were late or unanswered recently.
func (r *room) isPressed() bool { return r.most < mostRoom }

// countCall adds a call to the calls under way; with n = -1 it removes the call.
func (r *room) countCall(call *call, n int) {
	if call.asks > 0 {
		r.calls += n
		r.asks += n * call.asks
	}
}

// endCall counts the end of a call. A call without waiting requests does not change the room's
// size.
func (r *room) endCall(call *call, now quota.Instant, answered bool) {
	r.countCall(call, -1)
	switch {
	case call.asks == 0:
	case answered && now-call.sent < quota.Instant(lateAnswer):
		r.most = min(r.most+1, mostRoom)
	case call.sent >= r.shrunk:
		// A call that left before the room last halved does not show that the room is too large
		// now.
		r.most, r.shrunk = max(r.most/2, 1), now
	}
}

// restart reduces the room to afterOutage lines after an outage.
func (r *room) restart() { r.most = min(r.most, afterOutage) }
