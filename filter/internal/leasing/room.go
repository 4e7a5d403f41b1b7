package leasing

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// MaxWaiting bounds the requests that wait in one VM.
const MaxWaiting = 1024

const (
	// mostRoom is how many lines may be asked for at once for requests that wait.
	mostRoom = 256
	// waitingPerLine is how many requests may wait for each line that may be asked for, and
	// leastWaiting how many at least.
	waitingPerLine = MaxWaiting / mostRoom
	leastWaiting   = 64
	// linesPerCall is how much of the room each call may have, but leastCalls may be under way: one
	// may hang.
	linesPerCall = 16
	leastCalls   = 2
	// afterOutage is what a worker begins with: all nodes come back at once.
	afterOutage = 2
	// lateAnswer is how long an answer takes that was nearly too late: as good a sign of overload
	// as none.
	lateAnswer = lease.Deadline * 4 / 5
	// longestRest is how long a worker asks for nothing for which even the least was too much.
	longestRest = 200 * quota.Millisecond
)

// room bounds what a worker asks for at once, by what can be answered in time: it grows by one with
// each answer in time, and halves with the first of some that are late or missing. Make one with
// newRoom.
type room struct {
	// most is how many lines may be under way for requests that wait.
	most int
	// calls is how many calls are under way, asks how many lines wait for their answers.
	calls, asks int
	// shrunk is when it last halved.
	shrunk quota.Instant
	// rest is until when nothing is asked for: it could not halve any more.
	rest quota.Instant
}

func newRoom() room { return room{most: mostRoom} }

// free is how many lines the next call may ask for; 0: it must wait for an answer.
func (r *room) free(now quota.Instant) int {
	if now < r.rest || r.calls >= max(r.most/linesPerCall, leastCalls) {
		return 0
	}
	return max(r.most-r.asks, 0)
}

// items is how many items a call may have, unless one request alone needs more.
func (r *room) items() int { return min(wire.MaxItems, r.most) }

// waiters is how many requests may wait: about as many as can be answered in time.
func (r *room) waiters(now quota.Instant) int {
	if now < r.rest {
		return 0
	}
	return max(r.most*waitingPerLine, leastWaiting)
}

// pressed reports whether calls were late or unanswered lately.
func (r *room) pressed() bool { return r.most < mostRoom }

// count adds a call to those under way, or with -1 takes it from them.
func (r *room) count(call *call, n int) {
	if call.asks > 0 {
		r.calls += n
		r.asks += n * call.asks
	}
}

// ended counts the end of a call. A call in which no request waits says nothing about the room.
func (r *room) ended(call *call, now quota.Instant, answered bool) {
	r.count(call, -1)
	switch {
	case call.asks == 0:
	case answered && now-call.sent < quota.Instant(lateAnswer):
		r.most = min(r.most+1, mostRoom)
	case call.sent >= r.shrunk:
		// What left before it last halved shows nothing of how much is too much now.
		r.most, r.shrunk = max(r.most/2, 1), now
	}
}

// restart begins with little after an outage.
func (r *room) restart() { r.most = min(r.most, afterOutage) }
