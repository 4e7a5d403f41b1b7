package limiter_test

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// register is a worker's knowledge of all consumers: there is a single consumer.
type register struct {
	special []byte
	unsure  bool
}

func (r *register) Exceptions() (bool, uint64) { return true, 9 }

func (r *register) Find(p *match.Consumer) {
	p.Exceptions, p.Sure, p.Now = r.special, !r.unsure, 1000
	banned, bypass := wire.Ends(p.Exceptions)
	p.Banned, p.Bypass = banned > p.Now, bypass > p.Now
}

func ownLimits(quotas ...int64) []byte {
	o := wire.Override{Policy: "p", Until: wire.ForGood}
	for i, q := range quotas {
		o.Limits = append(o.Limits, wire.Figures{Quota: q, Window: quota.Span(i+1) * quota.Minute, Root: quota.Span(i)})
	}
	return wire.AppendExceptions(nil, wire.Exceptions{Overrides: []wire.Override{o}})
}

func byConsumer(mode string) string {
	return `{"version":"weir/v1","identity":{"consumer":[{"header":"x-api-key"}]},"policies":[
		{"name":"p","partition":["consumer"],"limit":{"quota":3,"window":"1m"},"mode":"` + mode + `"}]}`
}

// spend sends requests until one is refused, and returns how many were not.
func (n *node) spend(l *limiter.Limiter, r *register) (allowed int) {
	for ; allowed < 100; allowed++ {
		a := match.Attributes{Method: []byte("GET"), Path: []byte("/"), Host: []byte("h"), Consumers: r,
			Headers: []match.Header{{Name: []byte("x-api-key"), Value: []byte("alice")}}}
		n.stream++
		req := &limiter.Request{Stream: n.stream}
		if status := l.Begin(req, n.rules, &a, n.now); status == limiter.Refused || status == limiter.Banned {
			break
		}
	}
	return allowed
}

// A bucket of this node's own uses the consumer's limit and keeps the used tokens. A worker that
// has forgotten the consumer does not take it back to the policy's limit: that would count the used
// tokens twice.
func TestALimitOfAConsumersOwn(t *testing.T) {
	n := newNode(t, false, "")
	n.pushDocument(2, byConsumer("local"))
	other := n.second()
	for i, c := range []struct {
		l    *limiter.Limiter
		r    *register
		want int
	}{
		{n.limiter, &register{}, 3},
		{n.limiter, &register{special: ownLimits(10)}, 7},
		{other, &register{unsure: true}, 0},
		{n.limiter, &register{special: ownLimits(10)}, 0},
		{n.limiter, &register{special: ownLimits(12)}, 2},
		{other, &register{}, 0},                               // It knows for certain that the consumer has none.
		{n.limiter, &register{special: ownLimits(15, 20)}, 3}, // Two limits: the first has 3 left.
		{n.limiter, &register{special: wire.AppendExceptions(nil, wire.Exceptions{Bypass: wire.ForGood})}, 100},
		{n.limiter, &register{special: wire.AppendExceptions(nil,
			wire.Exceptions{Banned: wire.ForGood, Bypass: wire.ForGood})}, 0},
	} {
		if got := n.spend(c.l, c.r); got != c.want {
			t.Errorf("step %d: %d allowed, want %d", i, got, c.want)
		}
	}
	if got := n.limiter.Stats.Exempt; got != 100 {
		t.Errorf("%d requests counted as exempt, want the 100 with a bypass", got)
	}
}

// Questions to the control plane name the consumer if the limit may be its own.
func TestAConsumerIsNamedToTheControlPlane(t *testing.T) {
	for i, c := range []struct {
		r    *register
		want string
	}{
		{&register{}, "exceptionsRevision 9, position 0"},
		{&register{unsure: true}, "exceptionsRevision 9, position 1"},
		{&register{special: ownLimits(10)}, "exceptionsRevision 9, position 1"},
	} {
		n := newNode(t, true, "")
		n.pushDocument(2, byConsumer("strict"))
		a := match.Attributes{Method: []byte("GET"), Path: []byte("/"), Host: []byte("h"), Consumers: c.r,
			Headers: []match.Header{{Name: []byte("x-api-key"), Value: []byte("alice")}}}
		req := &limiter.Request{Stream: 1}
		if status := n.limiter.Begin(req, n.rules, &a, n.now); status != limiter.Paused {
			t.Fatalf("%d: status %d", i, status)
		}
		it := n.asked[0]
		key := match.ConsumerKey(keyhash.Key{}, policy.Source{Kind: policy.SourceHeader, Name: "x-api-key"}, "alice")
		got := fmt.Sprintf("exceptionsRevision %d, position %d", it.ExceptionsRevision, it.Position)
		if got != c.want || (it.Position > 0) != (it.Consumer == key) {
			t.Errorf("%d: %s of %v, want %s", i, got, it.Consumer, c.want)
		}
	}
}
