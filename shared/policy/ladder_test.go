package policy_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

func TestLadder(t *testing.T) {
	share30 := func(then policy.Step) policy.OnFailure {
		return policy.OnFailure{{For: 30 * quota.Second, Do: policy.StepShare}, {Do: then}}
	}
	three := policy.OnFailure{{For: 10 * quota.Second, Do: policy.StepAllow},
		{For: 5 * quota.Minute, Do: policy.StepShare}, {Do: policy.StepDeny}}
	for _, c := range []struct {
		failure policy.OnFailure
		failing quota.Span
		want    policy.Step
	}{
		{policy.DefaultOnFailure, 0, policy.StepShare},
		{policy.DefaultOnFailure, 30*quota.Second - 1, policy.StepShare},
		{policy.DefaultOnFailure, 30 * quota.Second, policy.StepAllow},
		{share30(policy.StepDeny), 30 * quota.Second, policy.StepDeny},
		{policy.OnFailure{}, 0, policy.StepAllow},
		{policy.OnFailure{{Do: policy.StepDeny}}, 0, policy.StepDeny},
		{policy.OnFailure{{Do: policy.StepShare}}, quota.Hour, policy.StepShare},
		{three, 0, policy.StepAllow},
		{three, 10 * quota.Second, policy.StepShare},
		{three, 310*quota.Second - 1, policy.StepShare},
		{three, 310 * quota.Second, policy.StepDeny},
		{three, quota.Never, policy.StepDeny},
	} {
		if got := c.failure.At(c.failing).Do; got != c.want {
			t.Errorf("%v after %d µs: %v, want %v", c.failure, c.failing, got, c.want)
		}
	}
	for step, want := range []int{policy.StepGround: -1, policy.StepLeases: -1, policy.StepShare: 1,
		policy.StepAllow: 0, policy.StepDeny: 2} {
		if got := three.Position(policy.Step(step)); got != want {
			t.Errorf("%v is at index %d, want %d", policy.Step(step), got, want)
		}
	}
	if got := three.String(); got != "allow for 10s, then each Envoy's even share for 5m, then deny" {
		t.Error(got)
	}
}

// A fault of a ladder is reported at its place.
func TestLaddersThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		`[]`:                         "policies[0].on_failure: must have 1 to 4 steps, like [{share: 30s}, allow]",
		`"deny"`:                     "policies[0].on_failure: must be a list of steps like [{share: 30s}, allow], not a string",
		`null`:                       "policies[0].on_failure: must be a list of steps like [{share: 30s}, allow], not nothing",
		`["allow","deny"]`:           "policies[0].on_failure[0]: needs a time, like {share: 30s}: only the last step has none",
		`[{"share":"30s"}]`:          "policies[0].on_failure[0]: must have no time: the last step lasts as long as the failure",
		`[{"share":"30s"},"local"]`:  "policies[0].on_failure[1]: must be one of share, allow, deny, not local",
		`[{"refuse":"30s"},"deny"]`:  "policies[0].on_failure[0].refuse: must be one of share, allow, deny, not refuse",
		`[{"start":"empty"},"deny"]`: "policies[0].on_failure[0]: must be share, allow or deny with a time, like {share: 30s}",
		`[{"allow":"1s","start":"empty"},"deny"]`: "policies[0].on_failure[0].start: is for a share alone",
		`[{"share":"0s"},"deny"]`:                 "policies[0].on_failure[0].share: must be a whole number with a unit (ms s m h d) from 1ms to 366d, not 0s",
		`[{"allow":"1s","deny":"1s"},"deny"]`:     "policies[0].on_failure[0]: must be one step",
	} {
		doc, err := policy.ParseJSON([]byte(`{"version":"weir/v1","policies":[{"name":"a","partition":[],"limit":{"quota":1,"window":"1s"},"on_failure":` + text + `}]}`))
		if err != nil {
			t.Fatal(err)
		}
		if _, err = policy.Decode(doc); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", text, err, want)
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
