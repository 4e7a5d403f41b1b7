package scenariotest

import (
	"fmt"
	"slices"
)

// central returns scenarios of buckets of the control plane.
func central() []Scenario {
	return slices.Concat([]Scenario{
		{Name: "a leased bucket that is empty is refused by heart",
			Policies: one("leased", `"limit":{"quota":1,"window":"1h"}`),
			Steps: []Step{
				{Want: "allowed asked=yes calls=1"},
				{Want: "refused reason=quota asked=yes"},
				{Times: 100, Want: "refused asked=no calls=0 retry=3599s..3601s",
					Counts: "requests.waited=2 requests.allowed=1"},
			}},
		// Tokens that came for a request that another policy refuses meanwhile serve the next.
		{Name: "policies of two kinds charge together", Policies: `
			{"name":"global","partition":[],"limit":{"quota":10,"window":"1h"},"mode":"leased"},
			{"name":"here","match":{"headers":[{"name":"x-here","present":true}]},"partition":[],
			 "limit":{"quota":1,"window":"1h"},"mode":"local"}`,
			Steps: []Step{
				{Ask: "x-here=1", As: "first", Want: "waits"},
				{Ask: "x-here=1", As: "second", Want: "waits"},
				{After: 10 * ms, See: "first", Of: 1, Want: "allowed"},
				{See: "second", Of: 1, Want: "refused policy=here"},
				{Want: "allowed asked=no calls=0"},
			}},
		// A refusal by a bucket of this node also names the wait that the other buckets need: the
		// control plane is asked, at most once in a second. The answer does not claim that nothing
		// is left of a policy that the node knows nothing of.
		{Name: "a refusal asks the other buckets", Policies: `
			{"name":"here","partition":[],"limit":{"quota":1,"window":"1s"},"mode":"local"},
			{"name":"there","partition":["header:x-who"],"limit":{"quota":9,"window":"1h"},"mode":"strict",
			 "cost":{"header":"x-cost","max":9}}`,
			Steps: []Step{
				{Ask: "x-who=first x-cost=5", Want: `allowed ratelimit="here";r=0 ratelimit="there";r=4`},
				{After: 2 * sec, Ask: "x-who=other x-cost=1", Want: "allowed"},
				{After: 10 * ms, Ask: "x-who=first x-cost=5",
					Want: `refused policy=here asked=yes retry=397s..399s ratelimit="there";r=4`},
				{Ask: "x-who=first x-cost=5", Want: "refused asked=no calls=0 retry=397s..401s"},
				// A cheaper request has its own wait. A missing answer changes nothing.
				{After: sec / 2, Ask: "x-who=first x-cost=1", Want: "refused retry=0s..1s"},
				{Plane: silent, Ask: "x-who=second x-cost=1", Want: `refused asked=yes retry=0s..1s ratelimit=!there`},
			}},
	},
		// In a region that grants at most 20 of a burst of 100, a request that costs 21 or more can
		// never pass: the refusal names no wait, and cheaper requests are not affected.
		each(func(mode string) Scenario {
			dear, good := "refused reason=too_dear retry=never", "allowed"
			return Scenario{Name: "a cost above the region's part", Policies: one(mode,
				`"limit":{"quota":100,"window":"10s"}`+costHeader), Steps: []Step{
				{Plane: func(p *Plane) { p.Part = 20 }, Ask: "x-cost=21", Want: dear},
				{After: 10 * sec, Ask: "x-cost=20", Want: good},
				{After: 10 * sec, Ask: "x-cost=100", Want: dear},
				{After: 10 * sec, Ask: "x-cost=20", Want: good},
			}}
		}, "leased", "strict"),
		each(look, "leased", "strict"),
		each(gone, "leased token_bucket soon", "leased fixed_window soon", "leased sliding_log soon",
			"strict token_bucket soon", "strict fixed_window soon", "strict sliding_log soon",
			"leased token_bucket late", "leased fixed_window late", "leased sliding_log late",
			"strict token_bucket late", "strict fixed_window late", "strict sliding_log late"))
}

// look returns scenarios of requests that cost nothing. The control plane reports the level of an
// unknown bucket, and of a strict bucket each time. For other buckets it is the last level and the
// tokens that have come back since.
func look(mode string) Scenario {
	again := "no"
	if mode == "strict" {
		again = "yes"
	}
	left := func(n int, asked string) string { return fmt.Sprintf("allowed remaining=%d asked=%s", n, asked) }
	return Scenario{Name: "a look is true", Policies: one(mode, `"limit":{"quota":60,"window":"1m"}`+costHeader),
		Steps: []Step{
			{Plane: nodes(2), Ask: "x-cost=0", Want: left(60, "yes")},
			{Ask: "x-cost=0", Want: left(60, again)},
			{Ask: "x-cost=20", Want: left(40, "yes")},
			{Ask: "x-cost=0", Want: left(40, again)},
			{After: 5200 * ms, Ask: "x-cost=0", Want: left(45, again)},
			{After: 60 * sec, Ask: "x-cost=0", Want: left(60, again)},
		}}
}

