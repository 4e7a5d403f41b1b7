package app_test

import (
	"slices"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/app"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/shared/policy"
)

// A policy that is off, by the set or by an order, does not count as a policy that no request
// meets: no request can meet it.
func TestPoliciesThatAreOffAreNotUnmet(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	past := now.Add(-time.Second)
	set := []policy.Policy{{Name: "on", Enforced: policy.EnforcedAll}, {Name: "off", Enforced: policy.EnforcedOff},
		{Name: "shadow", Enforced: policy.EnforcedShadow}}
	off := func(name string) enforcement.Order {
		return enforcement.Order{State: enforcement.Off, Policy: name, Percent: 100}
	}
	ended, half, tier, on := off("on"), off("on"), off("on"), off("off")
	ended.Expires, half.Percent, tier.Tier, on.State = &past, 50, "free", enforcement.Enforce
	for name, c := range map[string]struct {
		orders []enforcement.Order
		want   []string
	}{
		"no order":                {nil, []string{"on", "shadow"}},
		"one off":                 {[]enforcement.Order{off("on")}, []string{"shadow"}},
		"all off":                 {[]enforcement.Order{off("")}, nil},
		"all off, one enforced":   {[]enforcement.Order{off(""), on}, []string{"off"}},
		"one enforced":            {[]enforcement.Order{on}, []string{"on", "off", "shadow"}},
		"an order that has ended": {[]enforcement.Order{ended}, []string{"on", "shadow"}},
		"half of the keys":        {[]enforcement.Order{half}, []string{"on", "shadow"}},
		"one tier":                {[]enforcement.Order{tier}, []string{"on", "shadow"}},
	} {
		if got := app.Deciding(set, enforcement.Orders{List: c.orders}, now); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
