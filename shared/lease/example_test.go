package lease_test

import (
	"fmt"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Two nodes share a bucket of 100 a minute. The tokens of the first node count as used until their
// lease ends, so both together never spend more than the bucket has.
func ExampleLedger_Grant() {
	limit, _ := quota.NewParams(100, quota.Minute, 100)
	ask := func(waiting, keep int64) lease.Ask {
		return lease.Ask{Params: limit, Version: 1, Waiting: waiting, Cost: 1, Deadline: lease.Deadline, Keep: keep,
			Nodes: 2}
	}
	var bucket lease.Ledger
	now := quota.Instant(quota.Hour)

	bucket, first := bucket.Grant(now, ask(1, 30))
	fmt.Println("first node: requests", first.Waiting, "tokens to keep", first.Keep, "left", first.Level)

	_, second := bucket.Grant(now, ask(95, 0))
	fmt.Println("second node: requests", second.Waiting, "left", second.Level)
	// Output:
	// first node: requests 1 tokens to keep 8 left 91
	// second node: requests 91 left 0
}