// gone returns scenarios of a client that goes away while it waits. Its token serves the next
// request of its worker without another call; if no request comes in time, it goes back. So no
// token is lost, and none counts twice.
func gone(word string) Scenario {
	var mode, algorithm, when string
	fmt.Sscan(word, &mode, &algorithm, &when)
	s := Scenario{Name: "the token of a client that has gone", Policies: one(mode,
		`"limit":{"quota":10,"window":"1h"},"on_failure":{"then":"deny"},"algorithm":"`+algorithm+`"`)}
	s.Steps = []Step{{Plane: func(p *Plane) { p.Names = true }, As: "gone", Want: "waits"}, {Leave: "gone"}}
	left := Step{After: 105 * ms, Pass: 10, Want: "refused reason=quota"}
	if when == "soon" {
		s.Steps = append(s.Steps, Step{After: 5 * ms, Want: "allowed asked=no calls=0"})
		left.Pass = 9
	}
	s.Steps = append(s.Steps, left, Step{Times: 9, Want: "refused reason=quota"})
	return s
}

// optimistic returns scenarios of buckets that a node uses ahead of the control plane, within its
// slack.
func optimistic() []Scenario {
	const limit = `"limit":{"quota":100,"window":"1m"}` + costHeader
	// A request whose cost is above the slack is asked about.
	learns := []Step{{Plane: nodes(2), Ask: "x-cost=2", Want: "allowed asked=yes"}, {After: 60 * sec}}
	withoutAnswer := func(step, by, want string) Scenario {
		return Scenario{Name: "an optimistic bucket without an answer, " + step,
			Policies: one("optimistic", limit+`,"on_failure":[{"`+step+`":"30s"},"deny"]`),
			Steps: append(slices.Clone(learns), Step{Plane: fails(503), Ask: "x-cost=60", Want: want,
				Counts: "requests.unanswered=1 decisions.by_" + by + "=1"})}
	}
	return slices.Concat([]Scenario{
		{Name: "an optimistic bucket asks beyond its slack", Policies: one("optimistic", limit),
			Steps: []Step{
				{Plane: nodes(2), Ask: "x-cost=60", Want: "allowed asked=yes"},
				{After: 10 * ms, Ask: "x-cost=60", Want: "refused asked=no retry=11s..13s"},
				{After: 200 * ms, Ask: "x-cost=60", Want: "refused asked=no retry=11s..13s"},
				{After: 10 * ms, Ask: "x-cost=60", Want: "refused asked=no retry=11s..13s"},
				{After: 20 * sec, Ask: "x-cost=60", Want: "allowed asked=yes"},
			}},
		// Cheap requests leave no room in the slack of 50 for an expensive request that would fit
		// into it alone.
		{Name: "an optimistic bucket asks beside cheap traffic", Policies: one("optimistic", limit),
			Steps: append(slices.Clone(learns),
				Step{Times: 24, Ask: "x-cost=1", Want: "allowed asked=no"},
				Step{Ask: "x-cost=40", Want: "allowed asked=yes"})},
		withoutAnswer("deny", "failure_deny", "refused reason=failure asked=yes"),
		withoutAnswer("allow", "failure_allow", "allowed asked=yes"),
		withoutAnswer("share", "share", "refused reason=failure asked=yes"), // A share of two is 50.
		// The client goes while its request waits for the second bucket.
		{Name: "a refused request's tokens serve the next request", Policies: `
			{"name":"o","partition":[],"limit":{"quota":100,"window":"1m"},"mode":"optimistic"` + costHeader + `},
			{"name":"s","partition":[],"limit":{"quota":1,"window":"1m"},"mode":"strict"}`,
			Steps: []Step{
				{Plane: nodes(2), Ask: "x-cost=40", As: "gone", Want: "waits"},
				{After: 3 * ms, See: "gone", Of: 1, Want: "waits"},
				{Leave: "gone"},
				{After: 10 * ms, Ask: "x-cost=1", Want: "allowed", Counts: "requests.waited=1"},
			}},
	}, each(func(cost string) Scenario {
		asked := "yes"
		if cost == "1" {
			asked = "no"
		}
		return Scenario{Name: "a node that knows no other nodes asks for a cost above 1",
			Policies: one("optimistic", limit), Steps: []Step{{Ask: "x-cost=" + cost, Want: "allowed asked=" + asked}}}
	}, "1", "2", "50", "100"))
}
