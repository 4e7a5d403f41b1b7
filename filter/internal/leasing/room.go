package leasing

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// mostRoom is how many buckets may be asked for at once for requests that wait, roomPerCall how much of it each call may have. So
	// while there is room a request asks by itself, and beyond that many go along in one call.
	mostRoom    = 256
	roomPerCall = 16
	// afterOutage is what a worker begins with: all nodes come back at once.
	afterOutage = 2
	// lateAnswer is how long an answer takes that was nearly too late: as good a sign of overload as none.
	lateAnswer = lease.Deadline * 4 / 5
	// longestRest is how long a worker asks for nothing whose least was too much.
	longestRest = 200 * quota.Millisecond
)

// room bounds what a worker asks for at once, by what can be answered in time: it grows by one with each answer in time, and halves
// with the first of some that are late or missing. Make one with newRoom.
type room struct {
	// most buckets may be under way; items buckets in calls calls are.
	most, items, calls int
	// shrunk is when it last halved, rest until when nothing is asked for: it cannot halve any more, and even the least was too much.
	shrunk, rest quota.Instant
}

func newRoom() room { return room{most: mostRoom} }

// left is how many buckets the next call may ask for; 0: it must wait for an answer.
func (r *room) left(now quota.Instant) int {
	if now < r.rest || r.calls >= max(r.most/roomPerCall, 1) {
		return 0
	}
	return max(r.most-r.items, 0)
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

func (r *room) sent(items int) {
	r.calls++
	r.items += items
}

// ended counts the end of a call that was sent at sent, for so many buckets.
func (r *room) ended(sent, now quota.Instant, items int, answered bool) {
	r.calls--
	r.items -= items
	switch {
	case answered && now-sent < quota.Instant(lateAnswer):
		r.most = min(r.most+1, mostRoom)
	case sent >= r.shrunk: // What left before it last halved says nothing of how much is too much now.
		r.most, r.shrunk = max(r.most/2, 1), now
	}
}

// restart begins with little after an outage.
func (r *room) restart() { r.most = min(r.most, afterOutage) }
