package quota_test

import (
	"fmt"

	"github.com/weir-proxy/weir/shared/quota"
)

// A bucket that allows 10 a minute: ten requests pass at once, the eleventh waits for a token,
// which comes every six seconds.
func ExampleParams_Take() {
	limit, err := quota.NewParams(10, quota.Minute, 10)
	if err != nil {
		fmt.Println(err)
		return
	}
	var bucket quota.State // The zero value is a full bucket.
	now := quota.Instant(0)
	for range 10 {
		bucket, _ = limit.Take(bucket, now, 1)
	}
	_, result := limit.Take(bucket, now, 1)
	fmt.Println("allowed:", result.Allowed, "- wait in seconds:", result.RetryAfter/quota.Second)

	now += quota.Instant(result.RetryAfter)
	bucket, result = limit.Take(bucket, now, 1)
	fmt.Println("allowed:", result.Allowed, "- remaining:", limit.Remaining(bucket))
	// Output:
	// allowed: false - wait in seconds: 6
	// allowed: true - remaining: 0
}

// A changed limit keeps used tokens: a caller that has used 8 of 10 has 2 left of 10, and none of
// 5.
func ExampleParams_Convert() {
	ten, _ := quota.NewParams(10, quota.Hour, 10)
	five, _ := quota.NewParams(5, quota.Hour, 5)
	bucket, _ := ten.Take(quota.State{}, 0, 8)
	fmt.Println("of ten:", ten.Remaining(bucket))
	fmt.Println("of five:", five.Remaining(ten.Convert(bucket, 0, five, 0)))
	// Output:
	// of ten: 2
	// of five: 0
}
