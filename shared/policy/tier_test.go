package policy_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// tiered is a document with two tiers and one policy with the given fields.
func tiered(fields string) string {
	return `{"version":"weir/v1","tiers":["free","premium","gold"],
		"identity":{"consumer":[{"header":"x-api-key"}],"tier":[{"jwt":"plan"},{"header":"X-Tier","trusted":true},"assignment"],"default_tier":"free"},
		"policies":[{"name":"p","partition":["consumer","tier"],` + fields + `}]}`
}

func TestLimitsByTier(t *testing.T) {
	set, err := decode(t, tiered(`"limits":{"premium":"unlimited","free":[{"quota":5,"window":"1s"},{"quota":60,"window":"1m"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	sources := []policy.Source{{Kind: policy.SourceJWT, Name: "plan"}, {Kind: policy.SourceHeader, Name: "x-tier"},
		{Kind: policy.SourceAssignment}}
	if !reflect.DeepEqual(set.Identity.Tier, sources) || set.Identity.DefaultTier != 0 ||
		strings.Join(set.Tiers, " ") != "free premium gold" {
		t.Errorf("identity %+v, tiers %v", set.Identity, set.Tiers)
	}
	p := set.Policies[0]
	// gold is not named and has limits like free's, but its own: a change of one of them must not
	// look like a change of both.
	if want := []policy.TierLimits{{From: 0, To: 2}, {From: 2, To: 2},
		{From: 2, To: 4}}; !reflect.DeepEqual(p.Tiers, want) {
		t.Errorf("tiers %v, want %v", p.Tiers, want)
	}
	if !reflect.DeepEqual(p.LimitsOf(2), p.LimitsOf(0)) || len(p.LimitsOf(1)) != 0 || p.LimitsOf(0)[1].Quota != 60 {
		t.Errorf("limits %+v", p.Limits)
	}
	if p.Partition[1].Kind != policy.PartTier {
		t.Errorf("partition %v", p.Partition)
	}
}

func TestCandidate(t *testing.T) {
	set, err := decode(t, tiered(`"limit":{"quota":100,"window":"1m"},"algorithm":"sliding_window","subwindows":6,
		"candidate":{"limit":[{"quota":80,"window":"1m"},{"quota":900,"window":"1h"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	c := set.Policies[0].Candidate
	if len(c) != 2 || c[1].Quota != 900 || c[0].Grain != 10*quota.Second {
		t.Errorf("candidate %+v", c)
	}
	if notes := strings.Join(set.Policies[0].Notes(10), "|"); !strings.Contains(notes,
		"watched beside it, in shadow: at most 80 in any 1m, and at most 900 in any 1h") {
		t.Errorf("notes %s", notes)
	}
}

func TestTiersAreRefused(t *testing.T) {
	const limit = `"limit":{"quota":1,"window":"1s"}`
	set := func(tiers, identity, policies string) string {
		return `{"version":"weir/v1",` + tiers + `"identity":{` + identity + `},"policies":[` + policies + `]}`
	}
	const free = `"tiers":["free"],`
	for doc, want := range map[string]string{
		set(`"tiers":[],`, ``, ``):                          "tiers: is empty: name at least one tier",
		set(`"tiers":["a","a"],`, `"default_tier":"a"`, ``): "tiers[1]: is named twice",
		set(`"tiers":["A"],`, `"default_tier":"A"`, ``):     "tiers[0]: must be 1 to 63 of a-z 0-9 . _ - and start with a letter or digit, not A",
		set(free, ``, ``):                                   "identity.default_tier: is missing: say which tier callers have of whom none is known",
		set(free, `"default_tier":"premium"`, ``):           "identity.default_tier: must be one of the tiers free, not premium",
		set(``, `"default_tier":"free"`, ``):                "identity.default_tier: needs tiers, which names them",
		set(``, `"tier":[{"jwt":"plan"}]`, ``):              "identity.tier: needs tiers, which names them",
		set(free, `"default_tier":"free","tier":[{"header":"x-tier"}]`, ``): "identity.tier[0].trusted: is missing: a client can send any header; " +
			"write trusted: true if the proxy before Envoy sets this header and removes any that clients send",
		set(free, `"default_tier":"free","tier":[{"header":"x-tier","trusted":false}]`, ``):     "identity.tier[0].trusted: must be true, not false",
		set(free, `"default_tier":"free","tier":[{"jwt":"plan","trusted":true}]`, ``):           "identity.tier[0].trusted: is for header only",
		set(free, `"default_tier":"free","tier":[{"jwt":"a","header":"b","trusted":true}]`, ``): "identity.tier[0]: must have exactly one of jwt, header, consumer_source",
		set(free, `"default_tier":"free","tier":[{"cookie":"a"}]`, ``): "identity.tier[0].cookie: unknown field\n" +
			"identity.tier[0]: must have exactly one of jwt, header, consumer_source",
		set(free, `"default_tier":"free","tier":["lookup"]`, ``):                                 "identity.tier[0]: must be {jwt: CLAIM}, {header: NAME, trusted: true}, {consumer_source: {client_ip: TIER}} or assignment, not a string",
		set(free, `"default_tier":"free","tier":[{"consumer_source":{"client_ip":"anon"}}]`, ``): "identity.tier[0].consumer_source.client_ip: must be one of the tiers free, not anon",
		set(free, `"default_tier":"free","tier":[{"consumer_source":{"client_ip":"free"}}]`, ``): "identity.tier.consumer_source: names client_ip, which is not in identity.consumer",
		set(free, `"default_tier":"free","tier":[{"consumer_source":"free"}]`, ``):               "identity.tier[0].consumer_source: must be a mapping like {client_ip: anonymous, header:x-api-key: free}, not a string",
		set(free, `"default_tier":"free","tier":["assignment"]`, ``):                             "identity.tier[0]: needs identity.consumer, which says where to find the consumer",
		set(``, ``, `{"name":"p","partition":["tier"],`+limit+`}`):                               "policies[0].partition[0]: needs tiers, which names them",
		set(``, ``, `{"name":"p","partition":[],"limits":{"free":{"quota":1,"window":"1s"}}}`):   "policies[0].limits: needs tiers, which names them",
		tiered(`"limits":{"premium":{"quota":1,"window":"1s"}}`):                                 "policies[0].limits: must have the default tier free, whose limit tiers have that are not named",
		tiered(`"limits":{"free":{"quota":1,"window":"1s"},"silver":{"quota":1,"window":"1s"}}`): "policies[0].limits.silver: must be one of the tiers free, premium, gold, not silver",
		tiered(`"limits":{"free":{"quota":-1,"window":"1s"},"premium":{"quota":1}}`): "policies[0].limits.free.quota: must be a whole number from 0 to 4503599627370496, not -1\n" +
			"policies[0].limits.premium.window: is missing",
		tiered(`"limits":{"free":"unlimited"}`):                                                         "policies[0].limits: must have a limit for at least one tier",
		tiered(`"limits":[]`):                                                                           "policies[0].limits: must be a mapping like {free: {quota: 60, window: 1m}, premium: unlimited}, not a list",
		tiered(limit + `,"limits":{"free":{"quota":1,"window":"1s"}}`):                                  "policies[0].limits: is given beside limit: write one of the two",
		tiered(limit + `,"candidate":{}`):                                                               "policies[0].candidate.limit: is missing: write {limit: {quota: 80, window: 1m}}",
		tiered(limit + `,"candidate":{"limit":{"quota":-1,"window":"1s"}}`):                             "policies[0].candidate.limit.quota: must be a whole number from 0 to 4503599627370496, not -1",
		tiered(`"limits":{"free":{"quota":5,"window":"1s"},"gold":{"quota":3,"window":"1s"}},"cost":4`): "policies[0].cost: is above the burst of 3: every request would be refused",
	} {
		if set, err := decode(t, doc); err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v (%+v)\nwant %s", doc, err, set, want)
		}
	}
}

// A field of another algorithm, and an algorithm in a mode that cannot keep its promise, are
// refused.
func TestAlgorithmsAreRefusedWhereTheyDoNotFit(t *testing.T) {
	in := func(limit, fields string) string {
		return `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":` + limit + `,` + fields + `}]}`
	}
	const five = `{"quota":5,"window":"1m"}`
	for doc, want := range map[string]string{
		in(five, `"algorithm":"gcra"`):                           "policies[0].algorithm: must be one of token_bucket, leaky_bucket, fixed_window, sliding_window, sliding_window_counter, sliding_log, not gcra",
		in(five, `"subwindows":5`):                               "policies[0].subwindows: is for algorithm: sliding_window only",
		in(five, `"algorithm":"sliding_window","align":"utc"`):   "policies[0].align: is for algorithm: fixed_window only",
		in(five, `"algorithm":"fixed_window","max_wait":"1s"`):   "policies[0].max_wait: is for algorithm: leaky_bucket and for limits of requests in flight only",
		in(five, `"algorithm":"sliding_window","subwindows":61`): "policies[0].subwindows: must be a whole number from 1 to 60, not 61",
		in(five, `"algorithm":"fixed_window","align":"week"`):    "policies[0].align: must be one of key, utc, not week",
		in(five, `"algorithm":"sliding_log","mode":"optimistic"`): "policies[0].mode: cannot be optimistic with sliding_log: excess use is paid back at a rate, " +
			"which a window or a queue does not have; use algorithm: token_bucket, or another mode",
		in(five, `"algorithm":"leaky_bucket"`): "policies[0].mode: cannot be leased with leaky_bucket: a queue needs one place that gives out the turns; use mode strict or local",
		in(five, `"algorithm":"sliding_window_counter"`): "policies[0].mode: cannot be leased with sliding_window_counter: its estimate needs the times of requests, which leased tokens do not " +
			"have; use mode strict or local, or algorithm: sliding_window",
		in(`{"quota":5,"window":"1m","burst":7}`, `"algorithm":"sliding_log"`): "policies[0].limit.burst: is for token_bucket and leaky_bucket only: sliding_log admits the quota",
		in(`{"quota":257,"window":"1m"}`, `"algorithm":"sliding_log"`):         "policies[0].limit: a sliding_log remembers every request: its quota is at most 256; sliding_window keeps the same bound for larger ones",
	} {
		if set, err := decode(t, doc); err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v (%+v)\nwant %s", doc, err, set, want)
		}
	}
	for _, mode := range []string{"local", "strict"} {
		for algorithm := range quota.Algorithm(quota.AlgorithmCount) {
			if _, err := decode(t, in(five, `"algorithm":"`+algorithm.String()+`","mode":"`+mode+`"`)); err != nil {
				t.Errorf("%s in mode %s: %v", algorithm, mode, err)
			}
		}
	}
	for _, algorithm := range []string{"token_bucket", "fixed_window", "sliding_window", "sliding_log"} {
		if _, err := decode(t, in(`[{"quota":5,"window":"1s"},{"quota":60,"window":"1m"}]`, `"algorithm":"`+algorithm+`"`)); err != nil {
			t.Errorf("a list of %s in mode leased: %v", algorithm, err)
		}
	}
}

func TestBoundsInTheWordsOfEachAlgorithm(t *testing.T) {
	said := map[quota.Algorithm]bool{}
	for fields, want := range map[string]string{
		`"algorithm":"sliding_window","limit":{"quota":1000,"window":"1m"}`:                       "at most 1 000 in any 1m for each partition key over all Envoys",
		`"algorithm":"sliding_log","limit":{"quota":5,"window":"1m"},"mode":"strict"`:             "at most 5 in any 1m for each partition key over all Envoys",
		`"algorithm":"fixed_window","limit":{"quota":5,"window":"1d"}`:                            "at most 5 in each window of 1d, so up to 10 in a short time across two of them for each partition key over all Envoys",
		`"algorithm":"sliding_window_counter","limit":{"quota":5,"window":"1m"},"mode":"local"`:   "at most 5 in any 1m by an estimate, really at most 9 for each partition key on each Envoy",
		`"algorithm":"leaky_bucket","limit":{"quota":10,"window":"1s","burst":4},"mode":"strict"`: "10 per 1s one after the other, and up to 4 that wait for at most 1s for each partition key over all Envoys, in every interval",
		`"limits":{"free":{"quota":60,"window":"1m"},"premium":"unlimited"}`:                      "free: at most 60 at once + 60 per 1m; premium: unlimited; gold: at most 60 at once + 60 per 1m; for each partition key over all Envoys, in every interval",
	} {
		set, err := decode(t, tiered(fields))
		if err != nil {
			t.Errorf("%s: %v", fields, err)
			continue
		}
		p := set.Policies[0]
		said[p.Counting.Algorithm] = true
		if got := p.Bound(set.Tiers); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		leased := p.Mode == policy.ModeLeased && p.Counting.Algorithm.Windowed()
		if said := strings.Contains(strings.Join(p.Notes(10), "|"), "so room can come back up to "); said != leased {
			t.Errorf("%s: notes %q", fields, p.Notes(10))
		}
	}
	if len(said) != quota.AlgorithmCount {
		t.Errorf("%d algorithms have a sentence here, there are %d", len(said), quota.AlgorithmCount)
	}
}
