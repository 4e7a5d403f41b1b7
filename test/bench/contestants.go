package main

import (
	"fmt"
	"strings"
)

// scene is what stands behind the filter.
type scene string

const (
	// direct: Envoy answers by itself and every request has the same key, so that what a filter
	// costs stands out.
	direct scene = "direct"
	// proxied: Envoy asks a service, the keys are a thousand with Zipf's distribution, and latency
	// is measured too.
	proxied scene = "proxied"
)

// part is what stands in front of Envoy's router.
type part string

const (
	nothing    part = "none"
	emptyWasm  part = "empty"
	nativeOne  part = "local_ratelimit"
	nativeKeys part = "local_ratelimit with descriptors"
	global     part = "ratelimit"
	weir       part = "weir"
)

// contestant is one set of processes that is measured.
type contestant struct {
	// Name is what flags and JSON call it, together with the scene; Title is for people.
	Name  string `json:"name"`
	Title string `json:"title"`
	Scene scene  `json:"scene"`

	part part
	// policies is Weir's policy set.
	policies string
	// central says that Weir's control plane has a Redis; otherwise it keeps its state itself.
	central bool
	// status is that of every answer once the contestant has warmed up.
	status int
	// proof matches counters of Envoy's that together must count each request: it shows that the
	// filter did what it is measured for.
	proof string
	// inHand says that hardly a request may need the control plane.
	inHand bool
}

func (c contestant) id() string { return string(c.Scene) + "/" + c.Name }

const (
	keyHeader = "x-key"
	path      = "/v1/items"

	// noLimit is far more than any load here sends, in one minute.
	noLimit = `{"quota": 60000000, "window": "1m"}`

	nativeProof = `bench\.http_local_rate_limit\.ok`
	globalProof = `cluster\.upstream\.ratelimit\.ok`
	emptyProof  = `wasm\.envoy\.wasm\.runtime\.v8\.active`
	localProof  = `wasmcustom\.weir\.decisions\.by_local`
	// Where the control plane is too slow the failure ladder decides; figures.Ladder says how
	// often.
	ladder          = `wasmcustom\.weir\.decisions\.by_(share|failure_allow)`
	leasedProof     = `wasmcustom\.weir\.decisions\.by_(lease|central|share|failure_allow)`
	optimisticProof = `wasmcustom\.weir\.decisions\.by_(optimistic|share|failure_allow)`
	strictProof     = `wasmcustom\.weir\.decisions\.by_(central|share|failure_allow)`
)

func limit(name, mode, rest string) string {
	return fmt.Sprintf(`{"name": %q, "partition": ["header:%s"], "mode": %q%s}`, name, keyHeader, mode, rest)
}

func open(mode string) string { return limit("p", mode, `, "limit": `+noLimit) }

// central is open to requests for which the control plane is too slow: they are counted, see ladder, and no answer is 429.
func central(mode string) string {
	return limit("p", mode, `, "on_failure": {"local_for": "0s", "then": "allow"}, "limit": `+noLimit)
}

func set(policies ...string) string {
	return `{"version": "weir/v1", "policies": [` + strings.Join(policies, ",\n") + `]}`
}

func withoutHeaders(set string) string {
	return strings.Replace(set, `"policies"`, `"headers": {"standard": "off"}, "policies"`, 1)
}

// five policies apply to every request.
func five() string {
	policies := []string{open("local")}
	for i := range 4 {
		policies = append(policies, limit(fmt.Sprintf("p%d", i), "local", `, "limit": `+noLimit))
	}
	return set(policies...)
}

// thousands are 10 000 policies, of which one applies. The others are written as short as can be:
// the control plane takes a document of 1 MB at most.
func thousands() string {
	const n = 10_000
	var policies []string
	for i := range n - 1 {
		policies = append(policies, fmt.Sprintf(`{"name":"p%d","match":{"paths":["/s/%d"]},"partition":[],"limit":{"quota":1,"window":"1m"}}`, i, i))
	}
	one := limit("p", "local", fmt.Sprintf(`, "match": {"paths": [%q]}, "limit": %s`, path, noLimit))
	return set(append(policies, one)...)
}

// inScene are those of some contestants that are in a scene.
func inScene(some []contestant, s scene) (all []contestant) {
	for _, c := range some {
		if c.Scene == s {
			all = append(all, c)
		}
	}
	return all
}

// contestants are all that are measured, in the order in which each round measures them.
func contestants() []contestant {
	all := []contestant{
		{Name: "none", Title: "no filter", part: nothing},
		{Name: "empty", Title: "empty Wasm filter", part: emptyWasm, proof: emptyProof},
		{Name: "native", Title: "Envoy's local_ratelimit, one bucket", part: nativeOne, proof: nativeProof},
		{Name: "native-keys", Title: "Envoy's local_ratelimit, a bucket for each key", part: nativeKeys, proof: nativeProof},
		{Name: "local", Title: "Weir local, two headers", part: weir, policies: set(open("local")), proof: localProof},
		{Name: "local-quiet", Title: "Weir local, no headers", part: weir, policies: withoutHeaders(set(open("local"))), proof: localProof},
		{Name: "refused", Title: "Weir local, refused", part: weir, status: 429, proof: localProof,
			policies: set(limit("p", "local", `, "limit": {"quota": 1, "window": "366d"}`))},
		{Name: "five", Title: "Weir local, 5 policies apply", part: weir, policies: five(), proof: localProof},
		{Name: "thousands", Title: "Weir local, 1 policy of 10 000 applies", part: weir, policies: thousands(), proof: localProof},
		{Name: "leased", Title: "Weir leased, tokens in hand", part: weir, policies: set(central("leased")), central: true, inHand: true, proof: leasedProof},
		{Name: "optimistic", Title: "Weir optimistic", part: weir, policies: set(central("optimistic")), central: true, inHand: true, proof: optimisticProof},
	}
	for i := range all {
		all[i].Scene = direct
	}
	for _, c := range []contestant{
		{Name: "none", Title: "no limit", part: nothing},
		{Name: "empty", Title: "empty Wasm filter", part: emptyWasm, proof: emptyProof},
		{Name: "native-keys", Title: "Envoy's local_ratelimit, a bucket for each key", part: nativeKeys, proof: nativeProof},
		{Name: "local", Title: "Weir local", part: weir, policies: set(open("local")), proof: localProof},
		{Name: "leased", Title: "Weir leased", part: weir, policies: set(central("leased")), central: true, proof: leasedProof},
		{Name: "optimistic", Title: "Weir optimistic", part: weir, policies: set(central("optimistic")), central: true, proof: optimisticProof},
		{Name: "strict", Title: "Weir strict", part: weir, policies: set(central("strict")), central: true, proof: strictProof},
		{Name: "ratelimit", Title: "Envoy's ratelimit filter, envoyproxy/ratelimit, Redis", part: global, proof: globalProof},
	} {
		c.Scene = proxied
		all = append(all, c)
	}
	for i := range all {
		if all[i].status == 0 {
			all[i].status = 200
		}
	}
	return all
}
