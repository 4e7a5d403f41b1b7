package policy_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// listOf is a list of limits with these windows.
func listOf(t *testing.T, windows ...quota.Span) (limits []policy.Limit) {
	t.Helper()
	for _, w := range windows {
		l, err := policy.NewLimit(policy.Counting{}, 10, w, 0)
		if err != nil {
			t.Fatal(err)
		}
		limits = append(limits, l)
	}
	return limits
}

// A list of limits, changed step by step: each limit has the buckets of the one whose place it
// takes.
func TestLimitsInheritTheirBuckets(t *testing.T) {
	const s, m, h, d, month = quota.Second, quota.Minute, quota.Hour, quota.Day, 30 * quota.Day
	for name, steps := range map[string][][2][]quota.Span{ // windows, and the roots that they have
		"put before, turned, taken out": {
			{{d}, {0}}, {{s, d}, {s, 0}}, {{d, s}, {0, s}}, {{d}, {0}}, {{m, d, s}, {m, 0, s}}},
		"put behind, a longer one": {
			{{d}, {0}}, {{d, month}, {0, month}}, {{month, d}, {month, 0}}, {{d}, {0}}},
		"a window changes": {
			{{s, d}, {s, 0}}, {{2 * s, d}, {s, 0}}, {{d, s}, {0, s}}, {{h, 2 * d}, {s, 0}}},
		"the only one changes": {{{d}, {0}}, {{h}, {0}}, {{s, h}, {s, 0}}, {{s, 2 * h}, {s, 0}}},
		"the longest is taken out and comes back": {
			{{s, d}, {s, 0}}, {{s}, {s}}, {{d, s}, {0, s}}, {{d, s, month}, {0, s, month}},
			{{month}, {month}}, {{month, d}, {month, 0}}},
		"a root is taken": {{{s, d}, {s, 0}}, {{m, d}, {s, 0}}, {{d, s, m}, {0, s + 1, s}}},
	} {
		var before []policy.Limit
		for i, step := range steps {
			limits := listOf(t, step[0]...)
			policy.Inherit(limits, before, nil)
			var roots []quota.Span
			for _, l := range limits {
				roots = append(roots, l.Root)
			}
			if !slices.Equal(roots, step[1]) {
				t.Errorf("%s: after step %d %v have the roots %v, want %v", name, i, step[0], roots, step[1])
			}
			before = limits
		}
	}
}

// Whatever becomes of a list: no two limits have a bucket, one whose window stays keeps its own,
// and the order says nothing.
func TestInheritAnyChange(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	windows := []quota.Span{1, 2, 5, 60, 90, 3600, 7200, 86400, 2592000}
	var before []policy.Limit
	for game := range 20_000 {
		var list []quota.Span
		for _, at := range r.Perm(len(windows))[:1+r.IntN(policy.MaxLimits)] {
			list = append(list, windows[at]*quota.Second)
		}
		limits := listOf(t, list...)
		policy.Inherit(limits, before, nil)
		says := func() string { return fmt.Sprintf("seed %d, game %d: %v after %v", seed, game, limits, before) }
		seen := map[quota.Span]bool{}
		for _, l := range limits {
			if seen[l.Root] {
				t.Fatal(says(), "two have a root")
			}
			seen[l.Root] = true
			for _, was := range before {
				if was.Window == l.Window && was.Root != l.Root {
					t.Fatal(says(), "a window that stays has another root")
				}
			}
		}
		lost := 0
		for _, was := range before {
			if !seen[was.Root] {
				lost++
			}
		}
		if lost > max(0, len(before)-len(limits)) {
			t.Fatal(says(), "a limit was given up while a new one began")
		}
		turned := slices.Clone(limits)
		slices.Reverse(turned)
		policy.Inherit(turned, before, nil)
		slices.Reverse(turned)
		if !slices.Equal(turned, limits) {
			t.Fatal(says(), "turned", turned)
		}
		if before = limits; r.IntN(20) == 0 {
			before = nil
		}
	}
}

// Limits of a consumer's own, changed step by step, under a policy with a day and a minute.
func TestOwnLimitsInheritTheirBuckets(t *testing.T) {
	const s, m, h, d, month = quota.Second, quota.Minute, quota.Hour, quota.Day, 30 * quota.Day
	of := listOf(t, d, m)
	policy.Inherit(of, nil, nil)
	for name, steps := range map[string][][2][]quota.Span{ // windows, and the roots that they have
		"the policy's windows, turned": {{{d, m}, {0, m}}, {{m, d}, {m, 0}}, {{m}, {m}}, {{d}, {0}}},
		"one whose window changes":     {{{h}, {0}}, {{2 * m}, {0}}, {{m}, {m}}, {{2 * m}, {m}}},
		"a further one, ever new": {
			{{d, m, s}, {0, m, 1}}, {{d, 2 * s, m}, {0, 1, m}}, {{month, d, m}, {1, 0, m}},
		},
		"further ones that come and go": {
			{{d, m, s, h}, {0, m, 2, 1}}, {{d, m, 3 * s}, {0, m, 2}}, {{d, m}, {0, m}}, {{d, m, 9 * s}, {0, m, 1}}},
		"the policy's window comes back": {{{2 * m}, {m}}, {{2 * m, m}, {0, m}}, {{2 * m, d, m}, {1, 0, m}}},
	} {
		var before []policy.Limit
		for i, step := range steps {
			limits := listOf(t, step[0]...)
			policy.InheritOwn(limits, of, before)
			var roots []quota.Span
			for _, l := range limits {
				roots = append(roots, l.Root)
			}
			if !slices.Equal(roots, step[1]) {
				t.Errorf("%s: after step %d %v have the roots %v, want %v", name, i, step[0], roots, step[1])
			}
			before = limits
		}
	}
}
