package scenariotest

import (
	"fmt"
	"slices"
)

// local returns scenarios of buckets of one node only.
var local = []Scenario{
	{Name: "a request of no policy has no limit",
		Policies: `{"name":"p","match":{"paths":["/other"]},"partition":[],"limit":{"quota":1,"window":"1s"}}`,
		Steps:    []Step{{Want: "unlimited status=200", Counts: "requests.unlimited=1"}}},
	{Name: "a local bucket refills evenly", Policies: one("local", `"limit":{"quota":2,"window":"2s"}`),
		Steps: []Step{
			{Want: "allowed remaining=1"},
			{Want: "allowed remaining=0"},
			{Want: "refused reason=quota remaining=0 retry=1s"},
			{After: 900 * ms, Want: "refused remaining=0 retry=100ms"},
			{After: 100 * ms, Want: "allowed remaining=0"},
		}},
	{Name: "a sliding log", Policies: one("local", `"algorithm":"sliding_log","limit":{"quota":2,"window":"10s"}`),
		Steps: []Step{
			{Want: `allowed remaining=1 ratelimit=="p";r=1;t=10`},
			{After: 4 * sec, Want: `allowed remaining=0 ratelimit=="p";r=0;t=10`},
			{After: sec, Want: "refused retry=5s"},
			{After: 5 * sec, Want: `allowed remaining=0 ratelimit=="p";r=0;t=10`},
			{After: 3 * sec, Want: "refused retry=1s"},
		}},
	// Each header names a policy's burst and the window in which it refills.
	{Name: "the headers of two policies", Policies: `
			{"name":"second","partition":[],"mode":"local","limit":{"quota":3,"window":"1s"}},
			{"name":"minute","partition":[],"mode":"local","limit":{"quota":60,"window":"1m","burst":10}}`,
		Steps: []Step{
			{Want: `allowed ratelimit-policy=="second";q=3;w=1,"minute";q=10;w=10 ` +
				`ratelimit=="second";r=2;t=1,"minute";r=9;t=1`},
			{Times: 2, Want: "allowed"},
			{Want: `refused policy=second status=429 retry-after==1 ratelimit="second";r=0;t=1, cache-control==no-store`},
		}},
	// A refused request is charged nowhere, and the refusal names the policy that must wait
	// longest.
	{Name: "all policies or none", Policies: `
			{"name":"wide","partition":[],"mode":"local","limit":{"quota":100,"window":"100s"}},
			{"name":"short","partition":[],"mode":"local","limit":{"quota":1,"window":"1s"}},
			{"name":"long","partition":[],"mode":"local","limit":{"quota":1,"window":"1h"}}`,
		Steps: []Step{
			{Want: "allowed"},
			{Times: 50, Want: `refused policy=long ratelimit="wide";r=99 ratelimit="short";r=0`},
			{After: sec, Want: `refused policy=long ratelimit="short";r=1`},
		}},
	// Several limits of one policy behave like one policy each: a refused request is charged to no
	// limit, and the refusal names the limit that must wait longest.
	{Name: "several limits", Policies: `{"name":"first","match":{"paths":["/other"]},"partition":[],"mode":"local",
			"limit":[{"quota":9,"window":"1s"},{"quota":9,"window":"1m"}]},` +
		one("local", `"limit":[{"quota":2,"window":"2s"},{"quota":3,"window":"1m"}]`),
		Steps: []Step{
			{Times: 2, Want: `allowed ratelimit=,`},
			{Want: "refused retry=1s"},                     // Two in two seconds.
			{After: 2 * sec, Want: "allowed"},              // The third of the minute.
			{After: 2 * sec, Want: "refused retry=16s"},    // No fourth.
			{After: 16 * sec, Want: "allowed remaining=0"}, // One is earned.
		}},
	// A flood of ten times the limit gets its part of a quota, and leaves the other to the
	// first class.
	{Name: "a reserve of a quota", Policies: reservedOf("local", `"limit":{"quota":10,"window":"1h"}`), Steps: []Step{
		{Pass: 8, Want: "refused"},
		{Times: 91, Want: "refused"},
		{Ask: "x-first=1", Pass: 2, Want: "refused"},
		{Ask: "x-first=1", Times: 97, Want: "refused"},
	}},
	{Name: "costs and absent parts", Policies: `
			{"name":"cost","match":{"headers":[{"name":"x-a","present":true}]},"partition":[],"mode":"local",
			 "limit":{"quota":5,"window":"5s"},"cost":{"header":"x-cost","max":50,"invalid":"deny"}},
			{"name":"who","match":{"headers":[{"name":"x-b","present":true}]},"partition":["header:x-who"],
			 "if_absent":"deny","mode":"local","limit":{"quota":5,"window":"5s"}}`,
		Steps: []Step{
			{Ask: "x-a=1 x-cost=6", Want: "refused policy=cost reason=too_dear retry=never status=429"},
			{Ask: "x-a=1 x-cost=no", Want: "refused policy=cost reason=bad_cost retry=never status=400"},
			{Ask: "x-a=1 x-cost=5", Want: "allowed"},
			{Ask: "x-a=1 x-cost=0", Want: "allowed"},
			{Ask: "x-a=1 x-cost=2", Want: "refused policy=cost reason=quota retry=2s status=429"},
			{Ask: "x-b=1", Want: "refused policy=who reason=absent retry=never status=403"},
			{Ask: "x-b=1 x-who=me", Want: "allowed policy=who"},
		}},
}

