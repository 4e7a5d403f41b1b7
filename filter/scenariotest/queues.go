package scenariotest

// leaky is a policy of ten requests a second, of which some may wait.
func leaky(mode, waiting string) string {
	return one(mode, `"algorithm":"leaky_bucket","limit":{"quota":10,"window":"1s","burst":`+waiting+`}`)
}

// queues are leaky buckets.
func queues() []Scenario {
	return append(each(spaces, "local", "strict"), []Scenario{
		// A client that goes lets those behind move up, and gives the last turn back to the bucket.
		{Name: "leaving a local queue", Policies: leaky("local", "2"), Steps: []Step{
			{As: "first", Want: "allowed"},
			{As: "a", Want: "waits delayed=100ms"},
			{As: "b", Want: "waits delayed=200ms"},
			{After: 10 * ms, Leave: "a", As: "c", Want: "waits delayed=190ms"},
			{After: 89 * ms, See: "b", Of: 1, Want: "waits"},
			{After: 12 * ms, See: "b", Of: 1, Want: "allowed"},
			{See: "c", Of: 1, Want: "waits"},
			{After: 100 * ms, See: "c", Of: 1, Want: "allowed"},
			{Leave: "c", As: "d", Want: "waits delayed=80ms..100ms"}, // Too late to matter.
		}},
		// A turn that cannot go back, because another worker's has come behind it, serves the next
		// request of this worker; once.
		{Name: "a place in the middle is kept", Workers: 2, Policies: leaky("local", "2"), Steps: []Step{
			{Want: "allowed"},
			{As: "a", Want: "waits delayed=100ms"},
			{Worker: 1, As: "b", Want: "waits delayed=200ms"},
			{Leave: "a", Worker: 1, Want: "refused"},
			{As: "c", Want: "waits delayed=100ms"},
			{Want: "refused"},
			{Leave: "c"},
			{After: 100 * ms, As: "d", Want: "waits delayed=200ms"}, // It passed unused, and counts as used.
			{After: 110 * ms, See: "b", Of: 1, Want: "allowed"},
		}},
		{Name: "a request that another policy refuses leaves no gap",
			Policies: leaky("local", "2") + `,{"name":"q","match":{"headers":[{"name":"x-q","present":true}]},` +
				`"partition":[],"mode":"local","limit":{"quota":1,"window":"1h"}}`,
			Steps: []Step{
				{Ask: "x-q=1", Want: "allowed"},
				{Times: 5, Ask: "x-q=1", Want: "refused policy=q"},
				{As: "next", Want: "waits delayed=100ms"},
			}},
	}...)
}

// spaces is requests that leave one after the other, as far apart as the rate says, whichever
// worker has them; beyond the places they are refused at once. Headers count the places.
func spaces(mode string) Scenario {
	// turn is from the refused request to the next turn. A strict one has waited for the control
	// plane for 2 ms of it.
	turn, retry := 75*ms, "75ms"
	if mode == "strict" {
		turn, retry = 73*ms, "73ms"
	}
	return Scenario{Name: "a queue spaces requests", Workers: 2, Policies: leaky(mode, "4"), Steps: []Step{
		{As: "0", Want: "*"},
		{After: 5 * ms, Worker: 1, As: "1", Want: "waits"},
		{After: 5 * ms, As: "2", Want: "waits"},
		{After: 5 * ms, Worker: 1, As: "3", Want: "waits"},
		{After: 5 * ms, As: "4", Want: "waits"},
		{After: 5 * ms, See: "4", Of: 1, Want: "waits remaining=0 delayed=375ms..400ms"},
		{Want: "refused reason=quota retry=" + retry},
		{After: turn - ms, See: "1", Of: 1, Want: "waits"},
		{After: 2 * ms, See: "1", Of: 1, Want: `allowed remaining=3 ratelimit=="p";r=3;t=1`},
		{After: 98 * ms, See: "2", Of: 1, Want: "waits"},
		{After: 2 * ms, See: "2", Of: 1, Want: "allowed"},
		{After: 98 * ms, See: "3", Of: 1, Want: "waits"},
		{After: 2 * ms, See: "3", Of: 1, Want: "allowed"},
		{After: 98 * ms, See: "4", Of: 1, Want: "waits"},
		{After: 2 * ms, See: "4", Of: 1, Want: "allowed",
			Counts: "requests.allowed=5 requests.refused=1 requests.delayed=4"},
	}}
}
