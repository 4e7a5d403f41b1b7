package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/tools/stack"
)

// part is the filter in front of Envoy's router.
type part string

const (
	nothing    part = "none"
	emptyWasm  part = "empty"
	nativeOne  part = "local_ratelimit"
	nativeKeys part = "local_ratelimit with descriptors"
	global     part = "ratelimit"
	weir       part = "weir"
	// calls is the same filter as global, with Weir behind it.
	calls part = "ratelimit, asking Weir"
	// quotas is Envoy's own filter with tokens that Weir assigns.
	quotas part = "rate_limit_quota"
)

// contestant is one set of processes that is measured.
type contestant struct {
	// Name is the contestant's name in flags and JSON, together with the scene. Title is its name
	// for people.
	Name  string `json:"name"`
	Title string `json:"title"`
	Scene scene  `json:"scene"`

	part part
	// host runs Weir's filter; empty is Envoy's Wasm runtime.
	host stack.FilterHost
	// policies is Weir's policy set.
	policies string
	// central says that Weir's control plane has a Redis; otherwise it keeps its state itself.
	central bool
	// status is the status of every answer once the contestant has warmed up. Where the scene
	// refuses, some answers are 429.
	status int
	// proof matches counters of Envoy that together must count each request: it shows that the
	// filter did the measured work.
	proof string
	// inHand says that hardly a request may need the control plane.
	inHand bool
	// traffic differs from the scene's if it has a name.
	traffic traffic
}

func (c contestant) id() string { return string(c.Scene) + "/" + c.Name }

// load returns the traffic to the contestant.
func (c contestant) load() traffic {
	if c.traffic.name != "" {
		return c.traffic
	}
	return stages[c.Scene].traffic
}

const (
	nativeProof = `bench\.http_local_rate_limit\.(ok|rate_limited)`
	globalProof = `cluster\.upstream\.ratelimit\.(ok|over_limit)`
	emptyProof  = `wasm\.envoy\.wasm\.runtime\.v8\.active`
	quotaProof  = `cluster\.weir-quotas\.upstream_cx_active`
	localProof  = `wasmcustom\.weir\.decisions\.by_local`
	// Where the control plane is too slow the failure ladder decides; figures.Ladder says how
	// often.
	ladder          = `wasmcustom\.weir\.decisions\.by_(share|failure_allow|failure_deny)`
	leasedProof     = `wasmcustom\.weir\.decisions\.by_(lease|central|cached_denial|share|failure_allow)`
	optimisticProof = `wasmcustom\.weir\.decisions\.by_(optimistic|cached_denial|share|failure_allow)`
	// A strict request may use tokens that came too late for the request that asked.
	strictProof = leasedProof
)

func limit(name, mode, rest string) string {
	return fmt.Sprintf(`{"name": %q, "partition": ["header:%s"], "mode": %q%s}`, name, keyHeader, mode, rest)
}

// quota returns a policy's limit for a minute.
func quota(n int) string { return fmt.Sprintf(`, "limit": {"quota": %d, "window": "1m"}`, n) }

func open(mode string) string { return limit("p", mode, quota(noLimit)) }

// central returns a policy that admits requests for which the control plane is too slow: they are
// counted, see ladder, and none of them is answered with 429.
func central(mode string, n int) string {
	return limit("p", mode, `, "on_failure": {"local_for": "0s", "then": "allow"}`+quota(n))
}

// settled makes each request reserve a token more than its cost.
const settled = `, "cost": {"reserve": 2, "commit": {"status": {"rest": 1}}}`

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
		policies = append(policies, limit(fmt.Sprintf("p%d", i), "local", quota(noLimit)))
	}
	return set(policies...)
}

// thousands returns 10 000 policies, of which one applies. The others are as short as possible,
// because the control plane takes a document of 1 MB at most.
func thousands() string {
	const n = 10_000
	const short = `{"name":"p%d","match":{"paths":["/s/%d"]},"partition":[],"limit":{"quota":1,"window":"1m"}}`
	var policies []string
	for i := range n - 1 {
		policies = append(policies, fmt.Sprintf(short, i, i))
	}
	one := limit("p", "local", fmt.Sprintf(`, "match": {"paths": [%q]}%s`, path, quota(noLimit)))
	return set(append(policies, one)...)
}

// inScene returns the contestants that are in a scene.
func inScene(some []contestant, s scene) (all []contestant) {
	for _, c := range some {
		if c.Scene == s {
			all = append(all, c)
		}
	}
	return all
}

// noFilter is the base of all comparisons.
var noFilter = contestant{Name: "none", Title: "no filter", part: nothing}

// emptyFilter measures the cost of any filter that has callbacks.
var emptyFilter = contestant{Name: "empty", Title: "empty Wasm filter", part: emptyWasm, proof: emptyProof}

// perKey is Envoy's own way to limit each key.
var perKey = contestant{
	Name: "native-keys", Title: "Envoy's local_ratelimit, a bucket for each key", part: nativeKeys, proof: nativeProof,
}

