package scenariotest

import (
	"fmt"
	"slices"
	"strconv"
)

// settles returns scenarios of costs that the response contains.
func settles() []Scenario {
	return slices.Concat(each(failures401, "sliding_log", "sliding_window", "fixed_window", "token_bucket"), []Scenario{
		// A hundred requests at once get five guesses: the other requests are refused before any
		// answer comes.
		{Name: "parallel guesses", Policies: failedLogins("sliding_log"), Steps: []Step{
			{As: "right", Want: "allowed"},
			{As: "open", Pass: 4, Want: "refused"},
			{Times: 95, Want: "refused"},
			{End: "right", As: "next", Want: "allowed"}, // Its entry has come back.
		}},
		// The debt of a cost by the time that a request takes shows in the wait.
		{Name: "a cost by duration", Policies: one("local",
			`"limit":{"quota":10,"window":"10s"},"cost":{"reserve":1,"commit":{"duration":"100ms"}}`), Steps: []Step{
			{As: "1", Want: "allowed"},
			// 20 tokens, of which two seconds have brought back 1: 19 of 10 are owed.
			{After: 2 * sec, End: "1", Want: "refused retry=10s remaining=0"},
			{After: 10 * sec, Want: "allowed"},
		}},
		// A caller that asks for more than the burst reserves the whole bucket.
		{Name: "a reservation is capped", Policies: one("local", `"limit":{"quota":10,"window":"1m"},
			"algorithm":"sliding_log","cost":{"reserve":{"header":"x-max","max":1000,"missing":2},
			"commit":{"header":"x-used"}}`), Steps: []Step{
			{Ask: "x-max=900", Want: "allowed remaining=0", Answer: "200 x-used=4"},
			{Want: "allowed remaining=4"},
		}},
		{Name: "a policy in shadow settles", Policies: one("local", `"limit":{"quota":2,"window":"1h"},
			"algorithm":"sliding_log","enforcement":"shadow","cost":{"reserve":1,"commit":{"status":{"500":1,"rest":0}}}`),
			Steps: []Step{{Times: 9, Want: "unlimited",
				Counts: "shadow.allowed=9 shadow.refused=0 costs.refunded_tokens=9"}}},
		// A request settles by the figures under which it was admitted. It gives nothing back to a
		// bucket that counts in another way by now.
		{Name: "a request settles after a push", Policies: reserves(10), Steps: []Step{
			{As: "1", Want: "allowed"},
			{As: "other", Want: "allowed"},
			{Push: reserves(10)},
			{End: "1", Answer: "200 x-used=0", As: "2", Want: "allowed remaining=2"},
			{Push: reserves(12), As: "3", Want: "allowed remaining=0"},
			{End: "other", Answer: "200 x-used=0", Want: "refused"},
		}},
	})
}

// unknown returns scenarios of costs by a header of the response that may be missing. If a client
// goes before the response, the reservation stays charged. A response without the cost costs the
// policy's missing.
func unknown() []Scenario {
	cost := func(name, missing string, end Step, left, counts string) Scenario {
		end.Counts, end.End = "costs.reserved_tokens=3 "+counts, "1"
		if end.Answer == "" {
			end.End, end.Leave = "", "1"
		}
		return Scenario{Name: "a cost by a header: " + name, Policies: one("local", `"limit":{"quota":10,"window":"1h"},`+
			`"algorithm":"sliding_window","cost":{"reserve":3,"commit":{"header":"x-used"},"missing":`+missing+`}`),
			Steps: []Step{{As: "1", Want: "allowed remaining=7"}, end, {Want: left}}}
	}
	return []Scenario{
		cost("the client goes", "0", Step{}, "allowed remaining=4", settled(0, 0, 0, 0, 1)),
		cost("none", "0", Step{Answer: "200"}, "allowed remaining=7",
			settled(3, 0, 1, 1, 0)),
		cost("a negative one", `"reserved"`, Step{Answer: "200 x-used=-1"}, "allowed remaining=4",
			settled(0, 0, 0, 1, 0)),
		cost("two in one", "5", Step{Answer: "200 x-used=1,2"}, "allowed remaining=2",
			settled(0, 2, 1, 1, 0)),
		cost("two", "5", Step{Answer: "200 x-used=1 x-used=2"}, "allowed remaining=2",
			settled(0, 2, 1, 1, 0)),
		cost("the reservation", "0", Step{Answer: "200 x-used=3"}, "allowed remaining=4",
			settled(0, 0, 1, 0, 0)),
		cost("more than there is", "0", Step{Answer: "200 x-used=12"}, "refused remaining=0",
			settled(0, 9, 1, 0, 0)),
		// A figure above the highest cost is a cost all the same: bytes of a large file.
		cost("bytes of a large file", "0", Step{Answer: "200 x-used=53687091200000000000000"}, "refused remaining=0",
			settled(0, 4294967293, 1, 0, 0)),
	}
}

// settled returns the counters of requests that have settled.
func settled(refunded, overspent, settled, missing, unanswered int) string {
	return fmt.Sprintf("costs.refunded_tokens=%d costs.overspent_tokens=%d costs.settled=%d costs.missing=%d "+
		"costs.unanswered=%d", refunded, overspent, settled, missing, unanswered)
}

func reserves(quota int) string {
	return one("local", `"limit":{"quota":`+strconv.Itoa(quota)+
		`,"window":"1h"},"cost":{"reserve":4,"commit":{"header":"x-used"}}`)
}

func failedLogins(algorithm string) string {
	return one("local", `"limit":{"quota":5,"window":"15m"},"algorithm":"`+algorithm+
		`","cost":{"reserve":1,"commit":{"status":{"401":1,"403":1,"rest":0}},"missing":0}`)
}

// failures401 is a policy of log-ins that counts only failed log-ins.
func failures401(algorithm string) Scenario {
	return Scenario{Name: "only failures count", Policies: failedLogins(algorithm), Steps: []Step{
		{Times: 20, Want: "allowed", Answer: "200"},
		{Times: 3, Want: "allowed", Answer: "401"},
		{Times: 2, Want: "allowed", Answer: "403"},
		{Want: "refused reason=quota", Counts: "costs.reserved_tokens=25 " + settled(20, 0, 25, 0, 0)},
	}}
}
