package policies

import (
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

func TestCommitText(t *testing.T) {
	const kept, elapsed = ", unfinished: reserved", ", unfinished: elapsed"
	for want, c := range map[string]policy.Commit{
		"reserve 1, commit status 401: 1, 5xx: 2, rest: 0, missing: 0" + kept: {By: policy.CommitStatus,
			Statuses: []policy.StatusCost{
				{First: 401, Last: 401, Cost: 1}, {First: 500, Last: 599, Cost: 2}, {Last: 999}}},
		"reserve 1, commit header x-used, missing: reserved" + kept: {By: policy.CommitHeader, Name: "x-used",
			Missing: policy.MissingReserved},
		"reserve 1, commit duration 10ms, missing: 9" + elapsed: {By: policy.CommitDuration,
			Unit: 10 * quota.Millisecond, Missing: 9},
	} {
		if got := costText(policy.Cost{Fixed: 1}, c); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