// shadows returns scenarios of policies in shadow and candidates, which are counted and refuse
// nothing.
func shadows() []Scenario {
	const watched = `{"name":"watched","partition":[],"limit":{"quota":2,"window":"1h"},"mode":"local"`
	const a = `{"name":"a","partition":[],"limit":{"quota":2,"window":"1h"},"mode":"local",
		"candidate":{"limit":{"quota":5,"window":"1h"}}}`
	const none = " candidate.refused=0 candidate.undetermined=0"
	return slices.Concat([]Scenario{
		// It is charged when it and all enforced policies allow. When it becomes enforced it begins
		// with a new bucket.
		{Name: "a policy in shadow", Policies: watched + `,"enforcement":"shadow"},
			{"name":"off","partition":[],"limit":{"quota":1,"window":"1h"},"mode":"local","enforcement":"off"},
			{"name":"enforced","partition":[],"limit":{"quota":4,"window":"1h"},"mode":"local"}`, Steps: []Step{
			{Pass: 4, Want: `refused policy=enforced ratelimit=!,`, Counts: "shadow.allowed=2 shadow.refused=2"},
			{Push: watched + "}", Pass: 2, Want: "refused"},
		}},
		// A candidate uses its own limit only: it is charged when the other policies allow, also if
		// only its own policy refuses.
		{Name: "a candidate", Policies: a +
			`,{"name":"b","partition":[],"limit":{"quota":4,"window":"4s"},"mode":"local"}`, Steps: []Step{
			{Times: 2, Want: "allowed", Counts: "candidate.allowed=2" + none},
			{Want: "refused policy=a", Counts: "candidate.allowed=3" + none},
			{Want: "refused policy=a", Counts: "candidate.allowed=4" + none},
			{Want: "refused policy=a", Counts: "candidate.allowed=5" + none},
			{Want: "refused policy=a", Counts: "candidate.allowed=5 candidate.refused=1 candidate.undetermined=0"},
		}},
		// A trial asks in the background, and no request waits for it.
		{Name: "trials in an outage", Policies: one("leased",
			`"limit":{"quota":100,"window":"1h"},"enforcement":"shadow"`), Steps: []Step{
			{Plane: fails(504), Want: "unlimited asked=no"},
			{After: 10 * ms, Want: "unlimited"},
			{After: 10 * ms, Want: "unlimited"},
			{After: 10 * ms, Times: 50, Want: "unlimited asked=no calls=0",
				Counts: "shadow.allowed=0 shadow.refused=0 shadow.undetermined=53"},
		}},
		{Name: "a trial of permits", Policies: one("leased", `"limit":{"in_flight":2},"enforcement":"shadow"`),
			Steps: []Step{
				{Plane: shared(0), As: "1", Want: "unlimited"},
				{After: 30 * ms, As: "1", Want: "unlimited"},
				{After: 30 * ms, As: "1", Want: "unlimited"},
				{After: 30 * ms, As: "1", Want: "unlimited"},
				{After: 30 * ms, As: "1", Want: "unlimited"},
				{After: 30 * ms, End: "1", Counts: "shadow.allowed=2 shadow.refused=3 shadow.undetermined=0"},
				{After: 8 * sec, Then: holds(0)},
			}},
		{Name: "a candidate whose neighbour refuses", Policies: a +
			`,{"name":"b","partition":[],"limit":{"quota":1,"window":"1h"},"mode":"local"}`, Steps: []Step{
			{Want: "allowed"},
			{Times: 2, Want: "refused policy=b",
				Counts: "candidate.allowed=1" + none},
		}},
	}, each(severalTried, "local", "leased", "strict"), each(looks, "strict 100 4 3", "leased 100 4 3", "strict 1 1 0"))
}

// severalTried is a trial of several limits: if one limit refuses, no limit is charged.
func severalTried(mode string) Scenario {
	ten := Step{After: 2 * sec, Times: 10, Want: "unlimited asked=no"}
	return Scenario{Name: "a trial of several limits", Policies: one(mode,
		`"enforcement":"shadow","limit":[{"quota":3,"window":"1s"},{"quota":5,"window":"1h"}]`), Steps: []Step{
		ten, ten, ten, {After: sec, Counts: "shadow.allowed=5 shadow.refused=25 shadow.undetermined=0"}}}
}

