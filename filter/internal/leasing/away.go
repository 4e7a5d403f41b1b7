package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Away says whether a request must not wait for the control plane now, and since when it has not answered: because it does not
// answer this worker, or because it does not answer another one and this one has had no answer since then.
func (d *Desk) Away() (since quota.Instant, away bool) {
	if d.hearsay() {
		return d.heard, true
	}
	return d.breaker.Since(), d.breaker.IsOpen()
}

func (d *Desk) hearsay() bool { return d.heard != 0 && d.answered < d.heard }

// FailingSince is the start of the failures that led to a Failed ticket; now if they are over.
func (d *Desk) FailingSince(now quota.Instant) quota.Instant {
	if d.hearsay() {
		return d.heard
	}
	if since, away := d.breaker.Failing(); away {
		return since
	}
	return now
}

// Open says whether this worker's own calls fail, since when, and how the last one did. Times grows each time that they begin to,
// and with each probe that fails.
func (d *Desk) Open() (since quota.Instant, times uint32, how rpc.Outcome, open bool) {
	return d.breaker.Since(), d.breaker.Opened(), d.reason, d.breaker.IsOpen()
}

// Hear tells since when the control plane has not answered some worker of this process; 0: there is no such worker.
func (d *Desk) Hear(since quota.Instant) { d.heard = since }

// Hasten has this worker look at once whether the control plane is back: it is for another worker.
func (d *Desk) Hasten(now quota.Instant) { d.breaker.Hasten(now) }

// Waiting is the number of requests that wait.
func (d *Desk) Waiting() int { return d.waiting }

// probe asks for nothing of the bucket that a call was last for: the centre looks, and charges nothing. So no client waits to find
// out whether it is back, and it is found out without clients, too.
func (d *Desk) probe(now quota.Instant) {
	d.send(&call{sent: now, probe: true, items: []item{{
		need: d.lost, ask: lease.Ask{Params: d.lost.Params, Version: d.lost.Version, Cost: 1},
	}}})
}
