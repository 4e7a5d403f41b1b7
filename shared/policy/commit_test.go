package policy_test

import (
	"encoding/binary"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

func committing(fields string) string {
	return `{"version":"weir/v1","policies":[{"name":"p","partition":[],` + fields + `}]}`
}

func TestCommit(t *testing.T) {
	reserved := int64(policy.MissingReserved)
	for fields, want := range map[string]policy.Commit{
		`"mode":"strict","algorithm":"sliding_log","limit":{"quota":5,"window":"15m"},"cost":{"reserve":1,"commit":{"status":{"401":1,"403":1,"rest":0}},"missing":0}`: {
			By: policy.CommitStatus, Statuses: []policy.StatusCost{{First: 401, Last: 401, Cost: 1},
				{First: 403, Last: 403, Cost: 1}, {Last: 999}}},
		`"mode":"local","limit":{"quota":5,"window":"15m"},"cost":{"reserve":1,"commit":{"status":{"rest":0,"5xx":2}},"missing":"reserved"}`: {
			By: policy.CommitStatus, Statuses: []policy.StatusCost{{Last: 999}, {First: 500, Last: 599, Cost: 2}},
			Missing: reserved},
		`"mode":"local","limit":{"quota":5,"window":"15m"},"cost":{"reserve":5,"commit":{"header":"X-Used"},"missing":9}`: {
			By: policy.CommitHeader, Name: "x-used", Missing: 9},
		`"mode":"strict","algorithm":"fixed_window","limit":{"quota":5,"window":"15m"},"cost":{"reserve":{"header":"x-max","max":90},"commit":{"duration":"10ms"}}`: {
			By: policy.CommitDuration, Unit: 10 * quota.Millisecond, Missing: reserved},
		`"mode":"local","limit":{"quota":5,"window":"15m"},"cost":{"reserve":5,"commit":{"metadata":"ai/usage/total"}}`: {
			By: policy.CommitMetadata, Name: "ai/usage/total", Missing: reserved},
		`"mode":"local","limit":{"quota":5,"window":"15m"},"cost":{"reserve":1,"commit":{"grpc_status":{"16":1,"0":2,"rest":0}}}`: {
			By:       policy.CommitGRPCStatus,
			Statuses: []policy.StatusCost{{First: 16, Last: 16, Cost: 1}, {Cost: 2}, {Last: 999}}, Missing: reserved},
		`"limit":{"quota":5,"window":"15m"},"cost":{"reserve":1,"commit":{"trailer":"X-Rows"}}`: {
			By: policy.CommitTrailer, Name: "x-rows", Missing: reserved},
		`"limit":{"quota":5,"window":"15m"},"cost":{"reserve":1,"commit":{"header":"x"}}`: {
			By: policy.CommitHeader, Name: "x", Missing: reserved},
		`"mode":"strict","limit":{"quota":{"header":"x-q","trusted":true,"max":9,"default":5},"window":"15m"},"cost":{"reserve":1,"commit":{"header":"x"}}`: {
			By: policy.CommitHeader, Name: "x", Missing: reserved},
	} {
		set, err := decode(t, committing(fields))
		if err != nil {
			t.Errorf("%s: %v", fields, err)
			continue
		}
		if got := set.Policies[0].Commit; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", fields, got, want)
		}
	}
}

