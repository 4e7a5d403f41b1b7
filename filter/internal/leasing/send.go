package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// path is where lease requests go.
const path = "/node/v1/leases"

// Flush sends what requests wait for, unless it gathers, and tokens to keep with it. Those alone go
// with the tick.
func (c *Client) Flush(now quota.Instant) {
	for len(c.queue.ready) > 0 && c.pace.due(now, c.room.calls, len(c.queue.ready)) {
		call := c.queue.gather(now, &c.room)
		if len(call.items) == 0 {
			return
		}
		c.pace.lastSent = now
		c.send(call)
	}
	c.sendTrials(now)
}

// Gathers reports whether requests wait until the next call may leave: Flush must come soon.
func (c *Client) Gathers() bool {
	return len(c.queue.ready) > 0 && c.room.free(c.clock.Now()) > 0
}

// sendKept sends all tokens to keep.
func (c *Client) sendKept(now quota.Instant) {
	for len(c.queue.kept) > 0 {
		call := &call{sent: now}
		c.queue.gatherKept(call, &c.room)
		if len(call.items) == 0 {
			return
		}
		c.send(call)
	}
}

// report sends the reports that are due.
func (c *Client) report(now quota.Instant) {
	if _, away := c.Health.Away(); away {
		return
	}
	for range reportCalls {
		items := c.reports.gather(now, c.store, &c.queue)
		if len(items) == 0 {
			return
		}
		c.reports.underWay++
		c.send(&call{sent: now, items: items, purpose: forReports})
	}
}

// probe asks for nothing of the bucket that a call was last for: the control plane looks, and
// charges nothing. So it is found out whether the control plane is back without a client that
// waits, and also while there are no clients.
func (c *Client) probe(now quota.Instant) {
	call := &call{sent: now, purpose: forProbe}
	call.carry(probes, &c.last).need.Cost = 1
	c.send(call)
}

func (c *Client) send(call *call) {
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
	c.seq++
	call.seq, c.lastSent = c.seq, call.sent
	if call.purpose != forClaims {
		c.last = call.items[0].need
	}
	c.items = c.items[:0]
	quick := c.paceOf(call).quick()
	for i := range call.items {
		it := &call.items[i]
		if it.need.Reserves && it.waiting > 0 {
			c.settlements.names += 1 << nameBits
			it.name = c.settlements.names
		}
		it.soon = it.line != nil && quick && it.need.hurries()
		c.items = append(c.items, it.message())
	}
	c.body = wire.AppendLeaseRequest(c.body[:0], wire.LeaseRequest{
		Node: c.node, Boot: c.boot, Seq: call.seq, Version: call.items[0].need.Version, Items: c.items,
	})
	c.Health.breaker.Sent(call.sent)
	c.room.count(call, 1)
	done := func(status int, body []byte) { c.answer(call, status, body) }
	if err := c.rpc.Call(path, c.body, call.timeout(len(c.late)), done); err != nil {
		c.over(call, call.sent)
		c.trialsOver(call)
		c.fail(call, call.sent, rpc.Unsent)
	} else if call.lasts() {
		c.underWay = append(c.underWay, call)
	}
}
