package wire_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

var consumers = wire.Consumers{
	Revision: 1_790_000_000_123, ExceptionsRevision: 300, HasExceptions: true, Complete: true,
	Items: []wire.Consumer{
		{Key: keyhash.Key{1, 2, 3}, Tier: []byte("premium"), Exceptions: wire.AppendExceptions(nil, special)},
		{Key: keyhash.Key{0xff}, Tier: []byte{}, Exceptions: []byte{}},
	},
}

// special has all exceptions that a consumer may have.
var special = wire.Exceptions{
	Banned: 1_790_000_000_123, Bypass: wire.ForGood,
	Overrides: []wire.Override{
		{Policy: "api", Until: wire.ForGood,
			Limits: []wire.Figures{{Quota: 500, Window: quota.Minute, Burst: 50, Root: quota.MaxWindow},
				{Quota: 20, Window: quota.Second}}},
		{Policy: "free-of-charge", Until: 1_790_000_000_000},
		{Policy: "last", Until: 1, Limits: []wire.Figures{{Quota: 1, Window: quota.Hour, Root: 3}}},
	},
}

func TestConsumersReadBack(t *testing.T) {
	message := wire.AppendConsumers(nil, consumers)
	question := wire.AppendQuestion(nil, []keyhash.Key{{1, 2, 3}, {0xff}})
	for name, got := range map[string][]byte{"consumers": message, "consumers_question": question} {
		golden(t, name, got)
	}
	var back wire.Consumers
	if err := wire.DecodeConsumers(message, &back); err != nil || !reflect.DeepEqual(back, consumers) ||
		!wire.IsConsumers(message) {
		t.Errorf("%+v: %v", back, err)
	}
	if keys, err := wire.DecodeQuestion(question); err != nil || len(keys) != 2 || keys[1] != (keyhash.Key{0xff}) {
		t.Errorf("%v: %v", keys, err)
	}
	if wire.IsConsumers(snapshot(t)) {
		t.Error("a snapshot is taken for consumers")
	}
}

func TestDamagedConsumersAreRefused(t *testing.T) {
	var back wire.Consumers
	question := wire.AppendQuestion(nil, []keyhash.Key{{1}})
	message := wire.AppendConsumers(nil, consumers)
	for i := range message {
		if wire.DecodeConsumers(message[:i], &back) == nil {
			t.Errorf("cut at %d it was accepted", i)
		}
	}
	for i := range question {
		if _, err := wire.DecodeQuestion(question[:i]); err == nil {
			t.Errorf("a question cut at %d was accepted", i)
		}
	}
	for name, m := range map[string]wire.Consumers{
		"too many":        {Items: make([]wire.Consumer, wire.MaxConsumers+1)},
		"too long a tier": {Items: []wire.Consumer{{Tier: make([]byte, 64)}}},
		"too special":     {Items: []wire.Consumer{{Exceptions: make([]byte, wire.MaxExceptions+1)}}},
	} {
		if wire.DecodeConsumers(wire.AppendConsumers(nil, m), &back) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for _, n := range []int{0, wire.MaxQuestions + 1} {
		if _, err := wire.DecodeQuestion(wire.AppendQuestion(nil, make([]keyhash.Key, n))); err == nil {
			t.Errorf("a question about %d was accepted", n)
		}
	}
}

func TestSpecialReadsBack(t *testing.T) {
	b := wire.AppendExceptions(nil, special)
	if banned, bypass := wire.Ends(b); banned != special.Banned || bypass != special.Bypass {
		t.Errorf("banned until %d, bypass until %d", banned, bypass)
	}
	var l wire.Limits
	for _, o := range special.Overrides {
		if !wire.FindOverride(b, []byte(o.Policy), &l) || l.Until != o.Until || l.Count != len(o.Limits) ||
			l.Count > 0 && !reflect.DeepEqual(l.Each[:l.Count], o.Limits) {
			t.Errorf("%s: %+v", o.Policy, l)
		}
	}
	for _, name := range []string{"", "ap", "apis", "other"} {
		if wire.FindOverride(b, []byte(name), &l) || l.Count != 0 {
			t.Errorf("%q is overridden: %+v", name, l)
		}
	}
	if b := wire.AppendExceptions(nil, wire.Exceptions{}); len(b) != 0 {
		t.Errorf("nothing takes %d bytes", len(b))
	}
	if banned, bypass := wire.Ends(nil); banned != 0 || bypass != 0 || wire.FindOverride(nil, []byte("api"), &l) {
		t.Error("nothing is something")
	}
	// Bytes that are cut off or damaged are no override.
	for i := range b {
		if wire.FindOverride(b[:i], []byte("last"), &l) {
			t.Errorf("cut at %d an override is found", i)
		}
	}
}

// The largest number of limits that the interface takes for ordinary names fits, with all their
// roots.
func TestSpecialIsBounded(t *testing.T) {
	var s wire.Exceptions
	for i := range wire.MaxOverrides {
		s.Overrides = append(s.Overrides, wire.Override{
			Policy: strings.Repeat("x", 62) + string(rune('a'+i)), Until: 4_000_000_000_000,
			Limits: []wire.Figures{{Quota: 1_000_000, Window: quota.Day, Burst: 100_000}},
		})
	}
	unrooted := len(wire.AppendExceptions(nil, s))
	if unrooted > wire.MaxUnrooted {
		t.Errorf("%d bytes", unrooted)
	}
	for i := range s.Overrides {
		s.Overrides[i].Limits = make([]wire.Figures, policy.MaxLimits)
	}
	unrooted = len(wire.AppendExceptions(nil, s))
	for i := range s.Overrides {
		for n := range s.Overrides[i].Limits {
			s.Overrides[i].Limits[n].Root = quota.MaxWindow + policy.MaxLimits
		}
	}
	if n := len(wire.AppendExceptions(nil, s)); n > unrooted+wire.MaxExceptions-wire.MaxUnrooted {
		t.Errorf("roots make %d bytes of %d", n, unrooted)
	}
}

func FuzzConsumers(f *testing.F) {
	f.Add(wire.AppendConsumers(nil, consumers))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m wire.Consumers
		if wire.DecodeConsumers(b, &m) == nil && len(m.Items) > wire.MaxConsumers {
			t.Errorf("%d items", len(m.Items))
		}
		_, _ = wire.DecodeQuestion(b)
		for _, it := range m.Items {
			var l wire.Limits
			wire.Ends(it.Exceptions)
			if wire.FindOverride(it.Exceptions, []byte("api"), &l); l.Count > len(l.Each) {
				t.Errorf("%d limits", l.Count)
			}
		}
	})
}
