package policy_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

func inFlight(fields string) string {
	return `{"version":"weir/v1","tiers":["free"],"identity":{"default_tier":"free"},"policies":[{"name":"p","partition":[],` + fields + `}]}`
}

func TestInFlight(t *testing.T) {
	for fields, want := range map[string]struct{ most, hold, wait int64 }{
		`"mode":"local","limit":{"in_flight":20}`:                                                                               {20, int64(10 * quota.Minute), 0},
		`"mode":"local","limit":{"in_flight":1},"max_hold":"2m"`:                                                                {1, int64(2 * quota.Minute), 0},
		`"mode":"local","limit":{"in_flight":1000000},"max_hold":"forever"`:                                                     {1_000_000, 0, 0},
		`"mode":"local","max_wait":"3s","limit":[{"quota":5,"window":"1s"},{"in_flight":7}]`:                                    {7, int64(10 * quota.Minute), int64(3 * quota.Second)},
		`"mode":"local","max_wait":"0s","limit":[{"in_flight":7},{"quota":5,"window":"1s"}],"algorithm":"sliding_log","cost":3`: {7, int64(10 * quota.Minute), 0},
		`"limit":{"in_flight":2}`: {2, int64(10 * quota.Minute), 0},
		`"mode":"leased","limit":[{"in_flight":2},{"quota":5,"window":"1s"}]`:                    {2, int64(10 * quota.Minute), 0},
		`"limits":{"free":{"in_flight":4}},"max_hold":"forever","max_wait":"1s"`:                 {4, 0, int64(quota.Second)},
		`"mode":"local","limit":{"quota":5,"window":"1s"},"candidate":{"limit":{"in_flight":3}}`: {3, int64(10 * quota.Minute), 0},
	} {
		set, err := decode(t, inFlight(fields))
		if err != nil {
			t.Errorf("%s: %v", fields, err)
			continue
		}
		p := set.Policies[0]
		found := 0
		for _, l := range append(p.Limits, p.Candidate...) {
			if l.InFlight {
				found++
				if l.Quota != want.most || int64(l.Window) != want.hold || int64(l.MaxWait) != want.wait ||
					l.Params.Burst != want.most {
					t.Errorf("%s: %+v", fields, l)
				}
			}
		}
		if some, _ := p.InFlight(); found != 1 || !some {
			t.Errorf("%s: %d limits of requests in flight", fields, found)
		}
	}
}

func TestInFlightIsRefused(t *testing.T) {
	for fields, want := range map[string]string{
		`"mode":"local","limit":{"in_flight":0}`:                                                        "policies[0].limit.in_flight: must be a whole number from 1 to 1000000, not 0",
		`"mode":"local","limit":{"in_flight":{"jwt":"n"}}`:                                              "policies[0].limit.in_flight: must be a whole number: only quota and burst can take figures from requests",
		`"mode":"local","limit":{"in_flight":2,"window":"1s"}`:                                          "policies[0].limit: has in_flight and other fields: requests in flight have no quota, window or burst; write the two as items of a list",
		`"mode":"local","limit":{"in_flight":2,"burst":3}`:                                              "policies[0].limit: has in_flight and other fields: requests in flight have no quota, window or burst; write the two as items of a list",
		`"mode":"local","limit":{"in_flight":2,"max_wait":"1s"}`:                                        "policies[0].limit.max_wait: unknown field here: it is one of a policy, beside its name",
		`"mode":"local","limit":{"in_flight":2,"widow":"1s"}`:                                           "policies[0].limit.widow: unknown field: did you mean window?",
		`"mode":"local","limit":[{"in_flight":2},{"in_flight":3}]`:                                      "policies[0].limit[1].in_flight: is a second one in the list: the smaller of the two is enough",
		`"mode":"local","limit":{"in_flight":2},"cost":2`:                                               "policies[0].cost: is for quotas: a request in flight takes one place, whatever it costs",
		`"mode":"local","limit":{"in_flight":2},"algorithm":"sliding_log"`:                              "policies[0].algorithm: is for quotas: requests in flight are counted in one way",
		`"mode":"local","limit":{"in_flight":2},"max_hold":"1ms"`:                                       "policies[0].max_hold: must be a whole number with a unit (ms s m h d) from 1s to 366d, not 1ms",
		`"mode":"local","limit":{"in_flight":2},"max_wait":"2h"`:                                        "policies[0].max_wait: must be a whole number with a unit (ms s m h d) from 0s to 1h, not 2h",
		`"limit":{"quota":2,"window":"1s"},"max_hold":"1m"`:                                             "policies[0].max_hold: is for limits of requests in flight only",
		`"mode":"strict","limit":{"in_flight":2}`:                                                       "policies[0].mode: cannot be strict with in_flight: a lost answer would leave a request counted; use leased, which is as exact, or local; a strict quota needs its own policy",
		`"mode":"optimistic","limit":[{"in_flight":2},{"quota":2,"window":"1s"}]`:                       "policies[0].mode: cannot be optimistic with in_flight: requests beyond the limit cannot be paid back; use leased or local; an optimistic quota needs its own policy",
		`"mode":"local","algorithm":"leaky_bucket","limit":[{"in_flight":2},{"quota":2,"window":"1s"}]`: "policies[0].algorithm: cannot be leaky_bucket beside in_flight: both have requests wait, and one max_wait cannot be for both; write two policies",
	} {
		if _, err := decode(t, inFlight(fields)); err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", fields, err, want)
		}
	}
}

