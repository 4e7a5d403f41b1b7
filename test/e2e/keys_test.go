package e2e

import (
	"flag"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// directly lets Envoy answer by itself, so that a test measures it and not the upstream.
func directly(config string) string {
	const route = "route: {cluster: upstream}"
	if strings.Count(config, route) != 1 {
		panic("envoy.yaml must have one line " + route)
	}
	return strings.Replace(config, route, "direct_response: {status: 200}", 1)
}

// keyCount is how many keys a flood has.
var keyCount = flag.Int("keys", 400_000,
	"number of requests of TestManyKeysLeaveMemoryFlat, each with a new key; make flood and test-native set it")

// A flood of keys can neither grow the memory of Envoy, nor hand a known client a fresh bucket, nor
// have one refused that is within its limit.
func TestManyKeysLeaveMemoryFlat(t *testing.T) {
	t.Parallel()
	w := start(t, setup{workers: 1, rewrite: directly, policies: `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: per-consumer, match: {paths: [/keys]}, partition: [consumer], limit: {quota: 10, window: 24h}, mode: local}
  - {name: generous, match: {paths: [/generous]}, partition: [consumer], limit: {quota: 1000000, window: 24h}, mode: local}
`})
	e := w.envoys[0]
	address := "127.0.0.1:" + strconv.Itoa(e.Port)
	keys := flood{address: address, path: "/keys",
		header: func(i int) string { return fmt.Sprintf("x-api-key: warm-%d\r\n", i) }}
	// The table has 65 536 slots; this many keys reach nearly all of them.
	keys.total = 400_000
	if statuses := keys.run(t); statuses[200] == 0 || statuses[200]+statuses[429] != keys.total {
		t.Fatalf("while the table fills: %v", statuses)
	}
	before := w.memory(e)

	// Known clients ask all the time: some have used up their quota, others will not.
	known := func(path string, total int, rate float64) load {
		return load{clients: 4, total: total, rate: rate, request: func(i int) *http.Request {
			return request(http.MethodPost, e.URL()+path, "x-api-key", fmt.Sprint("known-", i%knownClients))
		}}
	}
	known("/keys", 11*knownClients, 0).run(w.ctx).mustBe(t, 200, 429)
	spent, within := known("/keys", 0, 200).background(w.ctx), known("/generous", 0, 200).background(w.ctx)

	keys.total = full(*keyCount)
	begin := time.Now()
	keys.header = func(i int) string {
		if i > 0 && i%1_000_000 == 0 {
			t.Logf("%d of %d keys after %s", i, keys.total, time.Since(begin).Round(time.Second))
		}
		return fmt.Sprintf("x-api-key: key-%d\r\n", i)
	}
	statuses := keys.run(t)
	took := time.Since(begin)
	if statuses[200]+statuses[429] != keys.total {
		t.Errorf("of %d requests with a key each: %v", keys.total, statuses)
	}
	for _, group := range []struct {
		name  string
		right int
		tally tally
	}{{"used up", 429, spent.end()}, {"within the limit", 200, within.end()}} {
		group.tally.mustBe(t, 200, 429)
		all := group.tally.statuses[200] + group.tally.statuses[429]
		wrong := all - group.tally.statuses[group.right]
		t.Logf("known clients, quota %s: %d of %d decisions were wrong", group.name, wrong, all)
		if all == 0 || float64(wrong) > 0.001*float64(all) {
			t.Errorf("known clients, quota %s: %s", group.name, group.tally)
		}
	}
	after := w.awaitMemory(e, before, memory{allocated: 2e6, resident: 8e6})
	t.Logf("%d keys, each new, in %s: %v; memory before: %s; after: %s", keys.total, took.Round(time.Second), statuses,
		before, after)

	// A caller that is new after the flood has its limit and no more.
	late := load{clients: 1, total: 20, request: func(int) *http.Request {
		return request(http.MethodPost, e.URL()+"/keys", "x-api-key", "late")
	}}.run(w.ctx)
	late.mustBe(t, 200, 429)
	if late.statuses[200] > 10 {
		t.Errorf("a limit of 10 let %d pass after the flood", late.statuses[200])
	}
}

const knownClients = 50

// forwarded sends n requests with x-forwarded-for.
func (w *world) forwarded(path string, n int, value func(i int) string) tally {
	return load{clients: 1, total: n, request: func(i int) *http.Request {
		return request(http.MethodPost, w.envoys[0].URL()+path, "x-forwarded-for", value(i))
	}}.run(w.ctx)
}

func TestForwardedAddressesCountFromTheRight(t *testing.T) {
	t.Parallel()
	w := start(t, setup{rewrite: directly, policies: `
version: weir/v1
identity: {client_ip: {trusted_hops: 1}}
policies:
  - {name: per-ip, match: {paths: [/hops]}, partition: [client_ip], limit: {quota: 5, window: 24h}, mode: local}
`})
	// Addresses that a client writes itself stand further left and do not help it.
	got := w.forwarded("/hops", 20, func(i int) string { return fmt.Sprintf("198.51.100.%d, 203.0.113.7", i) })
	if got.statuses[200] != 5 {
		t.Errorf("one address behind forged addresses: %s, want 5 × 200", got)
	}
	got = w.forwarded("/hops", 5, func(int) string { return "203.0.113.8" })
	if got.statuses[200] != 5 {
		t.Errorf("another address: %s, want 5 × 200", got)
	}
}

// An IPv6 client has one bucket for its /64.
func TestIPv6ClientsShareTheirNetwork(t *testing.T) {
	t.Parallel()
	w := start(t, setup{rewrite: directly, policies: `
version: weir/v1
identity: {client_ip: {trusted_hops: 1}}
policies:
  - {name: per-ip, match: {paths: [/six]}, partition: [client_ip], limit: {quota: 5, window: 24h}, mode: local}
`})
	got := w.forwarded("/six", 20, func(i int) string { return fmt.Sprintf("2001:db8:1:2::%x", i+1) })
	if got.statuses[200] != 5 {
		t.Errorf("addresses of one /64: %s, want 5 × 200", got)
	}
	got = w.forwarded("/six", 20, func(i int) string { return fmt.Sprintf("2001:db8:1:%x::1", i+16) })
	if got.statuses[200] != 20 {
		t.Errorf("addresses of different /64: %s, want 20 × 200", got)
	}
}

func TestAnIPv6ListenerKnowsItsClients(t *testing.T) {
	t.Parallel()
	if !stack.HasIPv6() {
		t.Log("this machine has no IPv6 loopback: there is nothing to listen on")
		return
	}
	w := start(t, setup{host: "::1", rewrite: directly, policies: `
version: weir/v1
policies:
  - {name: per-ip, match: {paths: [/six]}, partition: [client_ip], if_absent: deny, limit: {quota: 5, window: 24h}, mode: local}
`})
	url := w.envoys[0].URL() + "/six"
	if !strings.HasPrefix(url, "http://[::1]:") {
		t.Fatalf("Envoy listens on %s", url)
	}
	got := load{url: url, clients: 4, total: 20}.run(w.ctx)
	got.mustBe(t, 200, 429)
	if got.statuses[200] != 5 {
		t.Errorf("from ::1: %s, want 5 × 200", got)
	}
}