// A reservation is a number, or where the request says it.
func TestReservation(t *testing.T) {
	for reserve, want := range map[string]policy.Cost{
		`5`:                           {Fixed: 5},
		`{"header":"X-Max","max":90}`: {Fixed: 1, Invalid: 1, Max: 90, Source: policy.Source{Kind: policy.SourceHeader, Name: "x-max"}},
		`{"jwt":"plan.max","max":90,"missing":7}`: {Fixed: 1, Invalid: 7, Max: 90,
			Source: policy.Source{Kind: policy.SourceJWT, Name: "plan.max"}},
		`{"header":["X-Max","x-new"],"max":9}`: {Fixed: 1, Invalid: 1, Max: 9,
			Source: policy.Source{Kind: policy.SourceHeader, Name: "x-max"}, Also: [3]string{"x-new"}},
		`{"metadata":"ai/max","max":90}`: {Fixed: 1, Invalid: 1, Max: 90,
			Source: policy.Source{Kind: policy.SourceMetadata, Name: "ai/max"}},
	} {
		set, err := decode(t, committing(`"mode":"local","limit":{"quota":5,"window":"15m"},"cost":{"reserve":`+reserve+
			`,"commit":{"header":"x"}}`))
		if err != nil {
			t.Errorf("%s: %v", reserve, err)
		} else if got := set.Policies[0].Cost; got != want {
			t.Errorf("%s: %+v, want %+v", reserve, got, want)
		}
	}
	for reserve, want := range map[string]string{
		`{"max":9}`:                              "cost.reserve: must have exactly one of header, jwt, metadata",
		`{"jwt":"a","header":"b","max":9}`:       "cost.reserve: must have exactly one of header, jwt, metadata",
		`{"jwt":[],"max":9}`:                     "cost.reserve.jwt: is empty: name a source of the reservation",
		`{"header":["a","A"],"max":9}`:           "cost.reserve.header[1]: is named twice",
		`{"header":["a","b","b"],"max":9}`:       "cost.reserve.header[2]: is named twice",
		`{"jwt":["a","b","c","d","e"],"max":9}`:  "cost.reserve.jwt: has 5 items; at most 4 are allowed",
		`{"header":["a",{}],"max":9}`:            "cost.reserve.header[1]: must be a string",
		`{"jwt":"a"}`:                            "cost.reserve.max: is missing: say the most that one request may reserve",
		`{"jwt":"a..b","max":9}`:                 "cost.reserve.jwt: must be a claim, nested ones like realm.role",
		`{"metadata":"max","max":9}`:             "cost.reserve.metadata: must be a name space and a key of Envoy's metadata",
		`{"metadata":"a/b","max":9,"missing":0}`: "cost.reserve.missing: must be a whole number from 1 to 4294967296, not 0",
	} {
		_, err := decode(t, committing(`"mode":"local","limit":{"quota":5,"window":"15m"},"cost":{"reserve":`+reserve+
			`,"commit":{"header":"x"}}`))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot  %v\nwant %s", reserve, err, want)
		}
	}
}

func TestCommitIsRefused(t *testing.T) {
	const local = `"mode":"local","limit":{"quota":5,"window":"15m"},`
	for fields, want := range map[string]string{
		local + `"cost":{"reserve":1}`:                                                                                                                     "policies[0].cost.commit: is missing: say where its cost is found, like {header: x-cost}",
		local + `"cost":{"commit":{"header":"x"}}`:                                                                                                         "policies[0].cost.reserve: is missing: name the cost that a request reserves",
		local + `"cost":{"reserve":0,"commit":{"header":"x"}}`:                                                                                             "policies[0].cost.reserve: must be a whole number from 1 to 4294967296, not 0",
		local + `"cost":{"reserve":6,"commit":{"header":"x"}}`:                                                                                             "policies[0].cost: is above the burst of 5: every request would be refused",
		local + `"cost":{"reserve":1,"commit":{"header":"x","duration":"1s"}}`:                                                                             "policies[0].cost.commit: must have exactly one of status, grpc_status, header, trailer, metadata, duration",
		local + `"cost":{"reserve":1,"commit":{"metadata":"total"}}`:                                                                                       "policies[0].cost.commit.metadata: must be a name space and a key of Envoy's metadata like",
		local + `"cost":{"reserve":1,"commit":{"grpc_status":{"17":1,"rest":0}}}`:                                                                          "policies[0].cost.commit.grpc_status.17: must be a status like 401",
		local + `"cost":{"reserve":1,"commit":{"grpc_status":{"07":1,"rest":0}}}`:                                                                          "policies[0].cost.commit.grpc_status.07: must be a status like 401",
		local + `"cost":{"reserve":1,"commit":{"grpc_status":{"5xx":1,"rest":0}}}`:                                                                         "policies[0].cost.commit.grpc_status.5xx: must be a status like 401",
		local + `"cost":{"reserve":1,"commit":{"status":{"401":1}}}`:                                                                                       "policies[0].cost.commit.status.rest: is missing: write the cost of all other responses",
		local + `"cost":{"reserve":1,"commit":{"status":{"4x1":1,"rest":0}}}`:                                                                              "policies[0].cost.commit.status.4x1: must be a status like 401, a hundred of them like 5xx, or rest, each once",
		local + `"cost":{"reserve":1,"commit":{"status":{"600":1,"rest":0}}}`:                                                                              "policies[0].cost.commit.status.600: must be a status like 401, a hundred of them like 5xx, or rest, each once",
		local + `"cost":{"reserve":1,"commit":{"status":{"401":-1,"rest":0}}}`:                                                                             "policies[0].cost.commit.status.401: must be a whole number from 0 to 4294967296, not -1",
		local + `"cost":{"reserve":1,"commit":{"duration":"0s"}}`:                                                                                          "policies[0].cost.commit.duration: must be a whole number with a unit (ms s m h d) from 1ms to 1h, not 0s",
		local + `"cost":{"reserve":1,"commit":{"header":"x"},"missing":"free"}`:                                                                            `policies[0].cost.missing: must be reserved, or a whole number from 0 on, not free`,
		local + `"algorithm":"leaky_bucket","cost":{"reserve":1,"commit":{"header":"x"}}`:                                                                  "policies[0].cost.commit: cannot be with leaky_bucket: a turn that was waited for cannot be given back; use token_bucket",
		local + `"algorithm":"sliding_window_counter","cost":{"reserve":1,"commit":{"header":"x"}}`:                                                        "policies[0].cost.commit: cannot be with sliding_window_counter: its estimate does not know its requests; use sliding_window",
		local + `"candidate":{"limit":{"quota":3,"window":"15m"}},"cost":{"reserve":1,"commit":{"header":"x"}}`:                                            "policies[0].cost.commit: cannot be with candidate: a draft's reservations would never be settled; write a policy in shadow",
		`"mode":"local","limit":[{"in_flight":2},{"quota":5,"window":"1m"}],"cost":{"reserve":1,"commit":{"header":"x"}}`:                                  "policies[0].cost.commit: cannot be with in_flight: a request in flight takes one place, whatever it costs; write two policies",
		`"mode":"optimistic","limit":{"quota":5,"window":"15m"},"cost":{"reserve":1,"commit":{"header":"x"}}`:                                              "policies[0].cost.commit: cannot be with mode optimistic: a request passes there before anything is reserved; use leased or strict",
		`"mode":"local","limit":{"quota":{"header":"x-q","trusted":true,"max":9,"default":5},"window":"15m"},"cost":{"reserve":1,"commit":{"header":"x"}}`: "policies[0].cost.commit: cannot be with figures of requests in a token_bucket in mode local: use sliding_window, or leased or strict",
	} {
		_, err := decode(t, committing(fields))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot  %v\nwant %s", fields, err, want)
		}
	}
}

