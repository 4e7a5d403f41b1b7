package wire_test

import (
	"reflect"
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

var enforcement = wire.Enforcement{
	Revision: 1_790_000_000_123,
	Orders: []wire.Order{
		{State: policy.EnforcedOff, Percent: 100, Policy: []byte{}, Tier: []byte{}},
		{State: policy.EnforcedShadow, Percent: 1, Expires: 1_790_000_600_000, Policy: []byte("api"),
			Tier: []byte("premium")},
		{State: policy.EnforcedAll, Percent: 25, Policy: []byte("api"), Tier: []byte{}},
	},
	Bans: []wire.Ban{{Key: keyhash.Key{1, 2, 3}}, {Key: keyhash.Key{0xff}, Expires: 1_790_000_600_000}},
	Freed: []wire.Freed{{Bucket: keyhash.Key{4, 5}, Revision: 1_790_000_000_100},
		{Bucket: keyhash.Key{6}, Revision: 7, Full: true}},
}

func TestEnforcementReadsBack(t *testing.T) {
	got := wire.AppendEnforcement(nil, &enforcement)
	golden(t, "enforcement", got)
	var back wire.Enforcement
	if err := wire.DecodeEnforcement(got, &back); err != nil || !reflect.DeepEqual(back, enforcement) ||
		!wire.IsEnforcement(got) {
		t.Errorf("%+v: %v", back, err)
	}
	if err := wire.DecodeEnforcement(wire.AppendEnforcement(nil, &wire.Enforcement{}), &back); err != nil ||
		len(back.Orders)+len(back.Bans)+len(back.Freed) != 0 {
		t.Errorf("nothing reads back as %+v: %v", back, err)
	}
	if wire.IsEnforcement(snapshot(t)) || wire.IsConsumers(got) ||
		wire.IsEnforcement(wire.AppendConsumers(nil, consumers)) {
		t.Error("messages are taken for each other")
	}
}

func TestDamagedEnforcementIsRefused(t *testing.T) {
	var back wire.Enforcement
	message := wire.AppendEnforcement(nil, &enforcement)
	for i := range message {
		if wire.DecodeEnforcement(message[:i], &back) == nil {
			t.Errorf("cut at %d it was accepted", i)
		}
	}
	order := func(change func(*wire.Order)) wire.Enforcement {
		o := wire.Order{State: policy.EnforcedOff, Percent: 100}
		change(&o)
		return wire.Enforcement{Orders: []wire.Order{o}}
	}
	for name, m := range map[string]wire.Enforcement{
		"too many orders":        {Orders: make([]wire.Order, wire.MaxOrders+1)},
		"too many bans":          {Bans: make([]wire.Ban, wire.MaxBans+1)},
		"too many freed":         {Freed: make([]wire.Freed, wire.MaxFreed+1)},
		"a state between":        order(func(o *wire.Order) { o.State = 50 }),
		"no share":               order(func(o *wire.Order) { o.Percent = 0 }),
		"more than everything":   order(func(o *wire.Order) { o.Percent = 101 }),
		"too long a name":        order(func(o *wire.Order) { o.Policy = make([]byte, 64) }),
		"too long a tier":        order(func(o *wire.Order) { o.Tier = make([]byte, 64) }),
		"bans out of order":      {Bans: []wire.Ban{{Key: keyhash.Key{2}}, {Key: keyhash.Key{1}}}},
		"the same ban twice":     {Bans: []wire.Ban{{Key: keyhash.Key{2}}, {Key: keyhash.Key{2}}}},
		"an end before it all":   order(func(o *wire.Order) { o.Expires = -1 }),
		"a ban with such an end": {Bans: []wire.Ban{{Expires: -1}}},
	} {
		if wire.DecodeEnforcement(wire.AppendEnforcement(nil, &m), &back) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzEnforcement(f *testing.F) {
	f.Add(wire.AppendEnforcement(nil, &enforcement))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, back wire.Enforcement
		if wire.DecodeEnforcement(b, &m) != nil {
			return
		}
		if len(m.Orders) > wire.MaxOrders || len(m.Bans) > wire.MaxBans {
			t.Errorf("%d orders, %d bans", len(m.Orders), len(m.Bans))
		}
		if err := wire.DecodeEnforcement(wire.AppendEnforcement(nil, &m), &back); err != nil ||
			!reflect.DeepEqual(m, back) {
			t.Errorf("%+v reads back as %+v: %v", m, back, err)
		}
	})
}
