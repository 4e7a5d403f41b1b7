package policy_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
)

func adaptive(fields string) string {
	return `{"version":"weir/v1","priorities":[{"name":"a","match":{"paths":["/a"]}},{"name":"b"}],` +
		`"policies":[{"name":"p",` + fields + `}]}`
}

func TestAdaptive(t *testing.T) {
	const minimum = `"partition":["upstream"],"mode":"local","adaptive":{"min":20,"max":2000}`
	for fields, want := range map[string]policy.Adaptive{
		minimum: {Min: 20, Max: 2000, Percentile: 90, By: policy.ByLatency},
		minimum + `,"shed_by":["worker","latency","orca"]`: {Min: 20, Max: 2000, Percentile: 90,
			By: policy.ByLatency | policy.ByWorker | policy.ByORCA},
		`"partition":[],"mode":"local","adaptive":{"min":5,"max":5,"latency":"p50"}`: {Min: 5, Max: 5, Percentile: 50,
			By: policy.ByLatency},
		`"partition":["policy_path"],"mode":"local","adaptive":{"min":1,"max":1000000,"latency":"p99"}`: {Min: 1,
			Max: 1_000_000, Percentile: 99, By: policy.ByLatency},
	} {
		set, err := decode(t, adaptive(fields))
		if err != nil {
			t.Fatalf("%s: %v", fields, err)
		}
		p := &set.Policies[0]
		if p.Adaptive != want || len(p.Limits) != 1 || !p.Limits[0].InFlight || p.Limits[0].Quota != want.Max {
			t.Errorf("%s: %+v, limits %+v", fields, p.Adaptive, p.Limits)
		}
	}
}

func TestAdaptiveIsRefused(t *testing.T) {
	const (
		limit  = `"adaptive":{"min":2,"max":9},"mode":"local"`
		whole  = `"partition":[],` + limit
		beside = ": cannot stand beside adaptive, which finds its limit itself and counts each request as one; write " +
			"another policy"
	)
	for fields, want := range map[string]string{
		`"partition":[],"mode":"local","adaptive":{"max":9}`:                             "adaptive.min: is missing: say how many requests may always be in flight",
		`"partition":[],"mode":"local","adaptive":{"min":9}`:                             "adaptive.max: is missing: say how many requests may be in flight at most",
		`"partition":[],"mode":"local","adaptive":{"min":9,"max":8}`:                     "adaptive.min: is above max",
		`"partition":[],"mode":"local","adaptive":{"min":0,"max":8}`:                     "adaptive.min: must be a whole number from 1 to 1000000, not 0",
		`"partition":[],"mode":"local","adaptive":{"min":2,"max":8,"latency":"p100"}`:    "adaptive.latency: must be a percentile of the latency from p50 to p99, not p100",
		`"partition":[],"mode":"local","adaptive":{"min":2,"max":8,"latency":"20ms"}`:    "adaptive.latency: must be a percentile of the latency from p50 to p99, not 20ms",
		whole + `,"shed_by":["worker"]`:                                                  "shed_by: must have latency, by which the limit finds itself",
		whole + `,"shed_by":["latency","latency"]`:                                       "shed_by[1]: is given twice",
		whole + `,"shed_by":["latency","cpu"]`:                                           "shed_by[1]: must be one of latency, worker, orca, not cpu",
		`"partition":[],"limit":{"quota":2,"window":"1s"},"shed_by":["latency"]`:         "shed_by: is for adaptive limits only",
		whole + `,"limit":{"quota":2,"window":"1s"}`:                                     "limit" + beside,
		whole + `,"candidate":{"limit":{"quota":2,"window":"1s"}}`:                       "candidate" + beside,
		whole + `,"reserve":{"a":"20%"}`:                                                 "reserve" + beside,
		whole + `,"cost":2`:                                                              "cost" + beside,
		whole + `,"algorithm":"sliding_log"`:                                             "algorithm" + beside,
		whole + `,"max_hold":"2m"`:                                                       "max_hold" + beside,
		whole + `,"max_wait":"2s"`:                                                       "max_wait" + beside,
		whole + `,"on_failure":["allow"]`:                                                "on_failure" + beside,
		`"partition":[],"adaptive":{"min":2,"max":9}`:                                    "mode: must be local with adaptive: an Envoy sees its own part of the load alone",
		`"partition":["upstream","header:x"],` + limit:                                   "partition[1]: must be upstream or policy_path with adaptive: the limit is of what serves the requests, and callers would each have too few",
		`"partition":["client_ip"],` + limit:                                             "partition[0]: must be upstream or policy_path with adaptive: the limit is of what serves the requests, and callers would each have too few",
		whole + `,"match":{"domain":"edge","descriptors":[{"name":"k","present":true}]}`: "match: is of calls to the gRPC rate limit service: no Envoy sees how long they last",
	} {
		_, err := decode(t, adaptive(fields))
		if err == nil || !strings.Contains("\n"+err.Error()+"\n", "\npolicies[0]."+want+"\n") {
			t.Errorf("%s\ngot  %v\nwant %s", fields, err, want)
		}
	}
}

func TestAdaptiveSaysWhatItAdmits(t *testing.T) {
	set, err := decode(t, adaptive(`"partition":["upstream"],"mode":"local","adaptive":{"min":20,"max":2000},`+
		`"shed_by":["latency","worker"],"enforcement":"shadow"`))
	if err != nil {
		t.Fatal(err)
	}
	p := set.Policies[0]
	got := p.Bound(nil) + "|" + strings.Join(p.Notes(2), "|")
	if want := "between 20 and 2 000 requests in flight for each partition key on each Envoy|" +
		"in shadow: decided as if enforced and counted, in the background; no request is touched|" +
		"finds its limit by p90 of the latency, and is closed by latency, worker; sheds the least important " +
		"class first, " +
		"with status 503"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
