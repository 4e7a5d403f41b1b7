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
	// roomPerCall is how much of the room each call may have. So while there is room a request asks
	// by itself, and beyond that many go along in one call.
	roomPerCall = 16
	// maxSeveralCalls bounds the calls under way for requests that need several buckets. Such
	// requests never share an item, so most of them would have a call each.
	maxSeveralCalls = 4
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
	// several is how many of the calls are for requests that need several buckets.
	several int
	// shrunk is when it last halved.
	shrunk quota.Instant
	// rest is until when nothing is asked for: it could not halve any more.
	rest quota.Instant
}

func newRoom() room { return room{most: mostRoom} }

// maxCalls is how many calls may be under way for requests that wait.
func (r *room) maxCalls() int { return max(r.most/roomPerCall, 1) }

// left is how many lines the next call may ask for; 0: it must wait for an answer.
func (r *room) left(now quota.Instant, several bool) int {
	switch {
	case now < r.rest:
		return 0
	case several && r.several < min(maxSeveralCalls, r.maxCalls()):
		return wire.MaxItems
	case several, r.calls >= r.maxCalls():
		return 0
	}
	return max(r.most-r.asks, 0)
}

// items is how many items a call may have.
func (r *room) items(several bool) int {
	if several {
		return wire.MaxItems
	}
	return min(wire.MaxItems, r.most)
}

// waiters is how many requests may wait: about as many as can be answered in time.
func (r *room) waiters(now quota.Instant) int {
	if now < r.rest {
		return 0
	}
	return max(r.most, roomPerCall) * MaxWaiting / mostRoom
}

// pressed reports whether calls were late or unanswered lately.
func (r *room) pressed() bool { return r.most < mostRoom }

// count adds a call to those under way, or with -1 takes it from them.
func (r *room) count(call *call, n int) {
	if call.asks > 0 {
		r.calls += n
		r.asks += n * call.asks
	}
	if call.several {
		r.several += n
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
