package wire_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

var decisions = wire.Decisions{
	Node: []byte("edge-1"), Version: 42,
	Counts: []wire.RefusedCount{{Policy: 1, Tier: 2, Refused: 300}, {Policy: 7, Refused: 1}},
	Refusals: []wire.Refusal{{
		CallerCount: wire.CallerCount{Policy: 1, Tier: 2, Bucket: keyhash.Key{1, 2},
			Identity: wire.Identity{Consumer: keyhash.Key{3, 4}, Shown: []byte("\x00\x02/a\x03\x00")}, Count: 299,
			Over: 3},
		Limit: 9, Reason: 1, Source: 7, Cost: 5, Left: 4, Retry: quota.Second, Ago: quota.Millisecond,
	}},
	Callers: []wire.CallerCount{{Policy: 7, Bucket: keyhash.Key{5}, Identity: wire.Identity{Shown: []byte{}},
		Count: 16}, {Policy: 8, Bucket: keyhash.Key{6}, Identity: wire.Identity{Shown: []byte{}}}},
}

func TestDamagedDecisionsAreRefused(t *testing.T) {
	caller := func(c wire.CallerCount) wire.Decisions { return wire.Decisions{Callers: []wire.CallerCount{c}} }
	for name, m := range map[string]wire.Decisions{
		"too many counts":         {Counts: make([]wire.RefusedCount, wire.MaxCounts+1)},
		"too many refusals":       {Refusals: make([]wire.Refusal, wire.MaxRefusals+1)},
		"too many callers":        {Callers: make([]wire.CallerCount, wire.MaxCallers+1)},
		"too high an index":       caller(wire.CallerCount{Policy: policy.MaxPolicies}),
		"shown that ends early":   caller(wire.CallerCount{Identity: wire.Identity{Shown: []byte{0}}}),
		"shown shorter than said": caller(wire.CallerCount{Identity: wire.Identity{Shown: []byte{0, 2, 'a'}}}),
		"shown longer than allowed": caller(wire.CallerCount{Identity: wire.Identity{Shown: append([]byte{0, 65},
			make([]byte, 65)...)}}),
		"shown that is not": caller(wire.CallerCount{Identity: wire.Identity{Shown: []byte{policy.MaxShown,
			0}}}),
		"more over than counted": caller(wire.CallerCount{Count: 1, Over: 2}),
		"an older one":           {Refusals: []wire.Refusal{{Ago: quota.Hour + 1}}},
	} {
		areRefused(t, map[string]wire.Report{name: {Decisions: &m}})
	}
}

func largestDecisions() *wire.Decisions {
	var shown []byte
	for i := range policy.MaxShown {
		shown = append(append(shown, byte(i), policy.MaxShownText), make([]byte, policy.MaxShownText)...)
	}
	c := wire.CallerCount{Policy: policy.MaxPolicies - 1, Tier: 255, Identity: wire.Identity{Shown: shown},
		Count: 1 << 40, Over: 1 << 40}
	m := wire.Decisions{Counts: make([]wire.RefusedCount, wire.MaxCounts)}
	for i := range m.Counts {
		m.Counts[i] = wire.RefusedCount{Policy: policy.MaxPolicies - 1, Tier: 255, Refused: 1 << 40}
	}
	for range wire.MaxRefusals {
		m.Refusals = append(m.Refusals,
			wire.Refusal{CallerCount: c, Limit: policy.MaxSetLimits - 1, Cost: policy.MaxCost, Left: quota.MaxUnits,
				Retry: quota.MaxWindow, Ago: quota.Hour})
	}
	for range wire.MaxCallers {
		m.Callers = append(m.Callers, c)
	}
	return &m
}
