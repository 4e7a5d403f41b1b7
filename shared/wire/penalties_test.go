package wire_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

var offences = wire.Offences{Node: []byte("edge-1"), Items: []wire.Offence{
	{Key: keyhash.Key{1, 2}, Known: 1_800_000_000_000, Policy: []byte("login"), Level: 3, Until: 1_800_000_060_000,
		Forgotten: 1_800_003_660_000, Shadow: true, Prolonged: true, Version: 7,
		Identity: wire.Identity{Consumer: keyhash.Key{3}, Shown: []byte("\x00\x02/a")}},
	{Key: keyhash.Key{4}, Policy: []byte("p"), Level: 1, Until: 1, Forgotten: 1,
		Identity: wire.Identity{Shown: []byte{}}},
}}

var penalties = wire.Penalties{Revision: 1_800_000_000_009, Cleared: 1_800_000_000_001, Items: []wire.Penalty{
	{Key: keyhash.Key{1, 2}, Level: 3, Until: 1_800_000_060_000}, {Key: keyhash.Key{4}},
}}

func TestPenaltiesReadBack(t *testing.T) {
	message := wire.AppendPenalties(nil, &penalties)
	golden(t, "penalties", message)
	var again wire.Penalties
	if err := wire.DecodePenalties(message, &again); err != nil || !reflect.DeepEqual(again, penalties) ||
		!wire.IsPenalties(message) {
		t.Errorf("%+v: %v", again, err)
	}
}

func TestDamagedPenaltiesAreRefused(t *testing.T) {
	var news wire.Penalties
	other := wire.AppendPenalties(nil, &penalties)
	for i := range other {
		if wire.DecodePenalties(other[:i], &news) == nil {
			t.Errorf("penalties cut at %d were accepted", i)
		}
	}
	good := offences.Items[1]
	for name, change := range map[string]func(o *wire.Offence){
		"no policy":                func(o *wire.Offence) { o.Policy = nil },
		"too long a policy":        func(o *wire.Offence) { o.Policy = make([]byte, 64) },
		"no level":                 func(o *wire.Offence) { o.Level = 0 },
		"too high a level":         func(o *wire.Offence) { o.Level = wire.MaxPenaltyLevel + 1 },
		"forgotten before its end": func(o *wire.Offence) { o.Until = 5 },
		"shown that ends early":    func(o *wire.Offence) { o.Shown = []byte{0, 9} },
	} {
		one := good
		change(&one)
		m := wire.Offences{Items: []wire.Offence{one}}
		areRefused(t, map[string]wire.Report{name: {Offences: &m}})
	}
	for name, m := range map[string]wire.Penalties{
		"too many":              {Items: make([]wire.Penalty, wire.MaxPenalties+1)},
		"too high a level":      {Items: []wire.Penalty{{Level: wire.MaxPenaltyLevel + 1}}},
		"cleared in the future": {Revision: 1, Cleared: 2},
	} {
		if wire.DecodePenalties(wire.AppendPenalties(nil, &m), &news) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func largestOffences() *wire.Offences {
	var m wire.Offences
	var shown []byte
	for i := range policy.MaxShown {
		shown = append(append(shown, byte(i), policy.MaxShownText), make([]byte, policy.MaxShownText)...)
	}
	for range wire.MaxOffences {
		m.Items = append(m.Items, wire.Offence{
			Known: 1 << 53, Policy: []byte(strings.Repeat("p", 63)), Level: wire.MaxPenaltyLevel, Until: 1 << 45,
			Forgotten: 1 << 45,
			Shadow:    true, Prolonged: true, Version: 1 << 53, Identity: wire.Identity{Shown: shown},
		})
	}
	return &m
}

// A filter that does not know a bit of the extras refuses the snapshot; the bit of penalties is its
// own.
func TestPenaltiesOfAPolicyReadBack(t *testing.T) {
	rule := penalty.Rule{Refusals: 5, Within: quota.Minute, For: quota.Minute, Factor: 2, Max: quota.Day,
		Forget: quota.Hour,
		Jitter: 10, Extend: true, Shadow: true}
	s := everything(t)
	s.Set.Policies[0].Penalty = &rule
	message := wire.AppendSnapshot(nil, s)
	golden(t, "snapshot_penalty", message)
	_, _, set, err := wire.OpenSnapshot(message)
	if err != nil {
		t.Fatal(err)
	}
	var back *penalty.Rule
	readSet(&set, func(r penalty.Rule) { back = &r })
	if err := set.End(); err != nil || back == nil || *back != rule {
		t.Errorf("%+v: %v", back, err)
	}
}

// readSet reads a policy set, and calls back with its penalties.
func readSet(set *wire.SetReader, rule func(penalty.Rule)) {
	each, text := func(policy.SourceKind, wire.Ref) {}, func(wire.Ref) {}
	set.Head(each, text, each)
	addresses := func(policy.Range) {}
	set.Access(addresses, addresses, text, text, text)
	for range set.Policies() {
		set.Policy(func() {}, func(policy.Limit) {})
		set.Lists(text, text, text, func(policy.HeaderOp, wire.Ref, wire.Ref) {}, func(policy.PartKind, wire.Ref) {})
		readParts(set, rule)
	}
	readSetParts(set)
}

// readParts reads the parts of a policy, and calls back with its penalty.
func readParts(set *wire.SetReader, rule func(penalty.Rule)) {
	set.Parts(func(policy.Range) {}, func(int, wire.OwnFigures) {}, func(int, quota.Span) {}, func(uint8) {},
		func(policy.Adaptive) {}, func(*policy.Commit) {}, func(wire.Budgets) {}, rule)
	for range set.Roots() {
		set.Root()
	}
}

// readSetParts reads the parts of a set without classes.
func readSetParts(set *wire.SetReader) {
	set.Classes()
	set.Reading()
	set.Responses(new([policy.AnswerCount]wire.Response))
	for range set.Shown() {
		set.ShownPart()
	}
}

func FuzzDecodePenalties(f *testing.F) {
	f.Add(wire.AppendPenalties(nil, &penalties))
	f.Fuzz(func(t *testing.T, b []byte) {
		var news wire.Penalties
		if wire.DecodePenalties(b, &news) == nil && len(news.Items) > wire.MaxPenalties {
			t.Error("too many penalties")
		}
	})
}
