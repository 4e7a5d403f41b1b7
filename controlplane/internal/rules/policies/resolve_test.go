package policies_test

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
)

// A node that still uses an older version asks by that version's numbers. They lead to the same
// policy, tier and index now.
func TestResolve(t *testing.T) {
	m := newMemory()
	s := newService(m)
	version := func(expected uint64, tiers, rules string) *policies.Compiled {
		doc := "version: weir/v1\n" + tiers + "policies:\n" + rules
		put(t, s, expected, []byte(doc))
		c, err := s.At(t.Context(), expected+1)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	const tiers = "identity: {default_tier: free}\n"
	was := version(0, "tiers: [free, premium, gold]\n"+tiers, `
  - {name: a, partition: [], limit: [{quota: 1, window: 1s}, {quota: 2, window: 1m}], candidate: {limit: {quota: 3, window: 1s}}}
  - {name: b, partition: [], limits: {free: {quota: 4, window: 1s}, premium: {quota: 5, window: 1s}, gold: unlimited}}
  - {name: c, partition: [], limits: {free: {quota: 6, window: 1s}}}
  - {name: d, partition: [], limit: {quota: 9, window: 1s}}`)
	is := version(1, "tiers: [premium, free]\n"+tiers, `
  - {name: c, partition: [], limit: {quota: 60, window: 1s}}
  - {name: d, partition: [], limits: {free: {quota: 90, window: 1s}, premium: {quota: 91, window: 1s}}}
  - {name: b, partition: [], limits: {free: {quota: 40, window: 1s}, premium: {quota: 50, window: 1s}}}
  - {name: a, partition: [], limit: {quota: 10, window: 1s}, candidate: {limit: {quota: 30, window: 1s}}}`)
	for number, want := range []string{
		"a 10", "gone", "a 30", // the second limit is gone, the draft is not
		"b 40", "b 50", // gold had none, and so no number
		"c 60", "c 60", "c 60", // by tier before, for all now
		"d 90", // for all before, by tier now: the default tier's
		"gone", // there was no such number
	} {
		got := "gone"
		if p, l, ok := was.Resolve(uint32(number), is); ok {
			got = fmt.Sprint(p.Name, " ", l.Quota)
		}
		if got != want {
			t.Errorf("limit %d is now %s, want %s", number, got, want)
		}
	}
	for number, want := range []string{"", "", "", "free", "premium", "free", "premium", "gold", "", ""} {
		if got := was.TierOf(uint32(number)); got != want {
			t.Errorf("limit %d is for the tier %q, want %q", number, got, want)
		}
	}
}