// ofDirect returns the contestants of that scene.
func ofDirect() []contestant {
	refused := set(limit("p", "local", `, "limit": {"quota": 1, "window": "366d"}`))
	all := []contestant{
		{Name: "native", Title: "Envoy's local_ratelimit, one bucket", part: nativeOne, proof: nativeProof},
		perKey,
		{Name: "local", Title: "Weir local, two headers", policies: set(open("local")), proof: localProof},
		{Name: "local-quiet", Title: "Weir local, no headers", policies: withoutHeaders(set(open("local"))),
			proof: localProof},
		{Name: "local-keys", Title: "Weir local, two headers, 10 000 keys in turn", policies: set(open("local")),
			proof: localProof, traffic: manyKeys},
		{Name: "refused", Title: "Weir local, refused", policies: refused, status: 429, proof: localProof},
		{Name: "in-flight", Title: "Weir local, requests in flight", proof: localProof,
			policies: set(limit("p", "local", `, "limit": {"in_flight": 100000}`))},
		{Name: "in-flight-leased", Title: "Weir leased, requests in flight, permits in hand", central: true,
			inHand: true, proof: leasedProof,
			policies: set(limit("p", "leased", `, "limit": {"in_flight": 100000}`))},
		{Name: "settles", Title: "Weir local, a cost that is settled", proof: localProof,
			policies: set(limit("p", "local", settled+quota(noLimit)))},
		{Name: "five", Title: "Weir local, 5 policies apply", policies: five(), proof: localProof},
		{Name: "thousands", Title: "Weir local, 1 policy of 10 000 applies", policies: thousands(), proof: localProof},
		{Name: "leased", Title: "Weir leased, tokens in hand", policies: set(central("leased", noLimit)), central: true,
			inHand: true, proof: leasedProof},
		{Name: "optimistic", Title: "Weir optimistic", policies: set(central("optimistic", noLimit)), central: true,
			inHand: true, proof: optimisticProof},
		{Name: "quotas", Title: "Envoy's rate_limit_quota, assigned by Weir", part: quotas,
			policies: set(open("leased")), central: true, proof: quotaProof},
	}
	all = append([]contestant{noFilter, emptyFilter}, all...)
	return withNative(all, "local", "local-quiet", "local-keys", "refused", "settles", "five", "leased", "optimistic")
}

// nativeSuffix ends the name of a contestant that runs on the native host.
const nativeSuffix = "-so"

// withNative returns all contestants. Behind each contestant with one of the names is the same on
// the native host.
func withNative(all []contestant, names ...string) (both []contestant) {
	for _, c := range all {
		both = append(both, c)
		if slices.Contains(names, c.Name) {
			c.Name, c.Title, c.host = c.Name+nativeSuffix, c.Title+", native host", stack.NativeHost
			both = append(both, c)
		}
	}
	return both
}

// peers returns the contestants of a scene other than direct, with its limit.
func peers(s scene) []contestant {
	quotaOfEach := stages[s].quota
	weirOnes := func(mode, proof string) contestant {
		return contestant{
			Name: mode, Title: "Weir " + mode, policies: set(central(mode, quotaOfEach)), central: true, proof: proof,
		}
	}
	none := noFilter
	none.Title = "no limit"
	all := []contestant{
		none, emptyFilter,
		perKey,
		{Name: "local", Title: "Weir local", policies: set(limit("p", "local", quota(quotaOfEach))), proof: localProof},
		weirOnes("leased", leasedProof), weirOnes("optimistic", optimisticProof), weirOnes("strict", strictProof),
		{Name: "ratelimit", Title: "Envoy's ratelimit filter, envoyproxy/ratelimit, Redis", part: global,
			proof: globalProof},
	}
	if s == proxied {
		settles := weirOnes("strict", strictProof)
		settles.Name, settles.Title = "strict-settles", "Weir strict, a cost that is settled"
		settles.policies = strings.Replace(settles.policies, `"mode"`, settled[2:]+`, "mode"`, 1)
		all = append(all, settles)
	}
	if s == proxied || s == cold {
		policy := fmt.Sprintf(`{"name": "p", "partition": ["descriptor:%s"], "mode": "strict"%s}`,
			keyHeader, quota(quotaOfEach))
		// envoyproxy/ratelimit sends no headers by default.
		all = append(all, contestant{
			Name: "rls", Title: "Envoy's ratelimit filter, Weir, Redis", part: calls,
			policies: withoutHeaders(set(policy)), central: true, proof: globalProof,
		})
	}
	return withNative(all, "local", "leased", "optimistic", "strict")
}

// named returns the peers that have one of the names.
func named(s scene, names ...string) []contestant {
	return slices.DeleteFunc(peers(s), func(c contestant) bool { return !slices.Contains(names, c.Name) })
}

// ofBrowser returns the contestants of that scene: two have requests with few headers.
func ofBrowser() []contestant {
	few := named(browser, "none", "local")
	for i := range few {
		few[i].Name, few[i].Title, few[i].traffic = "few-"+few[i].Name, few[i].Title+", three headers", manyKeys
	}
	return append(peers(browser), few...)
}

// contestants returns all contestants, in the order in which each round measures them.
func contestants() []contestant {
	of := map[scene][]contestant{
		direct: ofDirect(), proxied: peers(proxied), cold: peers(cold), mixed: peers(mixed), browser: ofBrowser(),
		curve: named(curve, "none", "leased", "leased"+nativeSuffix, "strict", "ratelimit"),
		idle:  named(idle, "none", "empty", "local", "local"+nativeSuffix, "leased", "leased"+nativeSuffix),
	}
	var all []contestant
	for _, s := range scenes() {
		for _, c := range of[s] {
			c.Scene = s
			if c.part == "" {
				c.part = weir
			}
			if c.status == 0 {
				c.status = 200
			}
			all = append(all, c)
		}
	}
	return all
}
