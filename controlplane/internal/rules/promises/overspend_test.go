package promises_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/rules/promises"
)

// The amount by which costs that are known later can pass a limit is a number if the policy set
// says enough, and a formula if it does not.
func TestOverspend(t *testing.T) {
	const (
		status  = "{reserve: 2, commit: {status: {200: 9, rest: 0}}}"
		flights = "\n  - {name: seats, match: {paths: [/a]}, partition: [client_ip], limit: {in_flight: 20}}"
	)
	other := func(old, now string) string { return strings.ReplaceAll(flights, old, now) }
	for _, c := range []struct{ cost, beside, want string }{
		{"{reserve: 1, commit: {status: {401: 1, rest: 0}}}", "",
			"nothing beyond that: a request costs at most 1, and reserves no less"},
		{status, "",
			"beyond that at most 7 for each request under way at once: it costs at most 9 and reserves 2 or more"},
		{status, flights, "beyond that at most 20 x (9 - 2) = 140: at most 20 requests are under way at once by " +
			"the policy seats, which counts a request for 10m, and each costs at most 9 and reserves 2 or more"},
		{"{reserve: 2, commit: {grpc_status: {0: 1, rest: 0}}, missing: 12}", flights, "20 x (12 - 2) = 200"},
		{"{reserve: {header: x-max, max: 50, missing: 9}, commit: {status: {200: 9, rest: 0}}}", flights,
			"20 x (9 - 1) = 160"}, // A request may say that it reserves 1.
		{"{reserve: 1, commit: {header: x-rows}}", "",
			"beyond that at most n x (c - r): n requests are under way at once, c is the most that a request costs, " +
				"and r is 1; nothing where r is as much as c"},
		{"{reserve: 1, commit: {metadata: ai/total}}", flights,
			"beyond that at most 20 x (c - r): at most 20 requests are under way at once by the policy seats, which " +
				"counts a request for 10m, c is the most that a request costs, and r is 1;"},
		{"{reserve: {header: x-max, max: 50}, commit: {metadata: ai/total}}", "", "r is its reservation"},
		// Among the policies that surely count each request, the tightest counts. A policy on each
		// of three Envoys counts three times.
		{status, flights + strings.NewReplacer("seats", "fewer", "20}", "5}, max_hold: 5m").Replace(flights),
			"5 x (9 - 2) = 35: at most 5 requests are under way at once by the policy fewer, which counts a request " +
				"for 5m"},
		{status, other("{in_flight: 20}", "{in_flight: 20}, mode: local"), "60 x (9 - 2) = 420"},
		{status, other("match: {paths: [/a]}, partition: [client_ip]", "partition: []"), "20 x"},
		{status, other("[/a]", "[/a/b]"), "at most 7 for each"},
		{status, other("[client_ip]", "[client_ip, method]"), "at most 7 for each"},
		{status, other("{in_flight: 20}", "{in_flight: 20}, enforcement: shadow"), "at most 7 for each"},
		{status, other("{in_flight: 20}", "{quota: 20, window: 1m}"), "at most 7 for each"},
	} {
		set, err := policydoc.Load([]byte("version: weir/v1\npolicies:\n  - {name: p, match: {paths: [/a]}, "+
			"partition: [client_ip], limit: {quota: 100, window: 1m}, cost: "+c.cost+"}"+c.beside), policydoc.YAML)
		if err != nil {
			t.Fatalf("%s%s: %v", c.cost, c.beside, err)
		}
		if got := promises.Of(set.Policies[0], set, 3, 0).Notes[0]; !strings.Contains(got, c.want) {
			t.Errorf("%s%s\ngot  %s\nwant %s", c.cost, c.beside, got, c.want)
		}
	}
}
