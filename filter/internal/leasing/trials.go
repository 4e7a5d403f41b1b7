package leasing

import "github.com/weir-proxy/weir/shared/quota"

// Trials ask as requests do, for buckets of their own, in calls of their own: so no request waits
// for what they ask. These leave at the pace of those for requests.

const (
	// TrialPatience is how long a trial waits: far longer than a request, because it holds up
	// nothing. As many may wait in one VM as requests.
	TrialPatience = quota.Second
	// trialCalls bounds the calls for trials under way.
	trialCalls = 4
)

// sendTrials asks for what trials wait for, as often as for requests: what waits longer than these
// would, and asks for more at once, is granted something else. While the calls of requests are late
// it asks seldom.
func (c *Client) sendTrials(now quota.Instant) {
	q := &c.queue
	for len(q.trials) > 0 && c.trying < trialCalls && c.trialPace.due(now, c.trying, len(q.trials)) {
		_, away := c.Health.Away()
		if away || c.room.pressed() && now < c.trialPace.lastSent+quota.Instant(callTimeout) {
			return
		}
		call := &call{sent: now, purpose: forTrials}
		q.trials = q.gatherLines(call, q.trials, &c.room)
		if len(call.items) == 0 {
			return
		}
		c.trying++
		c.trialPace.lastSent = now
		c.send(call)
	}
}

// trialsOver notes the end of a call for trials.
func (c *Client) trialsOver(call *call) {
	if call.purpose == forTrials {
		c.trying--
	}
}

// learnPace learns from a call that was answered at now. Of others than those for requests or for
// trials it learns nothing: they serve both.
func (c *Client) learnPace(call *call, now quota.Instant) {
	if call.purpose == forTrials || call.asks > 0 {
		c.paceOf(call).answered(quota.Span(now - call.sent))
	}
}

// paceOf is how fast calls of a kind are answered. Trials learn it apart, so that nothing becomes
// of requests that would not without.
func (c *Client) paceOf(call *call) *pace {
	if call.purpose == forTrials {
		return &c.trialPace
	}
	return &c.pace
}

// jitter draws a number for the answer to a call. Trials draw others than requests, so that nothing
// becomes of these that would not without.
func (c *Client) jitter(call *call) int64 {
	if call.purpose == forTrials {
		return c.chance.Jitter()
	}
	return c.random.Jitter()
}

// TakeTried returns the numbers of trials whose tickets have ended. The slice is good until the
// next one ends.
func (c *Client) TakeTried() []uint32 { return c.queue.tried.Take(len(c.queue.tried)) }
