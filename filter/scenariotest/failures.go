package scenariotest

import (
	"slices"
	"strconv"
	"time"
)

// failures returns scenarios of failure ladders while the control plane does not answer.
func failures() []Scenario {
	const all, none = -1, 0
	// during and after are the numbers of requests that pass on the first step and on the last
	// step.
	ladder := func(name, onFailure string, during, after int) Scenario {
		count := func(pass int) []Step {
			switch pass {
			case all:
				return []Step{{Times: 200, Want: "allowed"}}
			case none:
				return []Step{{Times: 200, Want: "refused reason=failure"}}
			}
			return []Step{{Pass: pass, Want: "refused"}, {Times: 200 - pass, Want: "refused"}}
		}
		// 100 a minute over two nodes: a share of 50, 5 tokens in 6 s.
		return Scenario{Name: "the failure ladder: " + name,
			Policies: one("leased", `"limit":{"quota":100,"window":"1m"},"on_failure":`+onFailure),
			Steps: slices.Concat([]Step{
				{Plane: nodes(2), Want: "allowed asked=yes"},
				{Plane: fails(504), Times: 3, Want: "*"},
				{After: 12 * sec},
			}, count(during), []Step{{After: 60 * sec}}, count(after))}
	}
	return []Scenario{
		ladder("share, then allow", `{"local_for":"30s","then":"allow"}`, 50, all),
		ladder("share, then deny", `{"local_for":"30s","then":"deny"}`, 50, none),
		ladder("share for as long as it lasts", `{"then":"local"}`, 50, 50),
		ladder("share, then deny, in steps", `[{"share":"30s"},"deny"]`, 50, none),
		ladder("allow, then share", `[{"allow":"30s"},"share"]`, all, 50),
		ladder("deny, then allow, then deny", `[{"deny":"11s"},{"allow":"10s"},"deny"]`, all, none),
		ladder("allow at once", `{"then":"allow"}`, all, all),
		ladder("deny at once", `{"then":"deny"}`, none, none),
		// The share of a window is a bucket of tokens, which starts full.
		{Name: "the share of a window", Policies: one("leased",
			`"algorithm":"sliding_log","limit":{"quota":10,"window":"10s"},"on_failure":{"then":"local"}`),
			Steps: []Step{{Plane: fails(503), Pass: 10, Want: "refused reason=failure retry=900ms..1s"}}},
	}
}

// shares returns scenarios of the failure ladder's share of a caller, from the node's knowledge of
// its bucket.
func shares() []Scenario {
	policies := func(onFailure string) string {
		return `{"name":"p","partition":["header:x-k"],"limit":{"quota":100,"window":"10m"},"mode":"strict",` +
			`"on_failure":` + onFailure + "}"
	}
	// A caller has the share, or the last known level of the bucket if it is lower.
	starts := func(name string, spent int, rests time.Duration, pass int) Scenario {
		// The node learns that there are two.
		steps := []Step{{Plane: nodes(2), Ask: "x-k=other", Want: "allowed asked=yes"}}
		if spent > 0 {
			steps = append(steps, Step{Times: spent, Ask: "x-k=a", Want: "allowed"})
		}
		return Scenario{Name: "a share starts at the known level: " + name, Policies: policies(`{"then":"local"}`),
			Steps: append(steps,
				Step{After: rests, Plane: fails(503), Ask: "x-k=a", Pass: pass, Want: "refused reason=failure"})}
	}
	s := Scenario{Name: "a share may start empty", Policies: policies(`[{"share":"forever","start":"empty"}]`),
		Steps: []Step{
			{Plane: nodes(2), Ask: "x-k=other", Want: "allowed asked=yes"},
			{Plane: fails(503), Ask: "x-k=a", Want: "refused reason=failure"},
			{After: 120 * sec, Ask: "x-k=a", Pass: 10, Want: "refused reason=failure"},
		}}
	return append(each(newCallers, "leased", "strict", "optimistic"), s,
		starts("nothing", 0, 0, 50),
		starts("little was spent", 20, 0, 50),
		starts("most was spent", 80, 0, 20),
		starts("all was spent", 100, 0, 0),
		starts("the bucket has earned since", 100, 60*sec, 10),
	)
}

// pushes returns scenarios of policy sets that change a limit.
func pushes() []Scenario {
	limit := func(mode, quota, more string) string {
		return one(mode, `"limit":{"quota":`+quota+`,"window":"1h"},"on_failure":{"then":"deny"}`+more)
	}
	return slices.Concat([]Scenario{
		{Name: "a push keeps consumption", Policies: limit("local", "100", ""), Steps: []Step{
			{Times: 40, Want: "allowed"},
			{Push: limit("local", "100", ""), Want: "allowed remaining=59"},
			{Push: limit("local", "200", ""), Want: "allowed remaining=158"},
			{Push: limit("local", "50", ""), Want: "allowed remaining=7"},
			{Pass: 7, Want: "refused"},
		}},
		// The knowledge about a limit is worth nothing once it counts in another way.
		{Name: "a push of another algorithm asks again",
			Policies: limit("leased", "2", `,"algorithm":"sliding_log"`), Steps: []Step{
				{Pass: 2, Want: "refused"},
				{Want: "refused asked=no calls=0"},
				{Push: limit("leased", "2", ""), Want: "* asked=yes calls=1"},
			}},
	}, each(suspended, "local", "leased", "strict", "optimistic"), each(func(mode string) Scenario {
		return Scenario{Name: "a push frees callers that were refused", Policies: limit(mode, "2", ""), Steps: []Step{
			{Pass: 2, Want: "refused"},
			{Push: limit(mode, "4", ""), Want: "allowed"},
		}}
	}, "local", "leased", "strict"))
}

// suspended returns scenarios of a limit that has a quota of 0 for a time: used tokens stay used.
func suspended(mode string) Scenario {
	limit := func(quota string) string { return one(mode, `"limit":{"quota":`+quota+`,"window":"1h"}`) }
	none := Step{After: 2 * sec, Push: limit("0"), Times: 3, Want: "refused reason=suspended retry=never asked=no"}
	return Scenario{Name: "a suspended limit keeps the used tokens", Policies: limit("10"), Steps: []Step{
		{Plane: nodes(2), Times: 4, Want: "allowed"}, none,
		{Push: limit("10"), Times: 3, Want: "allowed"}, none,
		{Push: limit("10"), Pass: 3, Want: "refused reason=quota"}, none,
		{Push: limit("10"), Want: "refused reason=quota"},
	}}
}

// newCallers returns twenty callers of a low limit while the control plane does not answer. By the
// default on_failure they pass.
func newCallers(mode string) Scenario {
	s := Scenario{Name: "new callers in an outage", Policies: `{"name":"p","partition":["header:x-k"],
		"limit":{"quota":100,"window":"1h"},"mode":"` + mode + `"}`, Steps: []Step{{Plane: fails(503)}}}
	for i := range 20 {
		s.Steps = append(s.Steps, Step{After: sec, Ask: "x-k=" + strconv.Itoa(i), Want: "allowed"})
	}
	return s
}
