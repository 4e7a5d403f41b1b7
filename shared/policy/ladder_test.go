package policy_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

func TestLadder(t *testing.T) {
	for _, c := range []struct {
		failure policy.OnFailure
		failing quota.Span
		want    policy.Step
	}{
		{policy.OnFailure{LocalFor: 30 * quota.Second, Then: policy.ThenAllow}, 0, policy.StepShare},
		{policy.OnFailure{LocalFor: 30 * quota.Second, Then: policy.ThenAllow}, 30*quota.Second - 1, policy.StepShare},
		{policy.OnFailure{LocalFor: 30 * quota.Second, Then: policy.ThenAllow}, 30 * quota.Second, policy.StepAllow},
		{policy.OnFailure{LocalFor: 30 * quota.Second, Then: policy.ThenDeny}, 30 * quota.Second, policy.StepDeny},
		{policy.OnFailure{Then: policy.ThenAllow}, 0, policy.StepAllow},
		{policy.OnFailure{Then: policy.ThenDeny}, 0, policy.StepDeny},
		{policy.OnFailure{Then: policy.ThenLocal}, quota.Hour, policy.StepShare},
	} {
		if got := c.failure.At(c.failing); got != c.want {
			t.Errorf("%v after %d µs: %v, want %v", c.failure, c.failing, got, c.want)
		}
	}
}

func TestStepNames(t *testing.T) {
	for s, want := range []string{"normal", "leases", "share", "allow", "deny", "unknown"} {
		if got := policy.Step(s).String(); got != want {
			t.Errorf("step %d is %q, want %q", s, got, want)
		}
	}
}
