package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// path is the control plane's route for lease requests.
const path = "/node/v1/leases"

// Flush sends calls for the waiting requests, unless requests still gather, and adds tokens to
// keep. Tokens to keep alone leave with the tick.
func (c *Client) Flush(now quota.Instant) {
	for len(c.queue.ready) > 0 && c.pace.mayLeave(now, c.room.calls, len(c.queue.ready)) {
		call := c.queue.gatherCall(now, &c.room)
		if len(call.items) == 0 {
			return
		}
		c.pace.lastSent = now
		c.sendCall(call)
	}
	c.sendTrials(now)
}

// Gathers reports whether requests wait for the moment at which the next call may leave. Then Flush
// must come soon.
func (c *Client) Gathers() bool {
	return len(c.queue.ready) > 0 && c.room.freeLines(c.clock.Now()) > 0
}

// sendKept sends the tokens to keep in calls of their own.
func (c *Client) sendKept(now quota.Instant) {
	for len(c.queue.kept) > 0 {
		call := &call{sent: now}
		c.queue.gatherKept(call, &c.room)
		if len(call.items) == 0 {
			return
		}
		c.sendCall(call)
	}
}

// sendReports sends the reports that are due.
func (c *Client) sendReports(now quota.Instant) {
	if _, away := c.Health.Away(); away {
		return
	}
	for range reportCalls {
		items := c.reports.gatherItems(now, c.store, &c.queue)
		if len(items) == 0 {
			return
		}
		c.reports.underWay++
		c.sendCall(&call{sent: now, items: items, purpose: forReports})
	}
}

// sendProbe sends a call that asks for zero tokens of the bucket in the last call. The control
// plane checks its store, and charges nothing. So an outage's end is noticed although no client
// waits, or no client comes.
func (c *Client) sendProbe(now quota.Instant) {
	call := &call{sent: now, purpose: forProbe}
	call.addItem(probes, &c.last).need.Cost = 1
	c.sendCall(call)
}

// sendCall completes a call and sends it. Returns, debts and settlements go first in it.
func (c *Client) sendCall(call *call) {
	// Items that must come before the requests' own: returns, then debts, then settlements.
	first := c.returnFirst(call)
	if call.asks > 0 {
		first = c.askFirst(call, first)
	}
	call.items = append(first, call.items...)
	if call.asks > 0 {
		c.settleFirst(call)
	}
	if call.purpose != forClaims && call.purpose != forProbe {
		c.returnAlong(call)
	}
	// Number the call, and write its items.
	c.seq++
	call.seq, c.lastSent = c.seq, call.sent
	if call.purpose != forClaims {
		c.last = call.items[0].need
	}
	c.items = c.items[:0]
	quick := c.paceOf(call).isQuick()
	for i := range call.items {
		it := &call.items[i]
		if it.need.Reserves && it.waiting > 0 {
			c.settlements.names += 1 << nameBits
			it.name = c.settlements.names
		}
		it.soon = it.line != nil && quick && it.need.hurries()
		c.items = append(c.items, it.wireItem())
	}
	c.body = wire.AppendLeaseRequest(c.body[:0], wire.LeaseRequest{
		Node: c.node, Boot: c.boot, Seq: call.seq, Version: call.items[0].need.Version, Items: c.items,
	})
	// Count the call, and send it.
	c.Health.breaker.Sent(call.sent)
	c.room.countCall(call, 1)
	done := func(status int, body []byte) { c.handleAnswer(call, status, body) }
	if err := c.rpc.Call(path, c.body, call.timeout(len(c.late)), done); err != nil {
		c.endCall(call, call.sent)
		c.endTrials(call)
		c.failCall(call, call.sent, rpc.Unsent)
	} else if call.awaitsLateAnswer() {
		c.underWay = append(c.underWay, call)
	}
}

// countEnded updates the count of calls under way for the call's purpose.
func (c *Client) countEnded(call *call) {
	switch call.purpose {
	case forReports:
		c.reports.underWay--
	case forClaims:
		c.claiming--
	case forSettlements:
		c.settlements.alone = false
	}
}
