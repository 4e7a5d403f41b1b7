package scenariotest

// places are scenarios of limits of requests in flight.
var places = []Scenario{
	{Name: "requests in flight", Policies: `{"name":"places","partition":["header:x-k"],"limit":{"in_flight":3},
			"mode":"local"}`, Steps: []Step{
		{Ask: "x-k=a", As: "1", Want: "allowed remaining=2"},
		{Ask: "x-k=a", As: "2", Want: "allowed remaining=1"},
		{Ask: "x-k=a", As: "3", Want: "allowed remaining=0"},
		{Ask: "x-k=a", Want: "refused reason=in_flight retry=1s remaining=0 status=429 retry-after==1 " +
			`ratelimit=="places";r=0 ratelimit-policy=="places";q=3;qu="concurrent-requests"`},
		{Ask: "x-k=b", As: "b", Pass: 3, Want: "refused reason=in_flight"},
		{End: "2", Ask: "x-k=a", As: "4", Pass: 1, Want: "refused"},
	}},
	// A place goes back if another bucket refuses, and tokens are spent only if there is a place.
	{Name: "requests in flight beside a quota", Policies: beside(`[{"in_flight":2},{"quota":3,"window":"1h"}]`),
		Steps: besideSteps},
	{Name: "a quota beside requests in flight", Policies: beside(`[{"quota":3,"window":"1h"},{"in_flight":2}]`),
		Steps: besideSteps},
	// With max_wait a request waits for a place, is refused when its time is over, and leaves its
	// seat when its client goes.
	{Name: "requests wait for a place", Policies: one("local", `"limit":{"in_flight":2},"max_wait":"100ms"`),
		Steps: []Step{
			{As: "1", Want: "allowed"},
			{As: "2", Want: "allowed"},
			{As: "first", Want: "waits"},
			{As: "gone", Want: "waits"},
			{Want: "refused reason=in_flight asked=no"},
			{Leave: "gone", As: "second", Want: "waits"},
			{End: "1", After: ms},
			{After: 20 * ms, See: "first", Of: 1, Want: "allowed"},
			{See: "second", Of: 1, Want: "waits"},
			{After: 100 * ms, See: "second", Of: 1, Want: "refused reason=in_flight"},
			{End: "2"},
			{End: "first"},
			// Two requests wait until their time is over.
			{As: "last", Pass: 2, Want: "refused", Counts: "requests.waited=0 requests.queued=4 requests.gone=1"},
		}},
	// One policy that has no place in time refuses the request while it still waits for another
	// policy.
	{Name: "the shortest max_wait counts", Policies: `
			{"name":"short","partition":[],"limit":{"in_flight":1},"max_wait":"100ms","mode":"local"},
			{"name":"long","partition":[],"limit":{"in_flight":1},"max_wait":"30s","mode":"local"}`,
		Steps: []Step{
			{As: "1", Want: "allowed"},
			{As: "2", Want: "waits"},
			{After: 90 * ms, See: "2", Of: 1, Want: "waits"},
			{After: 30 * ms, See: "2", Of: 1, Want: "refused reason=in_flight policy=short"},
			{End: "1", As: "3", Want: "allowed"},
		}},
	// A worker lets 1024 requests wait for places. The next request is refused although its own
	// limit lets it wait: the worker is full. That is not the caller's doing, so no penalty counts
	// it.
	{Name: "a worker that is full of waiting requests", Policies: `{"name":"p","partition":["header:x-k"],
			"limit":{"in_flight":600},"max_wait":"1s","mode":"local"}`, Steps: []Step{
		{Ask: "x-k=a", As: "a", Times: 600, Want: "allowed"},
		{Ask: "x-k=b", As: "b", Times: 600, Want: "allowed"},
		{Ask: "x-k=a", As: "wa", Times: 600, Want: "waits"},
		{Ask: "x-k=a", Want: "refused reason=in_flight"},
		{Ask: "x-k=b", As: "wb", Times: 424, Want: "waits"},
		{Ask: "x-k=b", Want: "refused reason=too_many_waiting retry=1s", Counts: "decisions.by_overload=1"},
	}},
	// A request that waits for a place counts as waiting for tokens once it asks for tokens.
	{Name: "a request waits for a place and for tokens", Policies: `
			{"name":"places","partition":[],"limit":{"in_flight":1},"max_wait":"1s","mode":"local"},
			{"name":"rate","partition":[],"limit":{"quota":9,"window":"1h"},"mode":"strict"}`, Steps: []Step{
		{As: "1", Want: "allowed asked=yes", Counts: "requests.waited=1"},
		{As: "2", Want: "waits", Counts: "requests.waited=1"},
		{End: "1"},
		{After: 20 * ms, See: "2", Of: 1, Want: "allowed", Counts: "requests.waited=2"},
	}},
	// A request that has its place and waits for tokens gives the place back if there are none, and
	// if its client goes.
	{Name: "requests in flight beside tokens of the control plane", Policies: `
			{"name":"rate","partition":[],"limit":{"quota":2,"window":"10s"},"mode":"strict"},
			{"name":"places","partition":[],"limit":{"in_flight":2},"mode":"local"}`,
		Steps: []Step{
			{As: "1", Want: "allowed asked=yes"},
			{As: "2", Want: "allowed asked=yes"},
			{Want: "refused reason=in_flight"},
			{End: "1", Want: "refused reason=quota asked=yes"},
			{After: 11 * sec, As: "gone", Want: "waits"},
			{Leave: "gone"},
			{After: 5 * ms, End: "2", As: "3", Want: "allowed"},
			{As: "4", Want: "allowed"},
		}},
	// A policy in shadow counts requests and refuses none; a candidate is counted beside its
	// policy. They give their places back at the request's end, or at once if the request is
	// refused.
	{Name: "requests in flight in shadow", Policies: `
			{"name":"s","partition":[],"limit":{"in_flight":2},"mode":"local","enforcement":"shadow"},
			{"name":"c","match":{"headers":[{"name":"x-c","present":true}]},"partition":[],"limit":{"in_flight":2},
			 "mode":"local","candidate":{"limit":{"in_flight":1}}}`, Steps: []Step{
		{As: "1", Times: 2, Want: "unlimited"},
		{As: "2", Want: "unlimited", Counts: "shadow.allowed=2 shadow.refused=1"},
		{End: "1", Ask: "x-c=1", As: "c", Pass: 2, Want: "refused",
			Counts: "candidate.allowed=1 candidate.refused=2 shadow.allowed=4"},
		{End: "c", Ask: "x-c=1", As: "c", Pass: 2, Want: "refused", Counts: "candidate.allowed=2"},
	}},
	// The first request asks. The requests after it find permits that came with its permit. The
	// last request is refused once the control plane has no permits, which is then known.
	{Name: "leased requests in flight", Policies: one("leased", `"limit":{"in_flight":20}`), Steps: []Step{
		{Plane: shared(10), As: "1", Want: "allowed asked=yes calls=1 remaining=9"},
		{As: "2", Want: "allowed asked=no calls=0"},
		{End: "2"},
		{As: "more", Pass: 9, Want: "refused reason=failure retry=1s"},
		{Want: "refused asked=no calls=0"},
		{End: "1", As: "again", Pass: 1, Want: "refused"},
	}},
	// Of another node's places, or of its own.
	{Name: "leased requests wait for a place", Policies: one("leased", `"limit":{"in_flight":3},"max_wait":"2s"`),
		Steps: []Step{
			{Plane: shared(1), As: "1", Want: "allowed"},
			{As: "2", Want: "allowed"},
			{As: "3", Want: "waits"},
			{After: 500 * ms, See: "3", Of: 1, Want: "waits"},
			{Plane: elsewhere(0), After: 0},
			{After: 300 * ms, See: "3", Of: 1, Want: "allowed"},
			{As: "late", Want: "waits"},
			{After: 2100 * ms, See: "late", Of: 1, Want: "refused reason=in_flight"},
		}},
	// A smaller limit holds at once for new requests, and a larger limit as soon as the node asks
	// for permits.
	{Name: "leased requests in flight with another limit", Policies: one("leased", `"limit":{"in_flight":6}`),
		Steps: []Step{
			{Plane: shared(0), As: "1", Want: "allowed"},
			{As: "2", Want: "allowed"},
			{As: "rest", Pass: 4, Want: "refused"},
			{Push: one("leased", `"limit":{"in_flight":4}`), Want: "refused"},
			{End: "1", Want: "refused"},
			{End: "2", Want: "refused"},
			{Push: one("leased", `"limit":{"in_flight":9}`)},
			{After: 30 * ms, As: "more", Pass: 5, Want: "refused"},
		}},
	// A place goes back if a quota beside it refuses.
	{Name: "leased requests in flight beside a quota",
		Policies: one("leased", `"limit":[{"in_flight":5},{"quota":2,"window":"1h"}]`), Steps: []Step{
			{Plane: shared(0), As: "1", Pass: 2, Want: "refused reason=quota"},
			{End: "1"},
			{After: 8 * sec, Then: holds(0)},
		}},
	// Requests of the lower class hold at most 80 % of the places, and the first class finds the
	// rest.
	{Name: "a reserve of requests in flight", Policies: reserved("local", ""), Steps: []Step{
		{As: "1", Want: "allowed"},
		{As: "2", Want: "allowed"},
		{As: "bulk", Pass: 6, Want: "refused"},
		{Ask: "x-first=1", As: "a", Want: "allowed"},
		{Ask: "x-first=1", As: "b", Pass: 1, Want: "refused ratelimit=!,"}, // It meets one limit.
		{End: "1", Ask: "x-first=1", As: "c", Pass: 1, Want: "refused"},
		{End: "a"},
		{End: "2", As: "d", Pass: 2, Want: "refused"},
	}},
	// Requests that wait for a place of the lower class take none of the first class's places
	// meanwhile, and do not block the first class.
	{Name: "a reserve while others wait", Policies: reserved("local", `,"max_wait":"100ms"`), Steps: []Step{
		{As: "1", Want: "allowed"},
		{As: "bulk", Times: 7, Want: "allowed"},
		{As: "next", Want: "waits"},
		{As: "others", Times: 6, Want: "waits"},
		{Ask: "x-first=1", As: "a", Want: "allowed"},
		{Ask: "x-first=1", As: "b", Want: "allowed"},
		{Ask: "x-first=1", As: "full", Want: "waits"},
		{Leave: "full"},
		{End: "a"},
		{End: "1"}, // Its place goes to the first request that waits, and there is one in all for it.
		{After: 20 * ms, See: "next", Of: 1, Want: "allowed"},
		{See: "others", Of: 6, Want: "waits"},
		{Ask: "x-first=1", As: "c", Want: "allowed"},
		{Ask: "x-first=1", As: "d", Want: "waits"},
		{After: 120 * ms, See: "others", Of: 6, Want: "refused reason=in_flight"},
		{See: "d", Of: 1, Want: "refused reason=in_flight"},
	}},
	{Name: "a reserve of leased requests in flight", Policies: reserved("leased", ""), Steps: []Step{
		{Plane: shared(0), As: "1", Want: "allowed"},
		{As: "bulk", Pass: 7, Want: "refused reason=in_flight"},
		{After: sec, Ask: "x-first=1", As: "a", Pass: 2, Want: "refused"},
		{End: "1"},
		{After: 30 * ms, Ask: "x-first=1", As: "c", Pass: 1, Want: "refused"},
	}},
}

// shared has two nodes, and the other node holds permits.
func shared(permits int64) func(*Plane) {
	return func(p *Plane) { p.Nodes, p.Elsewhere = 2, permits }
}

func beside(limits string) string {
	return one("local", `"limit":`+limits+`,"cost":{"header":"x-cost","max":3,"invalid":1}`)
}

var besideSteps = []Step{
	{As: "1", Want: "allowed"},
	{As: "2", Pass: 1, Want: "refused reason=in_flight"},
	{End: "1", Times: 5, Ask: "x-cost=2", Want: "refused reason=quota"}, // One token is left.
	{As: "3", Pass: 1, Want: "refused", Counts: "charged_in_vain=0"},
}

// reserved is a policy of ten requests in flight, a part of which is kept.
func reserved(mode, more string) string { return reservedOf(mode, `"limit":{"in_flight":10}`+more) }

// reservedOf returns a policy of a set with two classes. A header chooses the first class.
func reservedOf(mode, limit string) string {
	return one(mode, limit+`,"reserve":{"first":"20%"}`) + `],
		"priorities":[{"name":"first","match":{"headers":[{"name":"x-first","present":true,"trusted":true}]}},{"name":"rest"}`
}