// looks is a candidate that only its own policy has refused. It checks whether the other policies'
// buckets have enough tokens, also if only the control plane knows that, and takes no tokens from
// them.
func looks(word string) Scenario {
	var mode string
	var quota, allowed, refused int
	fmt.Sscan(word, &mode, &quota, &allowed, &refused)
	b := fmt.Sprintf(`{"name":"b","partition":[],"mode":%q,"limit":{"quota":%d,"window":"1h"}}`, mode, quota)
	s := Scenario{Name: "a candidate looks at other policies", Policies: `{"name":"a","partition":[],"mode":"local",
		"limit":{"quota":1,"window":"1h"},"candidate":{"limit":[{"quota":4,"window":"1h"},{"quota":9,"window":"9h"}]}},` + b,
		Steps: []Step{
			{Pass: 1, Want: "refused"},
			{Times: 5, Want: "refused"},
			{After: sec, Counts: fmt.Sprintf("candidate.allowed=%d candidate.refused=%d candidate.undetermined=0",
				allowed, refused)},
		}}
	if quota > 1 {
		s.Steps = append(s.Steps, Step{Push: b, Want: fmt.Sprintf("allowed remaining=%d", quota-2)})
	}
	return s
}

// ownQuota is a limit whose quota is the caller's own.
const ownQuota = `"limit":{"quota":{"header":"x-limit","trusted":true,"max":600,"default":60},"window":"1m"}`

// figures returns scenarios of limits whose figures are the caller's own: one bucket has the
// requests of all callers.
func figures() []Scenario {
	all := []Scenario{
		// A caller with lower figures than the last caller waits for the bucket. A caller with
		// higher figures finds the tokens used.
		{Name: "a caller's own figures, token_bucket", Policies: one("local", ownQuota), Steps: []Step{
			{Ask: "x-limit=5", Pass: 5, Want: "refused retry=12s"},
			{Pass: 55, Want: "refused retry=1s"},
			{Ask: "x-limit=600", Pass: 540, Want: "refused retry=100ms"},
			{Ask: "x-limit=5", Want: "refused retry=59.6s"},
			{After: 59500 * ms, Ask: "x-limit=5", Want: "refused retry=100ms"},
			{After: 100 * ms, Ask: "x-limit=5", Pass: 1, Want: "refused retry=12s"},
			{Ask: "x-limit=10", Pass: 5, Want: "refused retry=6s"},
			{Ask: "x-limit=99999", Pass: 590, Want: "refused retry=100ms"},
		}},
		{Name: "a caller's own figures, fixed_window",
			Policies: one("local", ownQuota+`,"algorithm":"fixed_window"`), Steps: []Step{
				{Ask: "x-limit=5", Pass: 5, Want: "refused retry=0s..60s"},
				{Pass: 55, Want: "refused retry=0s..60s"},
				{Ask: "x-limit=600", Pass: 540, Want: "refused retry=0s..60s"},
				{After: 60 * sec, Ask: "x-limit=5", Pass: 5, Want: "refused retry=0s..60s"},
			}},
		{Name: "a caller's own figures, sliding_window",
			Policies: one("local", ownQuota+`,"algorithm":"sliding_window","subwindows":60`), Steps: []Step{
				{Ask: "x-limit=5", Pass: 5, Want: "refused retry=60s..61s"},
				{After: 10 * sec, Pass: 55, Want: "refused retry=50s..51s"},
				{After: 10 * sec, Ask: "x-limit=600", Pass: 540, Want: "refused retry=40s..41s"},
				{After: 41 * sec, Ask: "x-limit=5", Want: "refused retry=19s..20s"},
			}},
		// The last caller's burst was far below the tokens used.
		{Name: "figures that go mint nothing", Policies: one("local", `"limit":{"window":"1m",
			"quota":{"header":"x-limit","trusted":true,"max":600,"default":60},
			"burst":{"header":"x-burst","trusted":true,"max":600,"default":60}}`), Steps: []Step{
			{Ask: "x-limit=60 x-burst=600", Pass: 600, Want: "refused"},
			{Ask: "x-limit=600 x-burst=5", Want: "refused"},
			{Push: one("local", `"limit":{"quota":600,"window":"1m"}`)},
			{After: sec - PushTakes, Pass: 10, Want: "refused"},
		}},
	}
	return slices.Concat(all, each(func(mode string) Scenario {
		return Scenario{Name: "a caller's own figures in central modes", Policies: one(mode, ownQuota), Steps: []Step{
			{Plane: nodes(2), Ask: "x-limit=5", Pass: 5, Want: "refused"},
			{Ask: "x-limit=20", Pass: 15, Want: "refused"},
			{Ask: "x-limit=5", Want: "refused"},
			{Ask: "x-limit=none", Pass: 40, Want: "refused"},
		}}
	}, "strict", "leased"))
}