func TestInFlightSaysWhatItAdmits(t *testing.T) {
	set, err := decode(t, `{"version":"weir/v1","policies":[
		{"name":"a","partition":["client_ip"],"mode":"local","limit":{"in_flight":2000},"max_hold":"2m"},
		{"name":"b","partition":[],"mode":"local","limit":[{"quota":5,"window":"1s"},{"in_flight":3}],"max_hold":"forever","max_wait":"1s"},
		{"name":"c","partition":[],"limit":{"in_flight":20},"max_hold":"forever"},
		{"name":"d","partition":[],"limit":{"in_flight":3},"max_hold":"forever","on_failure":["deny"]},
		{"name":"e","partition":[],"limit":[{"quota":5,"window":"1s"},{"in_flight":3}],"max_hold":"forever","algorithm":"fixed_window","on_failure":[{"allow":"1s"},"deny"]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		"at most 2 000 requests in flight for each partition key on each Envoy|" +
			"a request that lasts longer than 2m no longer counts after that time, and is reported; it goes on, " +
			"on top of the limit",
		"at most 5 at once + 5 per 1s, and at most 3 requests in flight on each Envoy, in every interval|" +
			"a request counts for as long as it lasts|" +
			"a request waits for a place for at most 1s; in each worker no more requests wait than the limit allows",
		"at most 20 requests in flight over all Envoys|a request counts for as long as it lasts|" +
			"the places of an Envoy that crashes are free again after 10s|" +
			"requests in flight at an Envoy that is cut off from the control plane come " +
			"on top of the limit from 10s on, " +
			"and by its share it has up to 10 (with 2 Envoys)|without the control plane: each Envoy's even share for " +
			"30s, then allow",
		"at most 3 requests in flight over all Envoys|a request counts for as long as it lasts|" +
			"the places of an Envoy that crashes are free again after 10s|" +
			"requests in flight at an Envoy that is cut off from the control plane come " +
			"on top of the limit from 10s on|" +
			"without the control plane: deny",
		"at most 5 in each window of 1s, so up to 10 in a short time across two of them, and at most 3 requests " +
			"in flight " +
			"over all Envoys|a request counts for as long as it lasts|" +
			"the places of an Envoy that crashes are free again after 10s|" +
			"requests in flight at an Envoy that is cut off from the control plane come " +
			"on top of the limit from 10s on|" +
			"tokens leased to an Envoy count until their lease ends and a window longer, so room can come back up to " +
			"200ms late|" +
			"without the control plane: allow for 1s, then deny",
	} {
		p := set.Policies[i]
		if got := p.Bound(nil) + "|" + strings.Join(p.Notes(2), "|"); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// No consumer has requests in flight of its own.
func TestInFlightHasNoOverride(t *testing.T) {
	set, err := decode(t, inFlight(`"mode":"local","limit":{"in_flight":2}`))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := policy.ParseJSON([]byte(`{"quota":5,"window":"1m"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, problems := policy.DecodeOverride("limit", doc, &set.Policies[0]); len(problems) != 1 {
		t.Errorf("%v", problems)
	}
}
