package policy_test

import (
	"fmt"

	"github.com/weir-proxy/weir/shared/policy"
)

// A policy set is decoded as a whole: every problem is listed with its path, or there is none.
func ExampleDecode() {
	doc, err := policy.ParseJSON([]byte(`{"version": "weir/v1", "policies": [
		{"name": "per-ip", "partition": ["client_ip"], "limit": {"quota": -1, "window": "1m"}},
		{"name": "per-ip", "partition": [], "limit": {"quota": 10, "window": "1y"}}]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = policy.Decode(doc)
	fmt.Println(err)
	// Output:
	// policies[0].limit.quota: must be a whole number from 0 to 4503599627370496, not -1
	// policies[1].limit.window: must be a whole number with a unit (ms s m h d) from 1s to 366d, not 1y
	// policies[1].name: is taken by policies[0]: names must be unique
}

// The bound is the sentence that `weir check` prints: how much can pass at most.
func ExamplePolicy_Bound() {
	doc, _ := policy.ParseJSON([]byte(`{"version": "weir/v1", "policies": [
		{"name": "per-ip", "partition": ["client_ip"], "limit": {"quota": 100, "window": "1m"}, "mode": "leased"}]}`))
	set, err := policy.Decode(doc)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(set.Policies[0].Bound(nil))
	// Output:
	// at most 100 at once + 100 per 1m for each partition key over all Envoys, in every interval
}
