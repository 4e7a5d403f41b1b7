package leasing

import "github.com/weir-proxy/weir/shared/quota"

// Trials ask like requests, but for other buckets and in other calls. So no request waits because
// of a trial. Trial calls leave at the same pace as calls for requests.

const (
	// TrialPatience is how long a trial waits: far longer than a request, because it delays
	// nothing. MaxWaiting trials may wait in one VM.
	TrialPatience = quota.Second
	// trialCalls bounds the calls for trials under way.
	trialCalls = 4
)

// sendTrials asks for the lines in which trials wait, as often as for requests: a line that waited
// longer and then asked for more at once would be granted something else than requests are. While
// calls of requests are late it asks rarely.
func (c *Client) sendTrials(now quota.Instant) {
	q := &c.queue
	for len(q.trials) > 0 && c.trying < trialCalls && c.trialPace.mayLeave(now, c.trying, len(q.trials)) {
		_, away := c.Health.Away()
		if away || c.room.isPressed() && now < c.trialPace.lastSent+quota.Instant(callTimeout) {
			return
		}
		call := &call{sent: now, purpose: forTrials}
		q.trials = q.gatherLines(call, q.trials, &c.room)
		if len(call.items) == 0 {
			return
		}
		c.trying++
		c.trialPace.lastSent = now
		c.sendCall(call)
	}
}

// endTrials counts the end of a call for trials.
func (c *Client) endTrials(call *call) {
	if call.purpose == forTrials {
		c.trying--
	}
}

// learnPace learns the round trip of a call answered at now. It learns only from calls for requests
// or for trials: other calls serve both.
func (c *Client) learnPace(call *call, now quota.Instant) {
	if call.purpose == forTrials || call.asks > 0 {
		c.paceOf(call).learnTrip(quota.Span(now - call.sent))
	}
}

// paceOf returns the pace for a call. Trials have a pace of their own, so that they never change
// the outcome of a request.
func (c *Client) paceOf(call *call) *pace {
	if call.purpose == forTrials {
		return &c.trialPace
	}
	return &c.pace
}

// drawJitter draws a number for the answer to a call. Trials have random numbers of their own, so
// that they never change the outcome of a request.
func (c *Client) drawJitter(call *call) int64 {
	if call.purpose == forTrials {
		return c.chance.Jitter()
	}
	return c.random.Jitter()
}

// TakeTried returns the numbers of trials whose tickets have ended. The slice is good until the
// next one ends.
func (c *Client) TakeTried() []uint32 { return c.queue.tried.Take(len(c.queue.tried)) }
