package leasing

import (
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Trials ask as requests do, for buckets of their own, in calls of their own: so no request waits
// for what they ask. One such call is under way, and what waits meanwhile goes with the next.

const (
	// TrialPatience is how long a trial waits: far longer than a request, because it holds up
	// nothing. As many may wait in one VM as requests.
	TrialPatience = quota.Second
	// trialCalls bounds the calls for trials under way where more wait than one call can carry.
	trialCalls = 4
)

// sendTrials asks for what trials wait for. While the calls of requests are late it asks seldom.
func (c *Client) sendTrials(now quota.Instant) {
	q := &c.queue
	for len(q.trials) > 0 {
		most := 1
		if len(q.trials) >= wire.MaxItems {
			most = trialCalls
		}
		_, away := c.Health.Away()
		if away || c.trying >= most || c.room.pressed() && now < c.tried+quota.Instant(callTimeout) {
			return
		}
		call := &call{sent: now, trials: true}
		q.trials = q.gatherLines(call, q.trials, &c.room)
		if len(call.items) == 0 {
			return
		}
		c.trying++
		c.tried = now
		c.send(call)
	}
}

// trialsOver notes the end of a call for trials.
func (c *Client) trialsOver(call *call) {
	if call.trials {
		c.trying--
	}
}

// jitter draws a number for the answer to a call. Trials draw others than requests, so that nothing
// becomes of these that would not without.
func (c *Client) jitter(call *call) int64 {
	if call.trials {
		return c.chance.Jitter()
	}
	return c.random.Jitter()
}

// TakeTried returns the numbers of trials whose tickets have ended. The slice is good until the
// next one ends.
func (c *Client) TakeTried() []uint32 { return c.queue.tried.Take(len(c.queue.tried)) }