func TestCommitBound(t *testing.T) {
	set, err := decode(t, committing(`"mode":"local","limit":{"quota":5,"window":"15m"},"cost":{"reserve":1,"commit":{"status":{"401":1,"rest":0}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(set.Policies[0].Notes(2), "; "); !strings.Contains(got,
		"costs its reservation") || strings.Contains(got, "each request asks") {
		t.Error(got)
	}
	set, err = decode(t, committing(`"limit":{"quota":5,"window":"15m"},"cost":{"reserve":1,"commit":{"duration":"1s"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(set.Policies[0].Notes(2), "; "); !strings.Contains(got, "each request asks") {
		t.Error(got)
	}
	for _, limit := range []string{`"algorithm":"sliding_window","limit":{"quota":5,"window":"15m"}`,
		`"limit":{"quota":5,"window":"1s"}`} { // No token is leased, in windows or in a bucket that is full soon.
		set, err = decode(t, committing(limit+`,"cost":{"reserve":1,"commit":{"header":"x"}}`))
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(set.Policies[0].Notes(2), "; ")
		if strings.Count(got, "leased")+strings.Count(got, "asks") != 1 {
			t.Errorf("%s: %s", limit, got)
		}
		if strings.Contains(got, "not carried on") != strings.Contains(limit, "window\",") {
			t.Errorf("%s: of a debt it says %s", limit, got)
		}
	}
	set, _ = decode(t, committing(`"mode":"local","limit":{"quota":5,"window":"15m"},"cost":{"reserve":1,"commit":{"status":{"401":1,"rest":0}}}`))
	c := set.Policies[0].Commit
	for status, want := range map[int]int64{401: 1, 200: 0, 0: 0, 999: 0} {
		if got := c.ByStatus(status); got != want {
			t.Errorf("status %d costs %d, want %d", status, got, want)
		}
	}
	c = policy.Commit{Statuses: []policy.StatusCost{{Last: 999, Cost: 4}, {First: 500, Last: 599, Cost: 2},
		{First: 503, Last: 503, Cost: 3}}}
	for status, want := range map[int]int64{503: 3, 500: 2, 200: 4} {
		if got := c.ByStatus(status); got != want {
			t.Errorf("status %d costs %d, want %d: the entry with the fewest statuses counts", status, got, want)
		}
	}
	c = policy.Commit{By: policy.CommitDuration, Unit: 10 * quota.Millisecond}
	for took, want := range map[quota.Span]int64{-1: 0, 0: 0, 1: 1, 10 * quota.Millisecond: 1,
		10*quota.Millisecond + 1: 2} {
		if got := c.ByDuration(took); got != want {
			t.Errorf("%d us cost %d, want %d", took, got, want)
		}
	}
}

// The value in a response is a cost if it is a whole number, however large: more than the highest
// cost counts as the highest cost. Anything else is no cost.
func TestWhatResponsesSay(t *testing.T) {
	raw := func(n float64) string { return string(binary.LittleEndian.AppendUint64(nil, math.Float64bits(n))) }
	for text, want := range map[string]int64{
		"0": 0, "7": 7, "007": 7, "4294967296": policy.MaxCost, "4294967297": policy.MaxCost,
		"99999999999999999999999999": policy.MaxCost, "12345678": 12345678,
		"": -1, "-1": -1, "+1": -1, "1.0": -1, "1e3": -1, "NaN": -1, " 7": -1, "7 ": -1, "1, 2": -1, "1,2": -1,
		"999999999999999999999x": -1, "0x10": -1,
	} {
		got, said := policy.ParseActual([]byte(text))
		of, found := (&policy.Commit{}).ByMetadata([]byte(text))
		if said != (want >= 0) || said && got != want || found != said || said && of != want {
			t.Errorf("%q: %d, %v in a header and %d, %v in metadata, want %d", text, got, said, of, found, want)
		}
	}
	for number, want := range map[float64]int64{
		0: 0, 7: 7, policy.MaxCost + 1: policy.MaxCost, 1e300: policy.MaxCost, math.Inf(1): policy.MaxCost,
		4.5: -1, -1: -1, math.Inf(-1): -1,
	} {
		if got, said := (&policy.Commit{}).ByMetadata([]byte(raw(number))); said != (want >= 0) || said && got != want {
			t.Errorf("%v: %d, %v, want %d", number, got, said, want)
		}
	}
	if got, said := (&policy.Commit{}).ByMetadata([]byte(raw(math.NaN()))); said {
		t.Errorf("NaN costs %d", got)
	}
}

// xCost is a header that says a cost.
var xCost = policy.Source{Kind: policy.SourceHeader, Name: "x-cost"}

// The cost of a request whose response is not whole is the policy's, or the default for the way in
// which the cost and its reservation are known.
func TestUnfinished(t *testing.T) {
	const local = `"mode":"local","limit":{"quota":5,"window":"15m"},"cost":`
	for cost, want := range map[string]struct {
		how  policy.Unfinished
		note string
	}{
		`{"reserve":1,"commit":{"header":"x"}}`: {policy.UnfinishedReserved, "costs its reservation"},
		`{"reserve":{"header":"x-max","max":90,"missing":9},"commit":{"header":"x"}}`: {policy.UnfinishedMissing,
			"warning: clients choose the reservation, by the header x-max; a request that ends without a whole " +
				"response costs that reservation, and no less than 9, so each that a client leaves can cost up to 81 " +
				"more than it pays"},
		`{"reserve":{"header":"x-max","max":90,"min":7},"commit":{"header":"x"}}`: {policy.UnfinishedReserved,
			"its reservation, so each that a client leaves can cost up to 83 more"},
		`{"reserve":{"header":"x-max","max":90},"commit":{"header":"x"},"unfinished":"reserved"}`: {
			policy.UnfinishedReserved, "its reservation, so each that a client leaves can cost up to 89 more"},
		`{"reserve":{"header":"x-max","max":90},"commit":{"header":"x"},"unfinished":"max"}`: {policy.UnfinishedMax,
			"its reservation, and 90, the most that may be reserved, if its client has gone or it timed out"},
		`{"reserve":{"jwt":"plan.max","max":90},"commit":{"header":"x"}}`: {policy.UnfinishedReserved,
			"warning: a request that ends without a whole response costs the number in its claim plan.max"},
		`{"reserve":{"metadata":"ai/max","max":90},"commit":{"header":"x"}}`: {policy.UnfinishedReserved,
			"costs its reservation, so each that a client leaves can cost up to 89 more"},
		`{"reserve":3,"commit":{"header":"x"},"unfinished":40}`: {policy.UnfinishedNumber, "whole response costs 40"},
		`{"reserve":3,"commit":{"header":"x"},"unfinished":0}`:  {policy.UnfinishedNumber, "whole response costs 0"},
		`{"reserve":{"header":"x-max","max":90},"commit":{"header":"y"},"unfinished":0}`: {policy.UnfinishedNumber,
			"warning: a request that ends without a whole response costs 0, so each that a client leaves can cost up " +
				"to " +
				"90 more than it pays, if the upstream holds it to no more than max; say unfinished: max"},
		`{"reserve":{"header":"x-max","max":90},"commit":{"header":"y"},"unfinished":90}`: {policy.UnfinishedNumber,
			"whole response costs 90"},
		`{"reserve":{"header":"x-max","max":90},"commit":{"duration":"1s"}}`: {policy.UnfinishedElapsed,
			"costs the time that it took"},
		`{"reserve":3,"commit":{"duration":"1s"},"unfinished":"elapsed"}`: {policy.UnfinishedElapsed, "the time that"},
	} {
		set, err := decode(t, committing(local+cost))
		if err != nil {
			t.Errorf("%s: %v", cost, err)
			continue
		}
		p := set.Policies[0]
		if got := p.Commit.IfUnfinished(p.Cost.Source.Kind); got != want.how {
			t.Errorf("%s: %v, want %v", cost, got, want.how)
		}
		if got := strings.Join(p.Notes(2), "; "); !strings.Contains(got, want.note) {
			t.Errorf("%s: %s, want %s", cost, got, want.note)
		}
	}
	for cost, want := range map[string]string{
		`{"reserve":3,"commit":{"header":"x"},"unfinished":"free"}`: "unfinished: must be reserved, max, elapsed, or a whole " +
			"number from 0 on, not free",
		`{"reserve":3,"commit":{"header":"x"},"unfinished":-1}`:                   "unfinished: must be a whole number from 0 to 4294967296",
		`{"reserve":3,"commit":{"header":"x"},"unfinished":"elapsed"}`:            "unfinished: elapsed is for commit: {duration: …}",
		`{"reserve":3,"commit":{"header":"x"},"unfinished":"max"}`:                "unfinished: max is for a reservation that requests say",
		`{"reserve":{"header":"x-max","max":9,"min":10},"commit":{"header":"x"}}`: "reserve.min: must be at most max",
		`{"reserve":{"header":"x-max","max":9,"min":0},"commit":{"header":"x"}}`:  "reserve.min: must be a whole number from 1",
	} {
		if _, err := decode(t, committing(local+cost)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", cost, err, want)
		}
	}
}

// The cost of a request whose response was not whole, by the way that counts: the most only if its
// client left, and never less than it has reserved.
func TestByUnfinished(t *testing.T) {
	c := policy.Commit{By: policy.CommitDuration, Unit: quota.Second, UnfinishedCost: 40}
	const reserved, never = 5, quota.Span(-1)
	for _, one := range []struct {
		how  policy.Unfinished
		most int64
		took quota.Span
		left bool
		want int64
	}{
		{policy.UnfinishedReserved, 90, quota.Second, true, policy.MissingReserved},
		{policy.UnfinishedNumber, 90, never, false, 40},
		{policy.UnfinishedNumber, 90, never, true, 40},
		{policy.UnfinishedMax, 90, never, true, 90},
		{policy.UnfinishedMax, 90, never, false, policy.MissingReserved},
		{policy.UnfinishedMax, reserved, never, true, policy.MissingReserved},
		{policy.UnfinishedMissing, 9, never, true, 9},
		{policy.UnfinishedMissing, 9, never, false, policy.MissingReserved},
		{policy.UnfinishedMissing, 3, never, true, policy.MissingReserved},
		{policy.UnfinishedElapsed, 90, 1500 * quota.Millisecond, false, 2},
		{policy.UnfinishedElapsed, 90, 0, true, 0},
		{policy.UnfinishedElapsed, 90, never, true, policy.MissingReserved},
	} {
		if got := c.ByUnfinished(one.how, reserved, one.most, one.took, one.left); got != one.want {
			t.Errorf("%+v: %d", one, got)
		}
	}
	if a, b := policy.UnfinishedMissing.Most(90, 9, 7), policy.UnfinishedMissing.Most(90, 9, 20); a != 7 || b != 9 {
		t.Errorf("no less than what is missing: %d of a burst of 7, %d of one of 20", a, b)
	}
	if got := policy.UnfinishedMax.Most(90, 9, 7); got != 90 {
		t.Errorf("the most is %d", got)
	}
}
