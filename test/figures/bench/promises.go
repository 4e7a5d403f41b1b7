package main

// The causes for which some promises are missed. The page shows them beside these promises.
const (
	aloneFloor = "a request of a cold key is a call, and at this rate it seldom meets another one to travel with: " +
		"like the peer's it wakes Envoy, the control plane and Redis once each"
	headersFloor = "a third to two thirds of it, by the processor, is Envoy's own work: it lists the request's " +
		"headers and writes two headers and the filter state, and the peer needs none of these; the rest is the " +
		"decision"
	hostFloor = "a third to two thirds of the native host's cost, by the processor, is Envoy's own work, which is " +
		"the same for Wasm: it lists the request's headers and writes two headers and the filter state"
	pauseFloor = "the open loop has few requests beyond its 99th percentile, so one pause of the machine of some " +
		"twenty milliseconds decides it"
	waitFloor = "a request of a cold key waits for a call, as the peer's does: one that comes while a call is under " +
		"way waits for the rest of it too, which is how calls travel together"
	refillFloor = "one request in fifty waits for a call about its bucket's next tokens, so the 99th percentile " +
		"has a call's time in it"
	quotaFloor = "97 % of it is Envoy's own filter, which makes the id of the bucket from the request, and " +
		"hashes it, each time; the control plane is asked twice a second, however many requests come"
	keysFloor = "each key is another record of the table: neither its bytes nor what Envoy keeps of it are in the " +
		"processor's caches when its turn comes; one key's always are"
	policiesFloor = "each further policy is a bucket of its own, which is looked at before any is charged: two reads " +
		"and a write more, since a request that one of them refuses must cost nothing at the others"
	settleFloor = "a settlement is another bucket's work in Redis, and the reservation is written and taken away by " +
		"name there, so that a settlement that is lost or comes twice mints nothing"
	serviceFloor = "about half of both is Envoy's own filter, the same for both; of Weir's other half nearly two " +
		"fifths are Redis, whose script decides where the peer's commands count, and as much is gRPC's transport"
)

// promises returns all promises, in the order of the page.
func promises() []promise { return append(promisesBesidePeers(), promisesOfFilter()...) }

// promisesBesidePeers returns the promises about whole limiters.
func promisesBesidePeers() []promise {
	return []promise{
		nativeBeside("strict, 1000 keys", proxied, "strict", 0.28),
		nativeBeside("leased, 1000 keys", proxied, "leased", 0.12),
		nativeBeside("optimistic, 1000 keys", proxied, "optimistic", 0.12),
		nativeBeside("leased, 100 000 cold keys", cold, "leased", 0.3),
		nativeBeside("optimistic, 100 000 cold keys", cold, "optimistic", 0.25),
		beside("strict, 1000 keys: added / ratelimit's", proxied, "strict", "ratelimit", 0.5),
		beside("leased, 1000 keys: added / ratelimit's", proxied, "leased", "ratelimit", 0.4),
		beside("optimistic, 1000 keys: added / ratelimit's", proxied, "optimistic", "ratelimit", 0.4),
		beside("leased, 100 000 cold keys: added / ratelimit's", cold, "leased", "ratelimit", 0.6),
		beside("optimistic, 100 000 cold keys: added / ratelimit's", cold, "optimistic", "ratelimit", 0.6),
		behind("Weir behind Envoy's ratelimit filter, 1000 keys: added / envoyproxy/ratelimit's", proxied, 0.7).
			withFloor(serviceFloor),
		behind("Weir behind Envoy's ratelimit filter, cold keys: added / envoyproxy/ratelimit's", cold, 0.7).
			withFloor(serviceFloor),
		latency("Weir behind Envoy's ratelimit filter: p99 / envoyproxy/ratelimit's",
			proxied, "rls", "ratelimit", 1, p99),
		onCurve("leased", "leased", 1500, 1.2).withFloor(aloneFloor),
		onCurve("leased", "leased", 3000, 0.9).withFloor(aloneFloor),
		onCurve("native host, leased", "leased"+nativeSuffix, 1500, 0.9).withFloor(aloneFloor),
		onCurve("native host, leased", "leased"+nativeSuffix, 3000, 0.6).withFloor(aloneFloor),
		latency("leased, cold keys: p50 / ratelimit's at the same rate", cold, "leased", "ratelimit", 1, p50).
			withFloor(waitFloor),
		latency("leased, cold keys: p99 / ratelimit's at the same rate", cold, "leased", "ratelimit", 1, p99).
			withFloor(waitFloor),
		{
			name: "decided by the failure ladder below saturation, %", atMost: 0, figure: ladderShare, flaw: flawless,
			needs: []string{"proxied/leased", "cold/leased", "curve/leased"},
		},
		atRest("idle Envoy, two workers, leased: % of a processor", "leased", 0.4),
		atRest("native host, idle Envoy, two workers, leased: % of a processor", "leased"+nativeSuffix, 0.25),
		{
			name: "native host, memory of an Envoy: MB more than without a filter", atMost: 6,
			needs: []string{"direct/none", "direct/local" + nativeSuffix},
			figure: func(r round) float64 {
				return r["direct/local"+nativeSuffix].EnvoyMB - r["direct/none"].EnvoyMB
			},
			flaw: flawless,
		},
	}
}

// promisesOfFilter returns the promises about the filter's parts.
func promisesOfFilter() []promise {
	return []promise{
		filter("local, 10 000 keys: added / one key", "local-keys", "local", 1.2).withFloor(keysFloor),
		filter("native host, local, two headers: added / local_ratelimit's with a bucket for each key",
			"local"+nativeSuffix, "native-keys", 4).withFloor(headersFloor),
		filter("local, two headers: native host / Wasm", "local"+nativeSuffix, "local", 0.5).
			withFloor(hostFloor),
		filter("rate_limit_quota, assigned by Weir: added / local_ratelimit's with a bucket for each key",
			"quotas", "native-keys", 1.3).withFloor(quotaFloor),
		filter("filter, 5 policies apply / 1 applies", "five", "local", 2).withFloor(policiesFloor),
		filter("filter, requests in flight / a rate", "in-flight", "local", 1.5),
		filter("filter, leased requests in flight / a leased rate", "in-flight-leased", "leased", 1.5),
		filter("filter, a cost that is settled / one known before", "settles", "local", 1.4),
		compare("strict, a request whose cost is settled / one known before", 1.4,
			[]string{"proxied/strict-settles", "proxied/strict"},
			func(r round) float64 { return r["proxied/strict-settles"].cost() },
			func(r round) float64 { return r["proxied/strict"].cost() }),
		beside("strict, a cost that is settled: added / one known before", proxied, "strict-settles", "strict", 1.4).
			withFloor(settleFloor),
		filter("filter, 1 of 10 000 policies applies / 1 of 1", "thousands", "local", 1.1),
		compare("local, headers of a browser: added / three headers", 1.2,
			[]string{"browser/none", "browser/local", "browser/few-none", "browser/few-local"},
			func(r round) float64 { return r.added("local", browser) },
			func(r round) float64 { return r.addedOver("few-local", "few-none", browser) }),
		latency("99th percentile, local / no limit", proxied, "local", "none", 1.15, p99).withFloor(pauseFloor),
		latency("99th percentile, leased / no limit", proxied, "leased", "none", 1.15, p99).withFloor(refillFloor),
	}
}
