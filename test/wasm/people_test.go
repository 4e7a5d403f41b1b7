package wasm

import (
	"strconv"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// consumers returns the revision of consumers that the node knows.
func (p *poll) consumers() uint64 {
	n, _ := strconv.ParseUint(p.query.Get("consumers"), 10, 64)
	return n
}

// consumers returns all consumers, all of which have changed.
func (c *plane) consumers() wire.Consumers {
	m := wire.Consumers{Revision: c.revision, ExceptionsRevision: c.revision,
		Complete: true}
	for _, one := range c.people {
		m.HasExceptions = m.HasExceptions || len(one.Exceptions) > 0
		m.Items = append(m.Items, one)
	}
	return m
}

func (c *plane) handleQuestion(call *envoytest.Call) {
	c.questions++
	keys, err := wire.DecodeQuestion(call.Body)
	if err != nil {
		c.w.t.Errorf("a question about consumers: %v", err)
	}
	if c.down {
		return
	}
	m := c.consumers()
	m.Items = nil
	for _, key := range keys {
		one := c.people[key]
		one.Key = key
		m.Items = append(m.Items, one)
	}
	call.Respond(c.w.fleet.up+c.w.fleet.down, 200, nil, wire.AppendConsumers(nil, m))
}

// say makes something known of a consumer and tells the nodes.
func (c *plane) say(value, tier string, special wire.Exceptions) {
	key := match.ConsumerKey(c.secret, policy.Source{Kind: policy.SourceHeader, Name: "x-api-key"}, value)
	if c.people == nil {
		c.people = map[keyhash.Key]wire.Consumer{}
	}
	c.people[key] = wire.Consumer{Key: key, Tier: []byte(tier), Exceptions: wire.AppendExceptions(nil, special)}
	c.revision++
	c.wake()
}

const byAPIKey = `"identity": {"consumer": [{"header": "x-api-key"}]}`

// A consumer's ban, bypass and own limit reach every worker at once. They are pushed with the hash
// of the consumer's value.
func TestConsumersInTheFilter(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 2, set: setWith(byAPIKey, limits("p", "local", "2/1h", `"partition": ["consumer"]`))})
	node := w.nodes[0]
	alice := get("x-api-key", "alice")
	if got := count(t, node, 0, 5, alice); got != 2 {
		t.Errorf("%d of the policy's 2 have passed", got)
	}
	own := wire.Override{Policy: "p", Until: wire.ForGood, Limits: []wire.Figures{{Quota: 7, Window: quota.Hour}}}
	w.plane.say("alice", "", wire.Exceptions{Overrides: []wire.Override{own}})
	w.advance(50 * time.Millisecond)
	if got := count(t, node, 1, 9, alice); got != 5 {
		t.Errorf("%d of the 5 that are left of its own 7 have passed", got)
	}
	w.plane.say("alice", "", wire.Exceptions{Bypass: wire.ForGood})
	w.advance(50 * time.Millisecond)
	if got := count(t, node, 0, 9, alice); got != 9 {
		t.Errorf("%d of 9 without a limit have passed", got)
	}
	w.plane.say("alice", "", wire.Exceptions{Banned: wire.ForGood, Bypass: wire.ForGood})
	w.advance(50 * time.Millisecond)
	if got := count(t, node, 1, 3, alice); got != 0 {
		t.Errorf("%d of a banned consumer have passed", got)
	}
	if got := count(t, node, 1, 3, get("x-api-key", "bob")); got != 2 {
		t.Errorf("%d of another's 2 have passed", got)
	}
	// No request needs the control plane for it any more.
	w.plane.down = true
	w.advance(20 * time.Minute)
	if got := count(t, node, 0, 3, alice); got != 0 {
		t.Errorf("%d of a banned consumer have passed without the control plane", got)
	}
	w.plane.down = false
	w.plane.say("alice", "", wire.Exceptions{Bypass: wire.ForGood})
	w.advance(time.Minute)
	if got := count(t, node, 0, 3, alice); got != 3 {
		t.Errorf("%d of 3 have passed after a ban was taken back", got)
	}
}

// A look-up costs one read of shared data, and nothing while no consumer has more than a tier.
func TestCostOfConsumers(t *testing.T) {
	lookUp := map[string]uint64{"clock_time_get": 1, "proxy_get_shared_data": 1}
	for _, c := range []struct {
		name string
		say  func(c *plane)
		want map[string]uint64
	}{
		{"there are none", func(*plane) {}, nil},
		{"there are tiers alone", func(c *plane) { c.say("other", "gold", wire.Exceptions{}) }, nil},
		{"others are special", func(c *plane) { c.say("other", "", wire.Exceptions{Banned: wire.ForGood}) }, lookUp},
		{"its limit is its own", func(c *plane) {
			own := wire.Override{Policy: "p", Until: wire.ForGood,
				Limits: []wire.Figures{{Quota: 2_000_000, Window: quota.Second}}}
			c.say("alice", "", wire.Exceptions{Overrides: []wire.Override{own}})
		}, lookUp},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, fleet{nodes: 1, set: setWith(byAPIKey, limits("p", "local", "1000000/1s", `"partition": ["consumer"]`))})
			c.say(w.plane)
			w.advance(50 * time.Millisecond)
			alice := get("x-api-key", "alice")
			passes(t, w.nodes[0], 0, alice)
			w.advance(50 * time.Millisecond) // Whatever was to be asked is answered.
			passes(t, w.nodes[0], 0, alice)  // It wakes the worker.
			const n = 20
			before := w.nodes[0].Stats()
			for range n {
				passes(t, w.nodes[0], 0, alice)
			}
			s := w.nodes[0].Stats().Since(before)
			guard(t, "host call", s.Hostcalls, calls(looked, shared, headed, c.want), n)
			guard(t, "callback", s.Entries, stream, n)
			t.Logf("in %d requests: %v, %d allocations of %d bytes", n, s.Hostcalls, s.Allocations, s.AllocatedBytes)
		})
	}
}
