package e2e

import (
	"strings"
	"testing"
)

// Envoy says which cluster its route chooses before the request goes there, and a policy counts by
// it. A request that goes to no cluster is left alone.
func TestAnUpstreamIsAPartOfAKey(t *testing.T) {
	t.Parallel()
	answers := func(config string) string {
		return strings.Replace(config, "- match: {prefix: /}\n",
			"- match: {path: /nowhere}\n"+strings.Repeat(" ", 26)+"direct_response: {status: 200}\n"+
				strings.Repeat(" ", 24)+"- match: {prefix: /}\n", 1)
	}
	w := start(t, setup{rewrite: answers, policies: `
version: weir/v1
policies:
  - {name: services, partition: [upstream], limit: {quota: 2, window: 24h}, mode: local}
`})
	if got := statuses(t, 3, w.envoys[0].URL()+"/somewhere"); got != "200 200 429" {
		t.Errorf("a cluster: %s", got)
	}
	if got := statuses(t, 3, w.envoys[0].URL()+"/nowhere"); got != "200 200 200" {
		t.Errorf("no cluster: %s", got)
	}
}
